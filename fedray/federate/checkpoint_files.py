"""The files of a checkpoint: everything that the remaining rounds and the result depend on.

    round-000012/
        clients-000000-000004.safetensors   private states of clients 0 to 4, written by the actor that has them
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
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import fsspec
import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem

from fedray.arrays import tensor_files, trees
from fedray.config import fingerprint
from fedray.config.decode import decode, fits, refuse_damage
from fedray.federate.messages import File, Spotlight
from fedray.federate.plan import Plan
from fedray.federate.rounds import State
from fedray.types import RunError

FORMAT = 1
FILE_BYTES = 2**28  # private states are written in files of this size: a reader holds one at a time


class Checkpoint(NamedTuple):
    """A federation between two rounds."""

    state: State
    clients: Any  # private states, stacked [N, ...]


class ServerPart(NamedTuple):
    """What the server knows."""

    server: Any
    selection: Any


class CheckpointError(RunError):
    """A checkpoint cannot be read, or could not be written and the run was told to stop then."""


def write_clients(folder: str, ids: Sequence[int], states: Any) -> list[File]:
    """Write the private states [K, ...] of some clients; raises OSError."""
    states = trees.to_numpy(states)
    files: list[File] = []
    total = sum(leaf.nbytes for leaf in trees.leaves(states))
    step = max(1, len(ids) * FILE_BYTES // max(total, 1))
    for first in range(0, len(ids), step):
        some = tuple(ids[first : first + step])
        name = f"clients-{some[0]:06d}-{some[-1]:06d}.safetensors"
        part = trees.tree_map(lambda leaf, at=first, end=first + step: leaf[at:end], states)
        files.append(_write(folder, name, tensor_files.pieces(tensor_files.named(part)), some))
    return files


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
        "config": fingerprint(plan.cfg),
        "round": state.round,
        "files": [file._asdict() for file in files],
    }
    manifest = body | {"crc32": _checksum(body)}
    fs, path = fsspec.url_to_fs(folder)
    _write(folder, "manifest.part", [json.dumps(manifest, indent=1).encode()])
    fs.mv(f"{path}/manifest.part", f"{path}/manifest.json")


def read(folder: str, plan: Plan, config: str | None = None) -> Checkpoint:
    """The federation in a folder of :func:`write`, of the experiment with this fingerprint if one is given.

    Raises CheckpointError where a file is missing or damaged, or does not fit the plan.
    """
    with refuse_damage(f"checkpoint {folder} cannot be used", "an older one is used if there is one", CheckpointError):
        manifest = decode(_content(folder, "manifest.json"))
        body = {name: manifest[name] for name in ("format", "config", "round", "files")}
        if manifest["crc32"] != _checksum(body) or body["format"] != FORMAT:
            raise ValueError("its manifest is damaged, or of another version")
        if config is not None and body["config"] != config:
            raise ValueError("it belongs to another experiment")
        files = [File(f["name"], f["size"], f["crc32"], tuple(f["clients"])) for f in body["files"]]
        return _assemble(plan, body["round"], {file: _verified(folder, file) for file in files})


def _assemble(plan: Plan, round_number: int, files: dict[File, bytes]) -> Checkpoint:
    named = {file.name: content for file, content in files.items()}
    server = plan.initial_server()
    client = plan.algorithm.client_init(plan.context, server)
    blocks = sorted((file.clients, content) for file, content in files.items() if file.clients)
    if [i for ids, _ in blocks for i in ids] != list(range(plan.clients)):
        raise ValueError(f"it does not hold clients 0 to {plan.clients - 1}")
    parts = []
    for ids, content in blocks:
        size = (len(ids),)
        template = trees.tree_map(lambda leaf, size=size: leaf.expand(*size, *leaf.shape), client)
        parts.append(tensor_files.unpack(content, template))
    template = ServerPart(server, plan.selection.init(plan.clients))
    part = tensor_files.unpack(named["server.safetensors"], template)
    spotlights = _unpack_spotlights(named["spotlights.safetensors"])
    rows = decode(named["history.json"])
    if not fits(rows, list[dict[str, float]]) or [row.get("round") for row in rows] != list(range(1, round_number + 1)):
        raise ValueError(f"its history is not that of rounds 1 to {round_number}")
    return Checkpoint(
        State(round_number, part.server, part.selection, tuple(rows), spotlights), trees.concatenate(parts)
    )


def _spotlight_pieces(spotlights: Sequence[Spotlight]) -> list[bytes | memoryview]:
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


def _write(folder: str, name: str, content: Sequence[bytes | memoryview], clients: tuple[int, ...] = ()) -> File:
    fs, path = fsspec.url_to_fs(folder)
    size = checksum = 0
    with fs.open(f"{path}/{name}", "wb") as file:
        for piece in content:
            file.write(piece)
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
        if isinstance(fs, LocalFileSystem):  # a local file: it shall survive the machine's own fall, too
            file.flush()
            os.fsync(file.fileno())
    return File(name, size, checksum, clients)


def _content(folder: str, name: str) -> bytes:
    fs, path = fsspec.url_to_fs(folder)
    with fs.open(f"{path}/{name}", "rb") as file:
        return file.read()


def _verified(folder: str, file: File) -> bytes:
    content = _content(folder, file.name)
    if (len(content), zlib.crc32(content)) != (file.size, file.crc32):
        raise ValueError(f"{file.name} is damaged: {len(content)} bytes that do not have the checksum of the manifest")
    return content


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
