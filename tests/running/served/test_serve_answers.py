"""What a served run answers: the predictor's own numbers, and for every bad request a status and its reason."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fedray
from fedray import launch
from fedray.arrays import trees
from fedray.data import text
from fedray.running import finished
from fedray.running.served import answers
from fedray.running.served.answers import Answerer, Limits, RequestError, digest_of
from fedray.types import FedRayError

pytestmark = pytest.mark.usefixtures("unpainted")
FAST = ["--runtime", "local", "--rounds", "1", "--local-steps", "2", "--model.hidden", "8", "--tracking.uri", "none"]
TOKEN = "a token of some length"
X = np.random.default_rng(0).random((3, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of three runs: with both kinds of model, with a global one only, with personal ones only."""
    folders = {}
    for name, algorithm in (("both", "pfedbayes"), ("global", "fedavg"), ("personal", "fedper")):
        folders[name] = tmp_path_factory.mktemp("runs") / name
        assert launch.main([algorithm, *FAST, "--output", str(folders[name])]) == 0
    return folders


@pytest.fixture
def serve(runs):
    return lambda name="both", **terms: answers.opened(runs[name], Limits(**terms), digest_of(TOKEN))


def body(**fields):
    return json.dumps(fields).encode()


def ask(served, x=X, header=None, **fields):
    """The reply to a request, as JSON."""
    client = served.client(header)
    model = None if client is None else served.model(client)
    reply = served.answer(client, model, body(x=np.asarray(x).tolist(), **fields))
    assert reply.status == 200
    return json.loads(reply.text)


def test_a_run_on_texts_is_asked_with_texts(tmp_path):
    """With words that it has never seen, too: their vectors are of their letters."""
    path, folder = tmp_path / "films.csv", tmp_path / "run"
    path.write_text("text,label\n" + "good film,1\nbad film,0\ndull film,0\nfine film,1\n" * 10)
    data = ["--data.name", str(path), "--data.partition", "iid", "--clients", "2", "--model.lstm-hidden", "2"]
    assert launch.main(["fedavg", *FAST, *data, "--output", str(folder)]) == 0
    path.unlink()
    served = answers.opened(folder, Limits(max_inputs=2), digest_of(TOKEN))
    asked = ["a bad film", "nothing like it"]
    found = ask(served, asked)
    run = fedray.load(folder)
    assert found["probabilities"] == run.predict(asked).probs.tolist()
    vectors = text.Vectors(None).embedded(asked)
    assert vectors.shape == (2, 25, 50)
    assert found["probabilities"] == run.predict(vectors).probs.tolist()
    assert ask(served, json.loads(served.example().text)["x"])["label"]
    assert "x [B] of texts, or x [B, 25, 50], at most 2 inputs" in served.about("").text
    for wrong, reason in (
        (["a"] * 3, "x has 3 inputs"),
        (["a", 1], "the shape"),
        ("a", "the shape"),
        ([], "the shape"),
    ):
        with pytest.raises(RequestError, match=reason):
            served.answer(None, None, body(x=wrong))


def test_a_run_on_numbers_takes_no_texts(serve):
    with pytest.raises(RequestError, match="the shape"):
        serve().answer(None, None, body(x=["a"]))


@pytest.mark.parametrize(("header", "client"), [(None, None), ("0", 0), ("7", 7)])
def test_the_answer_is_what_the_predictor_predicts(serve, runs, header, client):
    found, own = ask(serve(), header=header), finished.load(runs["both"]).predict(X, client)
    assert (found["model"], found["client"]) == ("global" if client is None else "personal", client)
    assert found["probabilities"] == own.probs.tolist()
    assert found["entropy"] == own.entropy.tolist()
    assert found["mutual_information"] == own.mutual_information.tolist()
    assert found["label"] == own.probs.argmax(-1).tolist()
    assert found["set"] is found["abstain"] is None


def test_the_same_input_gets_the_same_answer_alone_in_company_and_again(serve):
    served = serve()
    whole, again, alone = (ask(served, x, "3") for x in (X, X, X[1:2]))
    assert whole == again
    np.testing.assert_allclose(whole["probabilities"][1], alone["probabilities"][0], rtol=1e-5)
    assert ask(served, header="3", seed=1)["probabilities"] != whole["probabilities"]


