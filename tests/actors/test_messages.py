"""What goes to which actor, without Ray: a message with a row per client is cut before it is sent."""

import torch

from actors import cohort as cohort_module
from actors.cohort import RayCohort
from actors.crew import Crew, Held
from actors.hosted import Hosted
from actors.machines.placement import Node, Wish, arrange
from fedray.algorithms.mixtures.fedamp import Anchor
from fedray.federate.failures import FailurePolicy
from fedray.federate.messages import Failure
from tests.helpers import small_plan


def test_every_actor_is_sent_the_rows_of_its_own_clients_only(monkeypatch):
    asked = []
    monkeypatch.setattr(cohort_module.ray, "put", lambda tree: tree)
    monkeypatch.setattr(RayCohort, "_spawn", lambda self, slot, seat: None)
    monkeypatch.setattr(Crew, "ask", lambda self, question: asked.append(question.args))
    plan = small_plan("fedamp")
    cohort = RayCohort(Hosted(plan, arrange(6, [Node(8, 0)], Wish(clients_per_actor=2)), "loop"))
    rows = torch.arange(4.0)[:, None].expand(4, plan.model.padded).clone()
    cohort.train(1, (0, 2, 3, 5), Anchor(rows))
    ((first, second, third),) = (args.values() for args in asked)
    for (_, ids, sent, *_), wanted in ((first, [0]), (second, [1, 2]), (third, [3])):
        assert sent.u.shape == (len(ids), plan.model.padded)
        assert sent.u[:, 0].tolist() == wanted
    assert [ids for _, ids, *_ in (first, second, third)] == [[0], [2, 3], [5]]


def test_a_federation_that_begins_in_the_actors_of_another_has_nothing_of_it(monkeypatch):
    """The one before ended in mid-round: its states were not committed, and its failures not reported."""
    monkeypatch.setattr(cohort_module.ray, "put", lambda tree: tree)
    monkeypatch.setattr(RayCohort, "_spawn", lambda self, slot, seat: None)
    monkeypatch.setattr(Crew, "ask", lambda self, question: [])
    plan = small_plan("pfedbayes")
    hosted = Hosted(plan, arrange(6, [Node(8, 0)], Wish(clients_per_actor=2)), "loop")
    cohort = RayCohort(hosted)
    cohort.crew._held = {1: Held([2, 3], "its states")}
    cohort.crew.report(Failure(5, "client 1", "not finite", "its own"))
    cohort.reset(hosted._replace(policy=FailurePolicy(skip=True)))
    assert cohort.crew.release() == {}
    assert cohort.crew.take_failures() == ()
    assert cohort.crew.policy.skip
