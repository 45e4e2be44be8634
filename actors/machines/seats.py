"""Seats: the rooms for one client actor each that a federation has reserved, and the machines on which they lie."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.machines.cluster import Machine

LEAVE_SECONDS = 30.0  # before a machine goes: the last moment at which a round on it is broken off


class Seat(NamedTuple):
    """A bundle of a reservation; whoever sits there is an actor with that bundle's resources."""

    machine: str  # Ray's id of the node; empty while the bundle lies nowhere
    group: Any
    bundle: int

    @property
    def strategy(self) -> PlacementGroupSchedulingStrategy:
        """What places an actor here and nowhere else."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundle)


def reserved(group: Any) -> list[Seat]:
    """Every bundle of a reservation, in order, and where it lies now."""
    table = placement_group_table(group)
    where = table["bundles_to_node_id"]
    return [Seat(where.get(bundle) or "", group, bundle) for bundle in sorted(table["bundles"])]


def added_name(group: Any) -> str:
    """A name of its own for a reservation that adds to another one."""
    return f"{group.id.hex()}+{uuid.uuid4().hex}"


def added_to(group: Any) -> list[Any]:
    """The reservations that add to another one: Ray keeps them when the actor that made them is gone."""
    mark = f"{group.id.hex()}+"
    found = [entry for entry in placement_group_table().values() if entry["name"].startswith(mark)]
    return [PlacementGroup(PlacementGroupID(bytes.fromhex(entry["placement_group_id"]))) for entry in found]


def doomed(machines: Iterable[str], there: Mapping[str, Machine]) -> str:
    """Why one of these machines may not last to the end of a round; empty if all seem to."""
    for machine in machines:
        if machine not in there:
            return "a machine was lost"
        left = there[machine].leaves - time.time()
        if left < LEAVE_SECONDS:
            return f"{there[machine].name} goes in {max(0.0, left):.0f} s, before the round ends"
    return ""
