"""From scores to clients: the papers' probabilities, what cannot be used, the draw, and what a round reports of it."""

import gc
import math
import weakref

import pytest
import torch
from torch.testing import assert_close

from fedray import registry
from fedray.arrays import tensor_files, trees
from fedray.arrays.rng import Stream
from fedray.bayes.importance import stages
from fedray.bayes.stein import rbf, stein_matrix, v_statistic
from fedray.config import Experiment, override
from fedray.federate import rounds
from fedray.federate.in_process import LocalCohort, LocalFederation
from fedray.federate.uploads import payload_bytes
from fedray.selection._draw import described, draw, gumbel_top, probabilities
from fedray.types import FedRayError
from tests.helpers import differing, small_plan

SCORES = torch.tensor([3.0, 1.0, -2.0, 0.0])
EPSILON = Experiment.selection_epsilon


def test_probabilities_are_the_papers_and_a_share_of_the_uniform_ones():
    assert_close(probabilities(SCORES, 0.0), torch.tensor([0.75, 0.25, 0, 0]).double())
    p = probabilities(SCORES, EPSILON)
    assert EPSILON == 0.05
    assert_close(p, torch.tensor([0.75, 0.25, 0, 0]).double() * (1 - EPSILON) + EPSILON / 4)
    assert_close(p.sum(), torch.tensor(1.0).double())
    assert_close(probabilities(torch.full((7,), 0.3), EPSILON), torch.full((7,), 1 / 7).double())


@pytest.mark.parametrize(
    "bad", [[0.0, 0.0], [-1.0, -3.0], [math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0], [1e-14, 0.0]]
)
def test_scores_that_cannot_be_used_make_all_clients_equal(bad):
    assert torch.equal(probabilities(torch.tensor(bad), 0.0), torch.full((2,), 0.5).double())


def test_probabilities_follow_their_clients_and_favour_large_scores():
    scores, order = Stream(0, "scores").normal([9]), torch.tensor([4, 8, 0, 2, 6, 1, 3, 7, 5])
    assert_close(probabilities(scores, EPSILON)[order], probabilities(scores[order], EPSILON))
    for number in range(50):  # equations 18 and 25, of scores as they are and clipped
        scores = Stream(number, "scores").normal([9])
        for s in (scores, scores.clamp_min(0)):
            for epsilon in (0.0, EPSILON):
                assert (probabilities(scores, epsilon) * s).sum() > s.mean()


def test_what_is_reported_of_a_draw():
    (one, two), drawn = draw(SCORES, 2, Stream(0, "select"), EPSILON)
    assert drawn.clipped == 1
    assert drawn.chosen == (SCORES[one] + SCORES[two]) / 2
    assert drawn.average == 0.5
    assert_close(drawn.largest, probabilities(SCORES, EPSILON).max())
    assert_close(drawn.smallest, torch.tensor(EPSILON / 4).double())
    assert_close(described(torch.full((5,), 0.2), torch.ones(5), [1]).effective, torch.tensor(5.0))
    assert_close(described(torch.tensor([1.0, 0, 0]), torch.ones(3), [1]).effective, torch.tensor(1.0))
    assert 1 < drawn.effective < 4


def test_draws_have_the_probabilities_of_drawing_one_after_the_other():
    """Chi-square of 4000 draws of one and of two of four clients; 0.999 quantiles of 3 and 5 degrees of freedom."""
    p, rounds = torch.tensor([0.5, 0.3, 0.15, 0.05]).double(), 4000
    single, pairs = torch.zeros(4), {}
    for number in range(rounds):
        (one,) = gumbel_top(p, 1, Stream(0, "one", 0, number))
        two = gumbel_top(p, 2, Stream(0, "two", 0, number))
        single[one] += 1
        pairs[two] = pairs.get(two, 0) + 1
    assert ((single - rounds * p) ** 2 / (rounds * p)).sum() < 16.27
    chi = 0.0
    for a in range(4):
        for b in range(a + 1, 4):
            expected = float(rounds * (p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b])))
            chi += (pairs.get((a, b), 0) - expected) ** 2 / expected
    assert chi < 20.52


