"""Every registered algorithm on two real Ray actors: bitwise what it is in one process."""

import pytest

from actors.federation import RayFederation
from fedray.config import Execution
from fedray.federate.in_process import LocalFederation
from tests.helpers import ALGORITHMS, differing, small_plan

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_actors_as_in_process(name):
    plan = small_plan(name)
    found = []
    for federation in (LocalFederation(plan, "loop"), RayFederation(plan, Execution(clients_per_actor=3))):
        with federation:
            rounds = list(federation)
            found.append((federation.snapshot(), rounds))
    (expected, alone), (snapshot, spread) = found
    assert differing(expected, snapshot) == []
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
