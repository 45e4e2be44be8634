"""fedray.run gives the numbers of the command line, as DataFrames and figures, and takes what is the caller's own."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from torch import nn

import fedray
from fedray import launch, registry
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.data import digests
from fedray.library.errors import translated
from tests.helpers import ALGORITHMS

QUICK = {"rounds": 2, "local_steps": 2, "hidden": (8,)}
DIGITS = load_digits()
X, Y = DIGITS.images.astype(np.float32), DIGITS.target
OWN = {"scaling": "standard", "lr": 0.1, **QUICK}


def without_times(rows):
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def finished():
    return fedray.run("pfedbayes", **QUICK)


def test_the_bits_are_those_of_the_command_line(tmp_path):
    words = "pfedbayes --rounds 2 --local-steps 2 --model.hidden 8 --data.partition dirichlet --data.alpha 0.3 --zeta 5"
    words += f" --seed 4 --runtime local --tracking.uri none --figures none --output {tmp_path / 'launch'}"
    assert launch.main(words.split()) == 0
    called = fedray.run(
        "pfedbayes",
        partition="dirichlet",
        alpha=0.3,
        zeta=5.0,
        seed=4,
        output=tmp_path / "run",
        figures="none",
        **QUICK,
    )
    assert called.folder == tmp_path / "run"
    for name in ("global.safetensors", "personal.safetensors", "clients.csv", "config.json", "partition.npz"):
        assert (tmp_path / "launch" / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name
    rows = [list(csv.DictReader((tmp_path / folder / "metrics.csv").open())) for folder in ("launch", "run")]
    assert without_times(rows[0]) == without_times(rows[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_method_changes_of_the_experiment_holds_here_too(name):
    """Such as minibatches of 50 for BPFed: the settings are those of the command line, by name or as an object."""
    record = registry.algorithms()[name]
    settings = {"model": "mlp", "clients_per_round": 10} if name == "svgd" else {}
    for algorithm in (name, record.config()):
        cfg = fedray.run(algorithm, play=False, **settings).plan.cfg
        assert {field: getattr(cfg, field) for field in record.defaults} == dict(record.defaults)


def test_the_results_are_frames_of_rounds_and_clients(finished):
    assert list(finished.rounds.index) == [1, 2]
    assert list(finished.clients.index) == list(range(10))
    examples, accuracy = finished.clients.test_examples, finished.clients.personal_accuracy
    assert (examples * accuracy).sum() / examples.sum() == pytest.approx(finished.rounds["personal/accuracy"][2])
    assert finished.summary["personal"]["accuracy"] == finished.rounds["personal/accuracy"][2]
    assert isinstance(finished.clients, pandas.DataFrame)
    assert finished.clients.dtypes.map(lambda kind: kind.kind in "if").all()


def test_rounds_are_played_when_they_are_reached():
    run = fedray.run("fedavg", play=False, **QUICK)
    assert (len(run), run.finished) == (0, False)
    with pytest.raises(fedray.FedRayError, match="round 0 of 2; end it by"):
        run.predict(X[:1])
    first = next(iter(run))
    assert (first.number, len(run)) == (1, 1)
    assert [played.number for played in run] == [1, 2]  # again from the first one, which is not played twice
    assert run.finished
    assert run.rounds["global/accuracy"].tolist() == [played.measures["global/accuracy"] for played in run]


def test_a_callback_ends_a_run_and_its_result_is_that_of_so_many_rounds():
    seen = []
    stopped = fedray.run("fedavg", callbacks=[seen.append, lambda played: played.number == 2], **QUICK | {"rounds": 9})
    assert [played.number for played in seen] == [1, 2]
    whole = fedray.run("fedavg", **QUICK)
    assert stopped.plan.cfg == whole.plan.cfg
    for ours, others in zip(stopped.models.snapshot.server, whole.models.snapshot.server, strict=True):
        assert torch.equal(ours, others)
    assert stopped.summary["global"] == whole.summary["global"]


@pytest.mark.parametrize("settings", [{}, {"eval_clients": 2}])
def test_the_uncertainty_report_of_a_stopped_run_is_that_of_so_many_rounds(settings):
    common = QUICK | {"uncertainty": True, "clients_per_round": 2} | settings
    stopped = fedray.run("pfedbayes", callbacks=[lambda played: played.number == 2], **common | {"rounds": 9})
    whole = fedray.run("pfedbayes", **common)
    for name in ("personal", "global"):
        assert stopped.summary["uncertainty"][name] == whole.summary["uncertainty"][name]


def test_an_interrupted_run_says_so():
    run = fedray.run("fedavg", play=False, callbacks=[lambda played: 1 / 0], **QUICK)
    with pytest.raises(ZeroDivisionError):
        run.play()
    assert run.stop().summary["rounds"] == 1  # the caller's mistake costs no round


def test_a_run_predicts_as_it_does_when_it_is_loaded(finished):
    x = X[:5, None]
    own = finished.predict(x, client=3)
    loaded = fedray.load(finished.folder).predict(x, client=3)
    assert torch.equal(own.probs, loaded.probs)


def test_figures_are_objects_that_a_notebook_shows(finished):
    assert {"accuracy", "reliability", "accuracy_clients"} <= set(finished.figures)
    figure = finished.plot("accuracy_clients")
    assert isinstance(figure, Figure)
    assert figure._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(fedray.FedRayError, match="did you mean reliability"):
        finished.plot("reliabilty")
    with pytest.raises(fedray.FedRayError, match="nothing was measured"):
        finished.plot("shift")


def test_a_run_is_a_table_in_a_notebook(finished):
    page = finished._repr_html_()
    assert f"{100 * finished.summary['personal']['accuracy']:.2f}" in page
    assert "personal model" in page
    started = fedray.run("fedavg", play=False, **QUICK)
    assert "round 0 of 2" in started._repr_html_()


def test_own_arrays_and_datasets_are_the_same_data():
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    frame = pandas.DataFrame(X.reshape(len(X), -1)).rename(columns=str).assign(y=Y)
    runs = [fedray.run("fedavg", data, **OWN) for data in ((X, Y), tensors, frame)]
    for run in runs[1:]:
        assert run.rounds["global/nll"].tolist() == runs[0].rounds["global/nll"].tolist()
    assert runs[0].plan.cfg.data.name == "given"
    owned = fedray.run("fedavg", (X, Y, np.where(np.arange(len(Y)) % 3 > 0, "ann", "bob")), **OWN)
    assert owned.clients.name.tolist() == ["ann", "bob"]


def test_three_classes_are_dealt_without_being_asked_for():
    some = Y < 3
    run = fedray.run("fedavg", (X[some], Y[some]), **OWN)
    assert run.plan.model.classes == 3


def test_index_lists_are_the_clients():
    parts = {"ann": range(100), "bob": np.arange(100, 300), "cy": ([300, 301, 302], [303])}
    run = fedray.run("fedavg", (X, Y), partition=parts, test_fraction=0.2, **OWN)
    assert run.clients.name.tolist() == ["ann", "bob", "cy"]
    assert run.clients.train_examples.tolist() == [80, 160, 3]
    dealt = run.plan.partition
    assert set(dealt.train[0]) | set(dealt.test[0]) == set(range(100))
    assert (dealt.train[2].tolist(), dealt.test[2].tolist()) == ([300, 301, 302], [303])
    again = fedray.run("fedavg", (X, Y), partition=parts, test_fraction=0.2, **OWN)
    assert all(map(np.array_equal, dealt.train, again.plan.partition.train))


def test_an_own_metric_is_measured_on_every_client():
    labels = list(range(10))
    metrics = {"loss": lambda probs, y: log_loss(y, probs, labels=labels), "surest": lambda probs, y: probs.max()}
    run = fedray.run("pfedbayes", metrics=metrics, **QUICK)
    for kind in ("personal", "global"):  # our own NLL is such a metric, too
        assert run.clients[f"{kind}_loss"].to_numpy() == pytest.approx(run.clients[f"{kind}_nll"].to_numpy(), rel=1e-6)
    assert run.rounds["personal/loss"][2] == pytest.approx(run.clients.personal_loss.mean())
    assert run.summary["personal"]["surest"] == pytest.approx(run.clients.personal_surest.mean())
    plain = fedray.run("pfedbayes", **QUICK)
    assert plain.rounds["personal/nll"].tolist() == run.rounds["personal/nll"].tolist()
    only_global = fedray.run("fedavg", metrics=metrics, **QUICK)
    assert "personal_loss" not in only_global.clients
    with pytest.raises(fedray.FedRayError, match=r"metrics\['bad'\] failed at client 0 \(ZeroDivisionError"):
        fedray.run("fedavg", metrics={"bad": lambda probs, y: 1 / 0}, **QUICK)


def test_an_own_metric_may_be_nan_for_all_clients_in_some_rounds():
    calls = iter(range(10**6))  # 30 of each round: three metrics, ten clients

    def measured(*rounds):
        return lambda probs, y: 1.0 if next(calls) // 30 + 1 in rounds else float("nan")

    metrics = {"early": measured(10), "late": measured(11), "never": measured()}
    run = fedray.run("fedavg", metrics=metrics, **QUICK | {"rounds": 11})
    assert run.summary["protocol"]["rounds"] == "mean of 2 evaluations, rounds 10-11"
    found = run.summary["global"]
    assert (found["early"], found["late"], "never" in found) == (1.0, 1.0, False)


class Net(nn.Module):
    """A network that is no chain: a skip connection, a norm, a scalar parameter."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 16)
        self.norm = nn.LayerNorm(16)
        self.skip = nn.Linear(64, 16, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(torch.relu(self.norm(self.inner(x))) * self.scale + self.skip(x))


@pytest.mark.parametrize(("algorithm", "settings"), [("fedper", {"lr": 0.05}), ("pfedbayes", {"lr_personal": 0.01})])
def test_an_own_module_is_trained(algorithm, settings):
    run = fedray.run(algorithm, model=Net(), rounds=3, clients=3, local_steps=4, **settings)
    losses = run.rounds["personal/nll"]
    assert losses[3] < losses[1]
    assert run.plan.model.size == sum(p.numel() for p in Net().parameters())
    x = X[:3, None]
    loaded = fedray.load(run.folder, model=Net())
    assert torch.equal(loaded.predict(x, client=1).probs, run.predict(x, client=1).probs)
    with pytest.raises(fedray.FedRayError, match=r"load\(folder, model=...\)"):
        fedray.load(run.folder)


REFUSED = {
    "algorithm": ({"algorithm": "fedavgg"}, "algorithm 'fedavgg' is not known; did you mean fedavg"),
    "data": ({"data": "minst"}, 'data="minst": not a dataset; did you mean mnist'),
    "array": ({"data": (X, Y[:5])}, r"data: y has shape \[5\]"),
    "nothing": ({"data": None}, "^data=None: there are no examples; give the name of a dataset, a file, or arrays"),
    "kind": ({"data": 3}, "data=int: is not a Dataset"),
    "unknown": ({"local_step": 3}, "local_step=3: fedray.run has no such argument.*did you mean local_steps"),
    "setting": ({"lr": -1.0}, "^lr=-1.0: a learning rate is positive"),
    "alpha": ({"partition": "dirichlet", "alpha": 0.0}, "^alpha=0.0: not a concentration"),
    "ambiguous": ({"algorithm": "fedamp", "alpha": 1.0}, "FedAMP and DataConfig have a setting of this name"),
    "partition": ({"partition": "dirichlett"}, "^partition 'dirichlett' is not known"),
    "indices": ({"partition": {"ann": [0.5, 1]}}, "^partition: client 'ann' has no list"),
    "one name": ({"partition": {1: [1, 2], "1": [3, 4]}}, "^partition: two clients have the name '1'; give each"),
    "twice": ({"partition": {0: [1, 2], 1: [2, 3]}}, "occurs twice in the partition"),
    "model": ({"model": 3}, "^model=3: is no network"),
    "buffers": ({"model": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))}, "^model:.*running_mean"),
    "outputs": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 5))}, "^model: maps.*not to the 10 outputs"),
    "taken": ({"metrics": {"nll": max}}, r"^metrics\['nll'\]: is no free name"),
    "of the end": ({"metrics": {"stability": max}}, r"^metrics\['stability'\]: is no free name"),
    "of the report": ({"metrics": {"aurc": max}}, r"^metrics\['aurc'\]: is no free name"),
    "unnamed": ({"metrics": max}, "^metrics=<built-in function max>: has no names"),
    "callback": ({"callbacks": max}, "^callbacks=<built-in function max>: are not functions"),
    "callbacks": ({"callbacks": [max, 3]}, "^callbacks=.*: are not functions"),
    "files": ({"data": (X, Y), "root": "/tmp"}, '^root="/tmp": is for data in files'),
    "clients": ({"clients_per_round": 11}, "^clients_per_round=11: .* or raise clients$"),
    "ood": ({"ood": "mnist"}, "^ood="),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(fedray.FedRayError, match=message) as caught:
        fedray.run(**{"algorithm": "fedavg", "play": False, **arguments})
    assert "--" not in str(caught.value)
    assert "`" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"sampler": "map", "prior": "fixed"}, {"prior": "fixed", "sampler": "map"}])
