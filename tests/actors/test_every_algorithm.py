"""Every registered algorithm on real Ray actors, one after the other in the same: bitwise what it is in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from actors.hosted import Hosted
from actors.machines.placement import Layout
from actors.server import remote_options
from fedray.arrays import trees
from fedray.federate.in_process import LocalFederation
from fedray.federate.plan import Plan
from tests.helpers import ALGORITHMS, differing, small_plan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

LAYOUT = Layout(((0, 1, 2), (3, 4, 5)), 0.1, 0.0)


def hosted(plan: Plan) -> Hosted:
    return Hosted(plan, LAYOUT, "loop")


@pytest.fixture(scope="module")
def server(cluster: None) -> Iterator[Any]:
    """One server with two client actors, which all algorithms use one after the other, as the trials of a sweep do."""
    actor = remote_options(num_cpus=0.1).remote(hosted(small_plan()))
    yield actor
    ray.get(actor.close.remote())
    ray.kill(actor)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_actors_as_in_process(name: str, server: Any) -> None:
    plan = small_plan(name)
    ray.get(server.reset.remote(hosted(plan)))
    spread = [trees.to_torch(ray.get(server.play.remote())) for _ in range(plan.rounds)]
    snapshot = trees.to_torch(ray.get(server.snapshot.remote()))
    with LocalFederation(plan, "loop") as federation:
        alone = list(federation)
        assert differing(federation.snapshot(), snapshot) == []
    for ours, theirs in zip(spread, alone, strict=True):
        assert (ours.participants, ours.bytes_up, ours.bytes_down) == (
            theirs.participants,
            theirs.bytes_up,
            theirs.bytes_down,
        )
        for kind in ("personal", "global_"):
            seen, known = getattr(ours, kind), getattr(theirs, kind)
            assert (seen is None) == (known is None)
            assert seen is None or differing(seen, known) == []
