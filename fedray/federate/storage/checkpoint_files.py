"""The files of a checkpoint: everything that the remaining rounds and the result depend on.

    round-000012/
        clients-000000-000004.safetensors   private states of clients between 0 and 4, written by the actor that has
                                            them; of a client in no such file client_init's, for it has not trained
        server.safetensors                  the server's state and the selection policy's
        spotlights.safetensors              data of the uncertainty figure so far
        history.json                        the measures of the rounds so far
        manifest.json                       written last: the files with their checksums, and whose they are

A folder without a manifest does not count as a checkpoint. One whose checksums do not match is not used: the one
before it is.
"""  # fmt: skip

from __future__ import annotations

import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem

from fedray.arrays import tensor_files, trees
from fedray.config import Experiment, fingerprint, override
from fedray.config.decode import decode, fits, refuse_damage
from fedray.federate.messages import File, Saved, Spotlight
from fedray.federate.plan import Plan
from fedray.federate.rounds import State
from fedray.federate.storage.places import located
from fedray.types import RunError

MANIFEST = "manifest.json"
FORMAT = 2
READABLE = (1, 2)  # format 1 held the states of all clients
FILE_BYTES = 2**28  # private states are written in files of this size: a reader holds one at a time


class Checkpoint(NamedTuple):
    """A federation between two rounds."""

    state: State
    clients: Saved


class ServerPart(NamedTuple):
    """What the server knows."""

    server: Any
    selection: Any


class CheckpointError(RunError):
    """A checkpoint cannot be read, or could not be written and the run was told to stop then."""


