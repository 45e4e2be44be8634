"""How clients lie on machines that come and go: who gets how many, and whether another order is worth a move."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MARGIN = 0.8  # a round has to become at least this much shorter


class Spread(NamedTuple):
    """Another order of the clients: which actors stay, and how many begin on which machines."""

    kept: tuple[int, ...]  # slots
    begin: dict[str, int]  # by machine
    blocks: tuple[tuple[int, ...], ...]  # clients of those that stay, then of those that begin


def spread(
    at: Mapping[int, str], blocks: Sequence[Sequence[int]], seats: Mapping[str, int], most: int, share: float
) -> Spread | None:
    """A better order than that of the actors that can stay, ``at`` their machines; None where there is none.

    ``blocks`` are the clients of all actors, ``seats`` what each machine can hold, theirs included, and ``most`` limits
    the actors. A seat is a share of a CPU, or of a GPU.
    """
    clients = sum(map(len, blocks))
    on = Counter(at.values())
    dealt = deal(min(most, clients), {machine: seats[machine] for machine in sorted(seats, key=lambda m: -on[m])})
    if not any(dealt.values()):
        return None
    left = dict(dealt)
    kept: list[int] = []
    for slot, machine in at.items():
        if left.get(machine, 0) > 0:
            left[machine] -= 1
            kept.append(slot)
    begin = {machine: number for machine, number in left.items() if number}
    new = even(clients, sum(dealt.values()))
    where = [at[slot] for slot in kept] + [machine for machine, number in begin.items() for _ in range(number)]
    then = load(zip(where, new, strict=True), seats, share)
    if at and then > MARGIN * load(((at[slot], blocks[slot]) for slot in at), seats, share):
        return None
    return Spread(tuple(kept), begin, new) if begin else None


def deal(actors: int, seats: Mapping[str, int]) -> dict[str, int]:
    """How many of the actors each machine gets: in proportion to its seats, and at most as many as it has."""
    dealt = dict.fromkeys(seats, 0)
    for _ in range(min(actors, sum(seats.values()))):
        machine = min((m for m in seats if dealt[m] < seats[m]), key=lambda m: (dealt[m] + 1) / seats[m])
        dealt[machine] += 1
    return dealt


def even(clients: int, actors: int) -> tuple[tuple[int, ...], ...]:
    """Consecutive blocks of the clients, one per actor; their sizes differ by at most one, the larger come first."""
    size, more = divmod(clients, actors)
    cuts = [k * size + min(k, more) for k in range(actors + 1)]
    return tuple(tuple(range(*pair)) for pair in itertools.pairwise(cuts))


def load(order: Iterable[tuple[str, Sequence[int]]], seats: Mapping[str, int], share: float) -> float:
    """Clients that the busiest CPU (or GPU) trains one after the other: the time of a round, up to a factor.

    ``order`` has the machine and the clients of every actor. An actor uses no more than one CPU, whatever is free.
    """
    sizes: dict[str, list[int]] = {}
    for machine, block in order:
        sizes.setdefault(machine, []).append(len(block))
    return max(max(max(on), sum(on) / (seats[machine] * share)) for machine, on in sizes.items())