def test_settings_that_need_each_other_may_come_in_any_order(settings):
    cfg = fedray.run("fedpop", play=False, **settings).plan.cfg.algorithm
    assert (cfg.sampler, cfg.prior) == ("map", "fixed")


def test_messages_are_translated_from_settings_and_options():
    assert translated("use `data.partition=iid` or `model.hidden`") == 'use partition="iid" or hidden'
    assert translated("--tracking.uri x: give --on-failure skip") == "tracking x: give on_failure skip"
    assert translated("`algorithm.zeta=5` in `data.name`") == "zeta=5 in data"


def test_settings_of_an_algorithm_are_given_by_name_or_as_an_object():
    assert fedray.run("fedavg", play=False, lr=0.5).plan.cfg.algorithm == FedAvg(lr=0.5)
    assert fedray.run(FedAvg(lr=0.5), play=False, batch_size=7).plan.cfg.batch_size == 7
    experiment = fedray.run("fedavg", fedray.DataConfig(alpha=0.1), play=False, partition="dirichlet").plan.cfg
    assert (experiment.data.alpha, experiment.data.partition) == (0.1, "dirichlet")


def test_nothing_is_said_and_nothing_is_left(finished, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = fedray.run("fedavg", **QUICK)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
    folder = run.folder
    assert folder.is_dir()
    del run
    assert not folder.exists()


def test_states_on_disk_answer_after_the_run():
    x = X[:5, None]
    memory, disk = (fedray.run("pfedbayes", client_states=kind, **QUICK) for kind in ("memory", "disk"))
    assert torch.equal(memory.predict(x, client=3).draws, disk.predict(x, client=3).draws)


@pytest.mark.parametrize(
    ("inputs", "samples", "words"),
    [
        ([["a"] * 64], None, "x holds <U1 values"),
        (X[:1], -1, "samples -1"),
        (X[:1] + np.float32("nan"), None, r"x holds NaN \(a missing value\)"),
        ([[1, 2], [3]], None, "x is no array; give .*, or lists of one length"),
        (np.ma.masked_less(X[:1], 1), None, r"x lacks \d+ of its values; fill them in"),
        (torch.zeros(1, 1, 8, 8).bfloat16(), None, "x is no array; give .* a tensor .* of a type that NumPy has"),
        ([Image.fromarray(X[0].astype(np.uint8)).quantize()], None, "x is an image with a palette"),
        (X[:1], 1.5, "samples 1.5: is not a whole number"),
        (X[:1], "3", "samples '3': is not a whole number"),
    ],
)
def test_what_cannot_be_predicted_is_named(finished, inputs, samples, words):
    with pytest.raises(fedray.FedRayError, match=words):
        finished.predict(inputs, samples=samples)


@pytest.mark.parametrize("same", [lambda x: x.astype(np.longdouble), lambda x: x[::-1].copy()[::-1], np.asfortranarray])
def test_the_same_numbers_are_the_same_inputs_however_they_are_stored(finished, same):
    x = X[:7, None]
    assert torch.equal(finished.predict(same(x)).probs, finished.predict(x).probs)
    assert not finished.predict(x[:0]).probs.numel()


def test_an_array_in_the_place_of_a_name_is_not_printed():
    with pytest.raises(fedray.FedRayError, match=r'^ood="array\(\[.{30,40}\.\.\.": is not a string; give a string$'):
        fedray.run(uncertainty=True, ood=X)


@pytest.mark.parametrize("client", [1.0, True])
def test_a_client_is_a_whole_number_or_a_name(finished, client):
    with pytest.raises(fedray.FedRayError, match=f"client {client}: is not a whole number"):
        finished.predict(X[:1, None], client=client)
    of_numpy = finished.predict(X[:1, None], client=np.int64(1)).probs
    assert torch.equal(of_numpy, finished.predict(X[:1, None], client=1).probs)


def test_what_one_must_know_of_the_data_is_said(capfd):
    fedray.run("fedavg", (X.astype(np.uint8), Y), **QUICK)
    warned = capfd.readouterr().err
    assert warned.startswith("data     x: images 8 x 8 are grey")
    assert "warning: the largest pixel is 16" in warned
    assert 'scaling="standard"' in warned


def test_models_that_train_before_they_predict_want_the_examples_of_their_run(tmp_path):
    """Their file may hold others by now."""
    x, y = X.reshape(len(X), -1), Y
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    settings = {**OWN, "scaling": "feature"}
    run = fedray.run("fedavg", tmp_path / "mine.npz", output=tmp_path / "run", ft=2, **settings)
    loaded = fedray.load(tmp_path / "run")
    assert torch.equal(loaded.predict(x[:2], client=0).probs, run.predict(x[:2], client=0).probs)
    np.savez(tmp_path / "mine.npz", x=x, y=y[::-1])
    with pytest.raises(fedray.FedRayError, match=r"mine\.npz: holds other examples than those of this run"):
        fedray.load(tmp_path / "run").predict(x[:2], client=0)
    assert fedray.load(tmp_path / "run").predict(x[:2]).probs.shape == (2, 10)  # the global model needs none


def test_data_are_given_again_to_models_that_train_before_they_predict(tmp_path):
    run = fedray.run("fedper", (X, Y), output=tmp_path / "run", ft=2, **OWN)
    with pytest.raises(fedray.FedRayError, match=r"load\(folder, data=...\)"):
        fedray.load(tmp_path / "run").predict(X[:2], client=0)
    again = fedray.load(tmp_path / "run", data=(X, Y))
    assert torch.equal(again.predict(X[:2], client=0).probs, run.predict(X[:2], client=0).probs)
    with pytest.raises(fedray.FedRayError, match="are not the examples of this run"):
        fedray.load(tmp_path / "run", data=(X, Y[::-1]))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.norm(x.flatten(1)))


def test_results_from_before_scales_lay_around_1_are_refused(tmp_path):
    """Their vectors hold the scales themselves, which would be read as distances from 1."""
    run = fedray.run("pfedbayes", (X, Y), output=tmp_path / "run", model=Normed(), rounds=2, local_steps=2)
    again = fedray.load(tmp_path / "run", model=Normed())
    assert torch.equal(again.predict(X[:2], client=0).probs, run.predict(X[:2], client=0).probs)
    config = tmp_path / "run" / "config.json"
    described = json.loads(config.read_text())
    described["digests"]["model.layers"] = digests.of_layers(Normed(), "")
    config.write_text(json.dumps(described))
    with pytest.raises(fedray.FedRayError, match="another network, or of a FedRay that did not keep scales"):
        fedray.load(tmp_path / "run", model=Normed())