def write_clients(folder: str, ids: Sequence[int], states_of: Callable[[Sequence[int]], Any]) -> list[File]:
    """Write the private states of some clients, in files of at most FILE_BYTES if one state is not larger.

    ``states_of`` gives those of some of them, stacked, and is asked for one file at a time. Raises OSError.
    """
    if not ids:
        return []
    size = sum(leaf.nbytes for leaf in trees.leaves(states_of(ids[:1])))
    step = max(1, FILE_BYTES // max(size, 1))
    parts = [ids[first : first + step] for first in range(0, len(ids), step)]
    return [write_some(folder, part, states_of(part)) for part in parts]


def write_some(folder: str, ids: Sequence[int], states: Any, lasting: bool = True) -> File:
    """Write the private states [K, ...] of some clients, in ascending order, to one file; raises OSError.

    One that is not ``lasting`` outlives its process, but not yet its machine.
    """
    name = f"clients-{ids[0]:06d}-{ids[-1]:06d}.safetensors"
    return _write(folder, name, tensor_files.pieces(tensor_files.named(states)), tuple(ids), lasting)


def read_clients(saved: Saved, wanted: Collection[int], initial: Any) -> Iterator[tuple[int, Any]]:
    """(client, state) of those wanted clients that have trained, one file in memory at a time.

    ``initial`` is what they began with. Raises OSError, and ValueError for damage, other fields, shapes or types.
    """
    for file in saved.files:
        if not wanted or set(wanted).isdisjoint(file.clients):
            continue
        states = tensor_files.unpack(verified(saved.folder, file), _like(initial, len(file.clients)))
        for k, i in enumerate(file.clients):
            if i in wanted:
                yield i, trees.row(states, k)


def verify_clients(folder: str, files: Iterable[File], initial: Any) -> None:
    """Raise what damage leads to where a file of clients' states is not as listed, or does not fit ``initial``."""
    for file in files:  # one at a time: all of them may not fit into memory
        tensor_files.unpack(verified(folder, file), _like(initial, len(file.clients)))


def sees(folder: str) -> bool:
    """Whether a process here reads and writes a folder: one of this machine, or of a remote store."""
    fs, path = located(folder)
    return not isinstance(fs, LocalFileSystem) or bool(fs.exists(path))


def local_path(folder: str) -> Path | None:
    """The path of a folder in a file system of this machine; None for a remote store, or one not seen from here."""
    fs, path = located(folder)
    return Path(path) if isinstance(fs, LocalFileSystem) and fs.exists(path) else None


def link(source: Path, target: Path) -> None:
    """A second name for a file that nobody will change, or a copy in another file system."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _like(initial: Any, clients: int) -> Any:
    """A stack of as many states, of which only the shape counts."""
    return trees.tree_map(lambda leaf: leaf.expand(clients, *leaf.shape), initial)


def write(folder: str, plan: Plan, state: State, clients: Sequence[File]) -> None:
    """Write what the server knows beside the clients' files, then the manifest, which makes it a checkpoint."""
    server = tensor_files.named(ServerPart(state.server, state.selection))
    files = [
        *clients,
        _write(folder, "server.safetensors", tensor_files.pieces(server)),
        _write(folder, "spotlights.safetensors", _spotlight_pieces(state.spotlights)),
        _write(folder, "history.json", [json.dumps(list(state.rows)).encode()]),
    ]
    body = {
        "format": FORMAT,
        "config": _identity(plan.cfg),
        "round": state.round,
        "files": [file._asdict() for file in files],
    }
    manifest = body | {"crc32": _checksum(body)}
    fs, path = located(folder)
    _write(folder, "manifest.part", [json.dumps(manifest, indent=1).encode()])
    fs.mv(f"{path}/manifest.part", f"{path}/{MANIFEST}")


def read(folder: str, plan: Plan, own: bool = False) -> Checkpoint:
    """The federation in a folder of :func:`write`; with ``own`` of the plan's experiment, be it of fewer rounds.

    Raises CheckpointError where a file is missing or damaged, or does not fit the plan.
    """
    with refuse_damage(f"checkpoint {folder} cannot be used", "an older one is used if there is one", CheckpointError):
        manifest = _decoded(_content(folder, MANIFEST))
        body = {name: manifest[name] for name in ("format", "config", "round", "files")}
        if manifest["crc32"] != _checksum(body) or body["format"] not in READABLE:
            raise ValueError("its manifest is damaged, or of another version")
        # Older versions counted the number of rounds in.
        if own and body["config"] not in (_identity(plan.cfg), fingerprint(plan.cfg)):
            raise ValueError("it belongs to another experiment")
        if own and body["round"] > plan.cfg.rounds:
            raise ValueError(f"it is of round {body['round']}, and the run has only {plan.cfg.rounds}")
        files = [as_file(entry) for entry in body["files"]]
        if body["format"] == 1 and sum(len(file.clients) for file in files) != plan.clients:
            raise ValueError(f"it does not hold clients 0 to {plan.clients - 1}")
        return _assemble(folder, plan, body["round"], files)


def _decoded(manifest: bytes) -> Any:
    try:
        return decode(manifest)
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from None


def _identity(cfg: Experiment) -> str:
    """What two experiments share whose rounds have the same numbers, however many there are."""
    return fingerprint(override(cfg, {"rounds": 1}))


def as_file(entry: Any) -> File:
    """A file as a manifest lists it; raises what damage leads to, and ValueError for a path."""
    if not re.fullmatch(r"\w[\w.-]*", entry["name"]):
        raise ValueError(f"{entry['name']!r} is no plain name of a file")
    return File(entry["name"], entry["size"], entry["crc32"], tuple(entry["clients"]))


def _assemble(folder: str, plan: Plan, round_number: int, files: Sequence[File]) -> Checkpoint:
    named = {file.name: verified(folder, file) for file in files if not file.clients}
    server = plan.initial_server()
    client = plan.algorithm.client_init(plan.context, server)
    private = tuple(sorted((file for file in files if file.clients), key=lambda file: file.clients))
    ids = [i for file in private for i in file.clients]
    if len(set(ids)) < len(ids) or not set(ids) <= set(range(plan.clients)):
        raise ValueError(f"it holds clients twice, or others than 0 to {plan.clients - 1}")
    verify_clients(folder, private, client)
    template = ServerPart(server, plan.selection.init(len(plan.trainers)))
    part = tensor_files.unpack(named["server.safetensors"], template)
    spotlights = _unpack_spotlights(named["spotlights.safetensors"])
    rows = decode(named["history.json"])
    if not fits(rows, list[dict[str, float]]) or [row.get("round") for row in rows] != list(range(1, round_number + 1)):
        raise ValueError(f"its history is not that of rounds 1 to {round_number}")
    state = State(round_number, part.server, part.selection, tuple(rows), spotlights)
    return Checkpoint(state, Saved(folder, round_number, private))


def _spotlight_pieces(spotlights: Sequence[Spotlight]) -> Iterator[bytes | memoryview]:
    arrays: dict[str, np.ndarray] = {}
    for number, spot in enumerate(spotlights):
        arrays |= {f"{number}.round": np.array(spot.round), f"{number}.ids": np.array(spot.ids)}
        arrays |= {f"{number}.label": spot.label.numpy(), f"{number}.probs": spot.probs.numpy()}
    return tensor_files.pieces(arrays)


def _unpack_spotlights(content: bytes) -> tuple[Spotlight, ...]:
    arrays = tensor_files.unpack_arrays(content)

    def spotlight(n: int) -> Spotlight:
        label, probs = (torch.tensor(arrays[f"{n}.{name}"]) for name in ("label", "probs"))
        return Spotlight(int(arrays[f"{n}.round"]), tuple(arrays[f"{n}.ids"].tolist()), label, probs)

    return tuple(spotlight(number) for number in range(math.ceil(len(arrays) / 4)))


def _write(
    folder: str,
    name: str,
    content: Iterable[bytes | memoryview],
    clients: tuple[int, ...] = (),
    lasting: bool = True,
) -> File:
    fs, path = located(folder)
    size = checksum = 0
    with fs.open(f"{path}/{name}", "wb") as file:
        for piece in content:
            file.write(piece)
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
        if lasting and isinstance(fs, LocalFileSystem):  # a local file: it shall survive the machine's own fall, too
            file.flush()
            os.fsync(file.fileno())
    return File(name, size, checksum, clients)


def _content(folder: str, name: str) -> bytes:
    fs, path = located(folder)
    with fs.open(f"{path}/{name}", "rb") as file:
        return file.read()


def verified(folder: str, file: File) -> bytes:
    """What a file holds; raises OSError, and ValueError where that is not what was written."""
    content = _content(folder, file.name)
    if (len(content), zlib.crc32(content)) != (file.size, file.crc32):
        raise ValueError(f"{file.name} is damaged: {len(content)} bytes with another checksum than when it was written")
    return content


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