@pytest.mark.parametrize("name", ["ksd", "hip", "hip_two_phase"])
def test_policies_prefer_the_clients_with_the_largest_scores(name):
    policy, counts = registry.selections()[name], torch.zeros(4)
    assert policy.score == name
    assert policy.with_floor is not None
    select = policy.with_floor(EPSILON)
    state = policy.init(4)
    assert_close(state.probabilities, torch.full((4,), 0.25).double())
    for number in range(1000):
        (one,), state = select(state, SCORES, 4, 1, Stream(0, "select", 0, number))
        counts[one] += 1
    assert_close(state.probabilities, probabilities(SCORES, EPSILON))
    assert ((counts / 1000 - probabilities(SCORES, EPSILON)).abs() < 0.06).all()


def test_without_a_floor_a_client_of_no_use_is_drawn_only_where_the_others_do_not_suffice():
    """Equations 17 and 24 as printed; which of the useless clients comes last is left to chance."""
    p, last = probabilities(SCORES, 0.0), set()
    for number in range(50):
        rng = [Stream(0, "select", 0, number) for _ in range(3)]
        assert gumbel_top(p, 1, rng[0])[0] in (0, 1)
        assert gumbel_top(p, 2, rng[1]) == (0, 1)
        three = gumbel_top(p, 3, rng[2])
        assert three[:2] == (0, 1)
        last |= set(three[2:])
    assert last == {2, 3}


def test_a_client_that_is_hardly_ever_drawn_comes_before_one_that_cannot_be():
    p = torch.tensor([1 - 1e-60, 0, 1e-60], dtype=torch.float64)
    assert {gumbel_top(p, 2, Stream(0, "select", 0, number)) for number in range(50)} == {(0, 2)}


@pytest.mark.parametrize("name", ["ksd", "hip", "hip_two_phase"])
def test_the_floor_of_a_runs_draws_is_the_runs_setting(name):
    """From the paper's own probabilities to uniform ones."""
    for epsilon in (0.0, 0.5, 1.0):
        settings = {"selection": name, "selection_epsilon": epsilon, "algorithm.particles": 3, "rounds": 1}
        plan = small_plan("dsvgd", settings)
        scores = rounds._scores(plan, plan.initial_server(), LocalCohort(plan, "loop"), 1)[0]
        (result,) = LocalFederation(plan, "loop")
        expected = probabilities(scores, epsilon)
        assert result.selection["largest"] == pytest.approx(float(expected.max()))
        assert result.selection["smallest"] == pytest.approx(float(expected.min()))
        assert expected.min() >= epsilon / 6
        assert (expected.max() == expected.min()) == (epsilon == 1)
    with pytest.raises(FedRayError, match=r"^selection_epsilon 1.5: a share lies in \[0, 1\]"):
        override(plan.cfg, {"selection_epsilon": 1.5})


def test_round_robin_takes_turns():
    policy = registry.selections()["round_robin"]
    state, found = policy.init(5), []
    for number in range(5):
        ids, state = policy.select(state, None, 5, 2, Stream(0, "select", 0, number))
        found.append(ids)
    assert found == [(0, 1), (2, 3), (0, 4), (1, 2), (3, 4)]


@pytest.mark.parametrize("name", registry.selections())
def test_a_policys_state_survives_a_checkpoint(name):
    policy = registry.selections()[name]
    _, state = policy.select(policy.init(4), SCORES, 4, 3, Stream(0, "select"))
    assert differing(tensor_files.unpack(tensor_files.pack(state), policy.init(4)), state) == []


@pytest.mark.parametrize(("name", "sent"), [("uniform", 0), ("ksd", 6 * 8), ("hip", 6 * 4 * 3 * 610),
                                            ("hip_two_phase", 6 * (4 * 3 * 610 + 8))])  # fmt: skip