def test_clients_have_models_of_their_own_and_only_theirs_is_read(serve):
    served = serve()
    answers_of = {str(ask(served, header=str(client))["probabilities"]) for client in range(10)}
    assert len(answers_of) > 1
    kept = [leaf.untyped_storage().nbytes() for leaf in served.model(3).q if leaf is not None]
    own = served.run.snapshot.clients.row(3).q.mu
    assert max(kept) == own.nbytes  # a copy of one row, not a view of the file


def test_it_abstains_above_the_threshold_of_the_chosen_uncertainty(serve):
    sure = ask(serve(), header="3")
    for measure in ("entropy", "mutual_information"):
        middle = sorted(sure[measure])[1]
        found = ask(serve(abstain=middle, abstain_by=measure), header="3")
        assert found["abstain"] == [value > middle for value in sure[measure]]
        assert any(found["abstain"])
        assert not all(found["abstain"])


def test_a_prediction_with_a_conformal_set_is_answered_with_the_classes_in_it(serve, monkeypatch):
    likely = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()
    served = serve()
    predict = served.run.predict
    monkeypatch.setattr(served.run, "predict", lambda *args: predict(*args)._replace(set=likely))
    assert ask(served)["set"] == [[0, 3], [], [1]]


def test_an_unknown_client_gets_404_or_the_global_model(serve):
    strict, generous = serve(), serve(unknown_client="global")
    for header in ("10", "-1", "bob", "", "1e1", "٣", "9" * 5000):
        with pytest.raises(RequestError, match="this run has clients 0 to 9; leave the header out") as refused:
            strict.client(header)
        assert refused.value.status == 404
        assert len(str(refused.value)) < 200
        assert generous.client(header) is None


def test_a_method_without_personal_or_without_global_models_says_so(serve):
    assert ask(serve("global"))["model"] == "global"
    with pytest.raises(RequestError, match="fedavg has no personal models; leave the header out"):
        serve("global").client("0")
    assert ask(serve("personal"), header="0")["model"] == "personal"
    with pytest.raises(RequestError, match="fedper has no global model, so name a client") as refused:
        serve("personal").client(None)
    assert refused.value.status == 422
    with pytest.raises(FedRayError, match="fedper has no global model that could answer"):
        serve("personal", unknown_client="global")


def inputs(value=0.0):
    return np.full((1, 1, 8, 8), value, object).tolist()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 10_000, "not JSON"),
        (b"[]", 'must be {"x"'),
        (b"{}", 'must be {"x"'),
        (body(x=inputs(), client=3), 'must be {"x"'),
        (body(x=inputs(), seed="0"), "seed 0: it must be a whole number"),
        (body(x=inputs(), seed=-1), "seed -1"),
        (body(x=inputs(), seed=2**31), "seed 2147483648: it must be a whole number from 0 to 2147483647"),
        (body(x=inputs(), seed=True), "seed True"),
        (body(x=inputs()[0]), "one input without a list around it"),
        (body(x=[]), r"the shape \[0\]; it must have the shape \[B, 1, 8, 8\]"),
        (body(x=3), r"the shape \[\]"),
        (body(x={"0": 1}), r"the shape \[\]"),
        (body(x=[[0.0] * 64]), r"the shape \[1, 64\]"),
        (b'{"x": ' + b"[" * 40 + b"]" * 40 + b"}", r"the shape \[1, 1, .*B at least 1"),
        (body(x=[[[[0.0] * 8] * 7 + [[0.0] * 7]]]), "lists of unequal length"),
        (body(x=inputs() * 5), "has 5 inputs; send at most 4"),
        (body(x=inputs("1")), "not a number"),
        (body(x=inputs(None)), "not a number"),
        (body(x=inputs(True)), "not a number"),
        (body(x=inputs() + inputs(float("nan"))), r"x\[1\] holds NaN"),
        (body(x=inputs(float("inf"))), r"x\[0\] holds NaN, infinity"),
        (body(x=inputs(1e300)), r"x\[0\] holds .*float32 cannot hold"),
        (body(x=inputs(10**400)), "float32 cannot hold"),
    ],
)
def test_a_bad_request_is_refused_with_422_and_the_reason(serve, sent, reason):
    served = serve(max_inputs=4)
    with pytest.raises(RequestError, match=reason) as refused:
        served.answer(None, None, sent)
    assert refused.value.status == 422


