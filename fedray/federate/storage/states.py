"""The private states of the clients that one process hosts, in memory or on disk.

A client that has not trained yet has the state of ``client_init``, which is the same for all and takes no room.

On disk a client has one file, that of the last round in which it trained:

    000000-004999/                                the clients of the process
        round-000007/
            clients-000012-000012.safetensors     written as in a checkpoint, and never changed afterwards

So a checkpoint links it instead of copying it. The file before it stays until the client's next round but one begins:
until then, the successor of a process that dies may still need it.
"""  # fmt: skip

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from fsspec.implementations.local import LocalFileSystem

from fedray.arrays import tensor_files, trees
from fedray.federate.device.host import leaving, moved
from fedray.federate.messages import File, Saved
from fedray.federate.storage.checkpoint_files import link, local_path, read_clients, verified, write_clients, write_some
from fedray.federate.storage.places import located
from fedray.types import RunError, writing


class Piece(NamedTuple):
    """The states of some clients as one process hands them to its successor: numbers, or files on this machine."""

    ids: tuple[int, ...]
    states: Any  # stacked [K, ...]; None where they are in files
    files: tuple[tuple[int, File], ...] = ()  # with the round in which each was written


class ClientStates(Protocol):
    """Who asks gets fresh memory from ``rows``, and from ``row`` what may only be read."""

    @property
    def trained(self) -> list[int]:
        """The clients that have a state of their own, ascending."""
        ...

    def row(self, client: int) -> Any:
        """The state of one client, not to be written to."""
        ...

    def replace(self, round_number: int, ids: Sequence[int], states: Any) -> None:
        """Keep the states [K, ...] that clients have after a round; raises RunError where the disk refuses them."""
        ...

    def piece(self, ids: Iterable[int]) -> Callable[[], Piece]:
        """Begin to copy what a successor needs to know of some clients; the returned function waits for it."""
        ...

    def take(self, pieces: Iterable[Piece]) -> None:
        """Take the pieces of predecessors, later ones over earlier ones, and nothing else that they left."""
        ...

    def save(self, folder: str) -> list[File]:
        """Put all states that clients have of their own into a folder of a checkpoint."""
        ...

    def load(self, saved: Saved) -> None:
        """Take the states of a checkpoint, in the place of those that are here."""
        ...

    def clear(self) -> None:
        """Leave nothing on this machine: the federation has ended."""
        ...


def rows(states: ClientStates, ids: Iterable[int]) -> Any:
    """The states of some clients, stacked [K, ...], in memory of the caller's own."""
    return trees.stack([states.row(i) for i in ids])


class InMemory:
    """States as tensors on a device."""

    def __init__(self, initial: Any, ids: Sequence[int], device: torch.device):
        self._initial = initial
        self._device = device
        self._ids = frozenset(ids)
        self._own: dict[int, Any] = {}

    @property
    def trained(self) -> list[int]:
        return sorted(self._own)

    def row(self, client: int) -> Any:
        return self._own.get(client, self._initial)

    def replace(self, round_number: int, ids: Sequence[int], states: Any) -> None:
        for k, i in enumerate(ids):
            # A row of its own: as a view it would keep the whole stack alive.
            self._own[i] = trees.tree_map(lambda leaf, k=k: leaf[k].clone(), states)

    def piece(self, ids: Iterable[int]) -> Callable[[], Piece]:
        own = tuple(i for i in ids if i in self._own)
        numbers = leaving(rows(self, own) if own else None)
        return lambda: Piece(own, numbers())

    def take(self, pieces: Iterable[Piece]) -> None:
        self._own = {}
        for piece in pieces:
            for k, i in enumerate(piece.ids):
                if i not in self._ids:  # a predecessor's clients can have been divided
                    continue
                self._own[i] = trees.to_torch(trees.row(piece.states, k), self._device)

    def save(self, folder: str) -> list[File]:
        return write_clients(folder, self.trained, lambda ids: moved(rows(self, ids), "cpu"))

    def load(self, saved: Saved) -> None:
        self._own = {}
        for i, state in read_clients(saved, self._ids, self._initial):
            self._own[i] = trees.tree_map(lambda leaf: leaf.to(self._device, copy=True), state)

    def clear(self) -> None:
        self._own = {}


def _make_private(folder: Path) -> None:
    """Make a folder, for this user alone where its parent is everybody's; raises RunError for one of another user."""
    if not folder.parent.stat().st_mode & stat.S_IWOTH:
        folder.mkdir(exist_ok=True)
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise RunError(
            f"{folder}: another user made it, or may write there; remove it, or set TMPDIR to your own folder"
        )


