"""What the successor of an actor starts from: the last committed state of every client that the actor hosted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class _Commit(NamedTuple):
    clients: frozenset[int]  # of whom it is the last
    size: int  # clients that it holds
    ref: Any


class Commits:
    """References to pieces of an actor's states, oldest first; a piece that later ones replace is let go."""

    def __init__(self) -> None:
        self._commits: list[_Commit] = []

    @property
    def refs(self) -> list[Any]:
        """The pieces, to be taken in this order."""
        return [commit.ref for commit in self._commits]

    def add(self, clients: Iterable[int], ref: Any) -> None:
        """Note the states that some clients have from now on."""
        new = frozenset(clients)
        rest = [commit._replace(clients=commit.clients - new) for commit in self._commits]
        self._commits = [commit for commit in rest if commit.clients] + [_Commit(new, len(new), ref)]

    def due(self, clients: Sequence[int], hosted: Sequence[int]) -> Sequence[int]:
        """Whose states are to be committed after ``clients`` train: theirs, or those of all hosted clients if more than
        half of what the store would hold were replaced states, which cannot be freed one by one."""
        held = sum(commit.size for commit in self._commits)
        current = sum(len(commit.clients.difference(clients)) for commit in self._commits)
        return hosted if held - current > len(clients) + current else clients


def inherited(committed: Iterable[Commits], clients: Iterable[int]) -> Commits:
    """What a process starts from that takes over some clients, whichever actors hosted them before."""
    wanted = frozenset(clients)
    found = Commits()
    for commit in (commit for theirs in committed for commit in theirs._commits):
        if mine := commit.clients & wanted:
            found._commits.append(commit._replace(clients=mine))
    return found
