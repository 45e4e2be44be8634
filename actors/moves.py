"""A federation follows its cluster: it spreads over machines that join, and leaves those that announce their end."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group

from actors.cohort import RayCohort
from actors.crew import START_SECONDS, Recruit, refusal
from actors.machines import versions
from actors.machines.cluster import Machine, machines
from actors.machines.placement import seats_in
from actors.machines.seats import Seat, added_name, reserved
from actors.machines.spread import spread
from fedray.federate.failures import ClientsLostError
from fedray.federate.messages import Failure, Move
from fedray.types import first_line

LOOK_SECONDS = 1.0  # between two looks at the cluster
RESERVE_SECONDS = 5.0  # that Ray may take to reserve what is free


class LeaveError(Exception):
    """The federation has to be built anew on other machines, from where it is."""


class Mover:
    """Keeps the clients of a cohort on the machines that are there; lives in the server actor.

    Recruits start beside the rounds, and take over clients between two of them. Those who leave hand theirs to the
    actors that stay, which needs no room. Nobody waits for room that others have.
    """

    def __init__(self, cohort: RayCohort, group: Any, most: int, on_disk: bool = False):
        """``group`` is the reservation that the federation began with; ``most`` the actors that it may have.

        States on disk stay with their machine while it does.
        """
        self._cohort = cohort
        self._groups = [group]  # and those on machines that joined
        self._most = most
        self._on_disk = on_disk
        self._kept: Sequence[int] = ()  # slots that go on beside those who are coming
        self._coming: list[Recruit] = []
        self._until = math.inf  # when those must have started
        self._barred: set[str] = set()  # machines on which recruits did not start
        self._here = ray.get_runtime_context().get_node_id()
        self._looked = -math.inf

    def follow(self, round_number: int) -> Move | None:
        """Before a round: what has moved, if anything has.

        Raises ClientsLostError where a machine is gone, and LeaveError where the server has to go.
        """
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return None
        there = machines()
        self._looked = time.monotonic()
        seats = self._cohort.seats
        if any(seat.machine not in there for seat in seats):
            raise ClientsLostError("a machine was lost")
        stay = {slot: seat.machine for slot, seat in enumerate(seats) if there[seat.machine].stays}
        going = {there[seat.machine].name for seat in seats if not there[seat.machine].stays}
        anew = {there[self._here].name} if not there[self._here].stays else going if self._on_disk else set()
        if anew and (stay or any(seats_in(self._cohort.layout, other.free) for other in there.values() if other.stays)):
            raise LeaveError(f"{_listed(anew)} announced the end")
        if any(recruit.seat.machine not in there for recruit in self._coming) or (going and stay):
            self._dismiss()
        if going and stay:
            return self._settle(round_number, f"{_listed(going)} announced the end", tuple(stay), (), there)
        if not self._coming and not self._on_disk:
            self._invite(round_number, there, stay)
        if not self._coming or not self._started(round_number, there):
            return None
        joined = {there[recruit.seat.machine].name for recruit in self._coming}
        recruits, self._coming = self._coming, []
        return self._settle(round_number, f"spread to {_listed(joined)}", self._kept, recruits, there)

    def _invite(self, round_number: int, there: Mapping[str, Machine], stay: Mapping[int, str]) -> None:
        """Start recruits where they would shorten the rounds, or anywhere if nobody can stay."""
        layout = self._cohort.layout
        empty = self._empty(there)
        on = Counter(stay.values())
        seats = {
            node: on[node] + len(empty.get(node, ())) + seats_in(layout, machine.free)
            if self._fits(round_number, node, machine)
            else on[node]
            for node, machine in there.items()
            if machine.stays
        }
        found = spread(stay, layout.blocks, seats, self._most, layout.gpus or layout.cpus)
        if found is None:
            return
        places: list[Seat] = []
        for machine, number in found.begin.items():
            ours = empty.get(machine, [])[:number]
            places += ours + self._reserve(machine, number - len(ours))
        if len(places) == sum(found.begin.values()):
            self._kept, self._until = found.kept, time.monotonic() + START_SECONDS
            new = found.blocks[len(found.kept) :]
            self._coming = [self._cohort.invite(seat, block) for seat, block in zip(places, new, strict=True)]
        else:
            self._give_back()

    def _fits(self, round_number: int, node: str, machine: Machine) -> bool:
        """Whether recruits may start on a machine; one that joined is asked for its versions first."""
        if node in self._barred:
            return False
        if node == self._here or any(seat.machine == node for seat in self._cohort.seats):
            return True
        wrong = versions.unfit(node)
        if wrong:
            self._barred.add(node)
            self._cohort.report(Failure(round_number, machine.name, "lost", wrong, "went on without it"))
        return wrong == ""

    def _empty(self, there: Mapping[str, Machine]) -> dict[str, list[Seat]]:
        """Seats that are reserved and that nobody takes, by machine."""
        taken = {(seat.group, seat.bundle) for seat in self._cohort.seats}
        first, *added = (reserved(group) for group in self._groups)
        empty: dict[str, list[Seat]] = {}
        for seat in [*first[1:], *(seat for seats in added for seat in seats)]:  # the very first is the server's
            if seat.machine in there and (seat.group, seat.bundle) not in taken:
                empty.setdefault(seat.machine, []).append(seat)
        return empty

    def _reserve(self, machine: str, number: int) -> list[Seat]:
        """So many seats more on a machine; none where somebody else was faster."""
        if number <= 0:
            return []
        bundles = [self._cohort.layout.bundles[1]] * number
        selector = [{"ray.io/node-id": machine}] * number
        name = added_name(self._groups[0])
        group = placement_group(bundles, strategy="STRICT_PACK", name=name, bundle_label_selector=selector)
        if not group.wait(RESERVE_SECONDS):
            remove_placement_group(group)
            return []
        self._groups.append(group)
        return reserved(group)

    def _started(self, round_number: int, there: Mapping[str, Machine]) -> bool:
        """Whether all recruits are ready; those that cannot be had are let go, and their machines left alone."""
        waiting = [recruit.ready for recruit in self._coming]
        ready, late = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        reason = f"no sign of them for {START_SECONDS:g} s" if late and time.monotonic() > self._until else ""
        try:
            ray.get(ready)
        except RayError as error:
            reason = refusal(error) or first_line(error)
        if reason:
            names = _listed({there[recruit.seat.machine].name for recruit in self._coming})
            self._barred |= {recruit.seat.machine for recruit in self._coming}
            failure = Failure(round_number, f"new actors on {names}", "lost", reason, "went on without them")
            self._cohort.report(failure)
            self._dismiss()
        return not late and not reason

    def _settle(
        self,
        round_number: int,
        reason: str,
        kept: Sequence[int],
        recruits: Sequence[Recruit],
        there: Mapping[str, Machine],
    ) -> Move:
        """Divide the clients anew among those that stay and those that have come."""
        began = time.perf_counter()
        self._cohort.settle(kept, recruits)
        self._give_back()
        return Move(round_number, reason, self._cohort.hosted(there), time.perf_counter() - began)

    def _dismiss(self) -> None:
        """Let those go who are coming."""
        for recruit in self._coming:
            ray.kill(recruit.actor)
        self._coming = []
        self._give_back()

    def _give_back(self) -> None:
        """Free reservations on machines that joined and where nobody is any more."""
        used = {seat.group for seat in self._cohort.seats}
        first, *added = self._groups
        for group in added:
            if group not in used:
                remove_placement_group(group)
        self._groups = [first, *(group for group in added if group in used)]


def _listed(names: set[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last