class OnDisk:
    """States as files below a folder of this machine; in memory is what somebody reads."""

    def __init__(self, initial: Any, ids: Sequence[int], device: torch.device, folder: str):
        self._initial = initial
        self._device = device
        self._ids = frozenset(ids)
        self._base = Path(folder)  # of all processes of this machine
        self._root = self._base / f"{ids[0]:06d}-{ids[-1]:06d}"
        self._files: dict[int, tuple[int, File]] = {}
        self._replaced: list[tuple[int, Path]] = []  # in which round, and what
        self._lasting: set[Path] = set()  # files that outlive the machine

    @property
    def trained(self) -> list[int]:
        return sorted(self._files)

    def row(self, client: int) -> Any:
        if client not in self._files:
            return self._initial
        number, file = self._files[client]
        folder = self._folder(number)
        try:  # what the disk has changed would change the result, and nobody would see it
            content = verified(str(folder), file)
        except ValueError as error:
            raise RunError(f"{folder}: {error}; go on from the last checkpoint") from None
        stacked = tensor_files.unpack(content, trees.tree_map(lambda leaf: leaf[None], self._initial))
        return trees.tree_map(lambda leaf: leaf[0].to(self._device), stacked)

    def replace(self, round_number: int, ids: Sequence[int], states: Any) -> None:
        if not trees.leaves(self._initial):  # the method keeps nothing on its clients
            return
        for number, path in self._replaced:
            if number < round_number:
                path.unlink(missing_ok=True)
        self._replaced = [(number, path) for number, path in self._replaced if number >= round_number]
        folder = self._made(round_number)
        for k, i in enumerate(ids):
            if i in self._files and self._files[i][0] != round_number:
                self._replaced.append((round_number, self._path(*self._files[i])))
            state = trees.tree_map(lambda leaf, k=k: leaf[k : k + 1].cpu(), states)
            with writing(folder):
                # To have it last costs more than to write it: it waits for a checkpoint.
                self._files[i] = round_number, write_some(str(folder), [i], state, lasting=False)
            self._lasting.discard(self._path(*self._files[i]))

    def piece(self, ids: Iterable[int]) -> Callable[[], Piece]:
        own = tuple(i for i in ids if i in self._files)
        piece = Piece(own, None, tuple(self._files[i] for i in own))
        return lambda: piece

    def take(self, pieces: Iterable[Piece]) -> None:
        pieces = list(pieces)
        last = {i: piece for piece in pieces for i in piece.ids}
        listed = [(i, file, piece) for piece in pieces for i, file in zip(piece.ids, piece.files, strict=False)]
        self._files = {i: file for i, file, piece in listed if last[i] is piece}
        self._replaced = []
        for number, file in self._files.values():
            self._path(number, file).stat()  # on another machine it is not there
        self._sweep()
        for piece in pieces:  # in numbers are those that this machine could not read
            own = [k for k, i in enumerate(piece.ids) if last[i] is piece]
            if own and piece.states is not None:
                states = trees.to_torch(trees.rows(piece.states, own))
                self.replace(0, [piece.ids[k] for k in own], states)

    def save(self, folder: str) -> list[File]:
        fs, path = located(folder)
        for number, file in self._files.values():
            source = self._path(number, file)
            if isinstance(fs, LocalFileSystem):
                self._secure(source)
                link(source, Path(path) / file.name)
            else:
                fs.put_file(str(source), f"{path}/{file.name}")
        self._lasting &= {self._path(*place) for place in self._files.values()}
        return [self._files[i][1] for i in self.trained]

    def load(self, saved: Saved) -> None:
        self._files = {}
        self._replaced = []  # of rounds that did not happen
        self._sweep()
        folder = self._made(saved.round)
        alone = {file.clients[0]: file for file in saved.files if len(file.clients) == 1}
        here = local_path(saved.folder)
        if here is not None:
            for i in self._ids & alone.keys():
                with writing(folder):
                    link(here / alone[i].name, self._path(saved.round, alone[i]))
                self._files[i] = saved.round, alone[i]
        for i, state in read_clients(saved, self._ids - self._files.keys(), self._initial):
            self.replace(saved.round, [i], trees.tree_map(lambda leaf: leaf[None], state))

    def clear(self) -> None:
        self._files = {}
        shutil.rmtree(self._root, ignore_errors=True)
        with contextlib.suppress(OSError):  # where it holds those of others
            self._base.rmdir()

    def _secure(self, path: Path) -> None:
        """Have a file outlive the machine's own fall, too."""
        if path in self._lasting:
            return
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._lasting.add(path)

    def _sweep(self) -> None:
        """Remove the files of a predecessor that nobody refers to."""
        kept = {self._path(number, file) for number, file in self._files.values()}
        for folder in self._root.glob("round-*"):
            for path in set(folder.iterdir()) - kept:
                path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()

    def _made(self, round_number: int) -> Path:
        """The folder of a round, which is there by now."""
        folder = self._folder(round_number)
        with writing(folder):
            self._base.parent.mkdir(parents=True, exist_ok=True)
            _make_private(self._base)
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _folder(self, round_number: int) -> Path:
        return self._root / f"round-{round_number:06d}"

    def _path(self, round_number: int, file: File) -> Path:
        return self._folder(round_number) / file.name