def test_a_long_word_among_the_numbers_costs_no_memory_for_each_of_them(serve):
    import tracemalloc

    served = serve()
    sent = body(x=[[[["9" * 200_000] + [0.0] * 7] + [[0.0] * 8] * 7]] + inputs() * 200)
    tracemalloc.start()
    with pytest.raises(RequestError, match="not a number"):
        served.answer(None, None, sent)
    assert tracemalloc.get_traced_memory()[1] < 20 * len(sent)
    tracemalloc.stop()


def test_only_the_token_is_admitted(serve):
    served = serve()
    served.admit(f"Bearer {TOKEN}")
    served.admit(f"bearer {TOKEN}")
    for wrong in ("", TOKEN, f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ü"):
        with pytest.raises(RequestError, match="token is missing or wrong") as refused:
            served.admit(wrong)
        assert refused.value.status == 401


def test_a_diverged_model_is_said_not_sent(serve):
    served = serve("global")
    served.shared = trees.tree_map(lambda leaf: torch.full_like(leaf, float("nan")), served.shared)
    with pytest.raises(RequestError, match="diverged") as refused:
        ask(served)
    assert refused.value.status == 500


def test_its_example_has_the_right_shape_and_it_says_how_to_ask(serve):
    served = serve()
    assert len(served.example().text) <= served.max_bytes
    assert served.answer(None, None, served.example().text.encode()).status == 200
    text = served.about("http://127.0.0.1:8000").text
    assert "x [B, 1, 8, 8], at most 256 inputs -> 10 classes" in text
    assert f"-H '{answers.CLIENT}: 0' -d @input.json http://127.0.0.1:8000/predict" in text


def test_of_a_table_it_says_which_number_is_which(tmp_path):
    (tmp_path / "t.csv").write_text("dose,age,label\n" + "1.5,30,0\n2.5,40,1\n" * 20)
    data = ["--data.name", str(tmp_path / "t.csv"), "--data.partition", "iid", "--clients", "2"]
    assert launch.main(["fedavg", *FAST, *data, "--output", str(tmp_path / "run")]) == 0
    about = answers.opened(tmp_path / "run", Limits(), digest_of(TOKEN)).about("").text
    assert "x [B, 2], at most 256 inputs -> 2 classes\nthe numbers of an input: dose, age\n\nGET" in about


def test_it_asks_for_no_header_that_would_be_refused(serve):
    assert answers.CLIENT not in serve("global").about("").text
    assert "it is needed" in serve("personal").about("").text
    assert "without it the global model answers" in serve("both").about("").text


def test_a_run_on_data_from_python_is_served_if_its_models_need_none(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    fedray.run("fedavg", (x, y), clients=2, rounds=1, output=tmp_path / "run", figures="none")
    served = answers.opened(tmp_path / "run", Limits(), digest_of(TOKEN))
    assert len(ask(served, x[:2])["label"]) == 2


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"abstain": -0.1}, "abstain -0.1"),
        ({"abstain": float("nan")}, "abstain nan"),
        ({"samples": -1}, "samples -1"),
        ({"max_inputs": 0}, "max_inputs 0"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused_before_anything_starts(serve, terms, reason):
    with pytest.raises(FedRayError, match=reason):
        serve(**terms)


def test_largest_body_follows_from_the_largest_number_of_inputs(serve):
    served = serve(max_inputs=2)
    assert isinstance(served, Answerer)
    longest = json.dumps({"x": np.full((2, 1, 8, 8), -1.2345678901234567e-300).tolist()}, indent=None)
    assert len(longest) <= served.max_bytes