def test_a_round_reports_how_it_chose_and_what_that_cost(name, sent):
    plan = small_plan("dsvgd", {"selection": name, "algorithm.particles": 3, "rounds": 1})
    (result,) = LocalFederation(plan)
    particles, sums = 4 * 3 * 610, 2 * 4 * 610
    assert result.bytes_up == 4 * (particles + sums) + sent
    down = {  # a client that has the particles for its score does not get them again to train
        "uniform": 4 * (particles + sums),
        "ksd": 6 * (particles + sums),
        "hip": 6 * (particles + sums),
        "hip_two_phase": 6 * (particles + sums + particles + 8),
    }
    assert result.bytes_down == down[name]
    assert payload_bytes(plan.view(plan.initial_server()), plan) == particles + sums
    reported = {"effective", "largest", "smallest", "clipped", "chosen", "average"}
    assert set(result.selection) == (set() if name == "uniform" else reported)
    if name != "uniform":
        assert 1 <= result.selection["effective"] <= 6
        assert EPSILON / 6 <= result.selection["smallest"] <= 1 / 6 <= result.selection["largest"]


@pytest.mark.parametrize("name", ["uniform", "round_robin"])
def test_a_watched_policy_chooses_as_ever_and_reports_what_it_did_not_look_at(name):
    """First-order HIP of those chosen and of all, at the particles with which the round begins."""
    settings = {"algorithm.particles": 3, "algorithm.hip": "first_order", "rounds": 3}
    plain, seen = (small_plan("dsvgd", settings | {"selection": chosen}) for chosen in (name, f"{name}_watched"))
    running, other = LocalFederation(plain, "loop"), LocalFederation(seen, "loop")
    first = rounds._scores(seen, seen.initial_server(), LocalCohort(seen, "loop"), 1)[0]
    found = list(other)
    assert [result.participants for result in running] == [result.participants for result in found]
    assert differing(running.snapshot(), other.snapshot()) == []
    assert all(set(result.selection) == {"chosen", "average"} for result in found)
    assert found[0].selection["average"] == pytest.approx(float(first.mean()))
    assert found[0].selection["chosen"] == pytest.approx(float(first[list(found[0].participants)].mean()))
    assert found[0].selection["chosen"] != found[0].selection["average"] != found[1].selection["average"]


def test_what_a_policy_reports_is_among_the_measures_of_the_round():
    from fedray.federate.report import measures

    (result,) = LocalFederation(small_plan("dsvgd", {"selection": "ksd", "algorithm.particles": 3, "rounds": 1}))
    assert measures(result)["selection/effective"] == result.selection["effective"]


def watched(plan, alive, most):
    """The plan with a count of the replies that exist at a time."""

    def watch(stage):
        def probe(*args):
            reply = stage.probe(*args)
            alive.add(reply)
            gc.collect()
            most.append(len(alive))
            return reply

        return stage._replace(probe=probe)

    scores = {name: tuple(map(watch, parts)) for name, parts in plan.algorithm.scores.items()}
    return plan._replace(algorithm=plan.algorithm._replace(scores=scores))


@pytest.mark.parametrize(("name", "held"), [("hip", 6), ("hip_two_phase", 2)])
def test_how_many_clients_scores_the_server_holds(name, held):
    """All that it is going to pair; of those that are only added up, the last one and the next."""
    alive, most = weakref.WeakSet(), []
    plan = watched(small_plan("dsvgd", {"selection": name, "algorithm.particles": 3}), alive, most)
    gc.freeze()  # what other tests left is not looked through at each count
    try:
        rounds._scores(plan, plan.initial_server(), LocalCohort(plan, "loop"), 1)
    finally:
        gc.unfreeze()
    assert max(most[:6]) == held


def test_hips_at_the_server_are_the_double_sums_to_ten_digits_though_scores_come_in_float32():
    plan = small_plan("dsvgd", {"algorithm.particles": 5})
    model, server = plan.model, plan.initial_server()
    mask = torch.arange(model.padded) < model.size
    scores = [mask * (0.1 + Stream(0, "s", k).normal([5, model.padded])) for k in range(7)]
    (stage,) = stages(lambda *args: (args[-1], args[-1]))["hip"]
    told = [stage.probe(plan.context, None, server, None, s) for s in scores]
    found = stage.combine(plan.context, server, iter(told))
    x = server.x.double()
    target, kernel = torch.stack(scores).double().mean(0), rbf(x)
    sums = [v_statistic(stein_matrix(x, s.double(), target, kernel, model.size)) for s in scores]
    assert_close(found, torch.stack(sums), rtol=1e-10, atol=0)
    assert trees.leaves(told)[0].dtype == torch.float32
