"""Algorithms, policies, datasets, partitions and networks are one file each, inside and outside of the checkout."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedray import DataConfig, Experiment, LocalFederation, launch, load, make_plan, registry
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.running.writer import Writer, describe
from fedray.types import FedRayError

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs/add-a-dataset.md").read_text(encoding="utf-8")
RINGS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[-1]
PROX = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-an-algorithm.md").read_text(encoding="utf-8"), re.DOTALL)[0]
OURS = "from fedray.algorithms.averaging import fedavg\nALGORITHM = fedavg.ALGORITHM._replace(config={}"
LOOSE = "from dataclasses import dataclass\n\n\n@dataclass\nclass Own:\n    lr: float = 0.1\n\n\n"
POLICY = "from fedray.selection import uniform\n\nSELECTION = uniform.SELECTION._replace(summary='mine')\n"
PLUG_INS = {"rings": RINGS, "my_prox": PROX, "my_policy": POLICY}
USE = "--plugin rings --plugin my_prox my_policy --data.name rings --selection my_policy --rounds 2 --tracking.uri none"


@pytest.fixture
def folder(tmp_path):
    for name, code in PLUG_INS.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    return tmp_path


def call(folder, *words, path=ROOT):
    env = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=400)


def launched(folder, *words):
    found = call(folder, "-m", "fedray.launch", *words)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_five_plug_ins_outside_of_the_checkout_play_and_are_found_again(folder):
    launched(folder, "my_prox", *USE.split(), "--runtime", "local", "--output", "out", "--json")
    noted = json.loads((folder / "out/config.json").read_text())
    assert sorted(noted["plug_ins"]) == ["my_policy", "my_prox", "rings"]
    assert (noted["experiment"]["model"]["name"], noted["experiment"]["data"]["partition"]) == ("rings", "rings")
    loads = "import fedray; print(fedray.load('{}'))"
    assert "my_prox, 4 clients" in call(folder, "-c", loads.format("out")).stdout
    elsewhere = call("/", "-c", loads.format(folder / "out"))
    assert "used the plug-in" in elsewhere.stderr
    assert "FedRayError" in elsewhere.stderr


@pytest.mark.slow
def test_a_run_that_goes_on_with_a_changed_plug_in_says_so_and_has_a_row_of_its_own(folder):
    words = ["my_prox", "--plugin", "my_prox", "--runtime", "local", "--rounds", "1", "--json"]
    launched(folder, *words, "--output", "first", "--seed", "0")
    launched(folder, *words, "--output", "second", "--seed", "1")
    file = folder / "my_prox.py"
    file.write_text(f"# a comment\n{PROX}", encoding="utf-8")
    assert "has changed" not in call(folder, "-m", "fedray.launch", "--resume", "second", "--rounds", "2").stderr
    file.write_text(f"{PROX}\nMORE = 1\n", encoding="utf-8")
    changed = call(folder, "-m", "fedray.launch", "--resume", "first", "--rounds", "2")
    assert "the plug-in my_prox has changed since this run began" in changed.stderr
    digests = [json.loads((folder / name / "config.json").read_text())["digests"] for name in ("first", "second")]
    old, new = digests[0]["plug_in.my_prox"].split("+")
    assert digests[1]["plug_in.my_prox"] == old
    assert new != old
    assert json.loads((folder / "first/run.json").read_text())["digests"] == digests[0]
    table = call(folder, "-m", "fedray.compare", "--metrics", "personal/accuracy").stdout
    assert f"plug_in.my_prox={old}+{new}" in table


@pytest.mark.slow
@pytest.mark.ray
def test_plug_ins_reach_the_actors(folder):
    launched(folder, "my_prox", *USE.split(), "--runtime", "local", "--output", "local", "--json")
    launched(folder, "my_prox", *USE.split(), "--output", "ray", "--clients-per-actor", "2", "--json")
    for name in ("global", "personal"):
        file = f"{name}.safetensors"
        assert (folder / "local" / file).read_bytes() == (folder / "ray" / file).read_bytes()


def test_a_file_in_its_folder_is_a_dataset_a_partition_and_a_network(tmp_path):
    for package in ("fedray", "actors", "tune"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for place in ("data/datasets", "data/partitions", "nets/networks"):
        (tmp_path / "fedray" / place / "rings.py").write_text(RINGS, encoding="utf-8")
    (tmp_path / "fedray/selection/my_policy.py").write_text(POLICY, encoding="utf-8")
    words = "fedavg --data.name rings --selection my_policy --rounds 1 --tracking.uri none --runtime local --json"
    found = call(tmp_path, "-m", "fedray.launch", *words.split(), path=tmp_path)
    assert found.returncode == 0, found.stderr


@pytest.fixture
def fresh(monkeypatch):
    """A registry that forgets the plug-ins of a test."""
    monkeypatch.setattr(registry, "_named", {})
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("name", "code", "match"),
    [
        (
            "no_such_module",
            None,
            r"--plugin no_such_module: cannot be imported \(ModuleNotFoundError.*; give the name",
        ),
        ("broken_pi", "1 / 0", r"cannot be imported because of its line 1 \(ZeroDivisionError.*; correct the module"),
        ("empty_pi", "x = 1", r"--plugin empty_pi: defines none of ALGORITHM, SELECTION, DATASET"),
        ("wrong_pi", "NETWORK = 3", r"--plugin wrong_pi: NETWORK is 3; it must be a NetworkRecord"),
        ("uniform", POLICY, r"--plugin uniform: the name 'uniform' is taken by another SELECTION"),
        (
            "same_pi",
            "from fedray.algorithms.averaging.fedavg import ALGORITHM",
            r"--plugin same_pi: its settings class FedAvg is that of fedavg; define a subclass",
        ),
        (
            "bare_pi",
            PROX.replace("mu: float = 0.01", "mu: float"),
            r"bare_pi: the setting mu of \w+ has no default",
        ),
        (
            "undecorated_pi",
            f"from fedray.algorithms.averaging import fedavg\nclass Own(fedavg.FedAvg):\n    mu: float = 0.1\n"
            f"{OURS.format('Own')})",
            r"undecorated_pi: mu of its config Own is no setting, for Own is no dataclass of its own; decorate it",
        ),
        (
            "again_pi",
            f"from fedray.algorithms.averaging import fedavg\nclass Own(fedavg.FedAvg):\n    lr: float = 0.5\n"
            f"class Mine(Own):\n    pass\n{OURS.format('Mine')})",
            r"again_pi: lr of its config Own is no setting",
        ),
        (
            "plain_pi",
            "from fedray.algorithms.averaging.fedavg import ALGORITHM\nALGORITHM = ALGORITHM._replace(config=int)",
            r"--plugin plain_pi: its config int is no dataclass",
        ),
        (
            "object_pi",
            f"{OURS.format('fedavg.FedAvg()')})",
            r"object_pi: its config FedAvg\(.*\) is an object; give the class FedAvg",
        ),
        (
            "loose_pi",
            f"{LOOSE}{OURS.format('Own')})",
            r"loose_pi: its config Own can be changed; decorate it with @dataclass\(frozen=True\)",
        ),
        (
            "list_pi",
            PROX.replace("mu: float = 0.01", "mu: list[int] = None"),
            r"the setting mu of \w+ is list\[int\]; a",
        ),
        (
            "names_pi",
            PROX.replace("mu: float = 0.01", "mu: Path = None"),
            r"is not known \(name 'Path' is not defined\)",
        ),
        ("no_pi", PROX.replace("step=step", "step=step, predict_personal=None, predict_global=None"), "has neither"),
        ("dial_pi", PROX.replace('"mu": Log', '"nu": Log'), r"space has 'nu', no setting of FedPerProx; .*choose from"),
        (
            "tuple_pi",
            PROX.replace("LogUniform(1e-4, 1.0)", "(0, 1)"),
            r"the space of mu is \(0, 1\); it must be LogUni",
        ),
        ("search_pi", PROX.replace("step=step", "step=step, presets=['x']"), r"presets is \['x'\]; it must be a dict"),
        (
            "preset_pi",
            PROX.replace("step=step", "step=step, presets={'x': {}}"),
            r"the preset x is {}; it must be a Preset",
        ),
        (
            "score_pi",
            PROX.replace("step=step", "step=step, scores={'x': step}"),
            r"the score x is .*it must be a tuple of",
        ),
        ("exit_pi", "import sys\nsys.exit(3)", r"cannot be imported because of its line 2 \(SystemExit: 3\)"),
        ("my-pi", None, r"my-pi: is not the name of a module; give my_pi, .*; rename the file to my_pi\.py"),
        ("./my_pi.py", None, r"\./my_pi\.py: is not the name of a module; give my_pi, with my_pi\.py on"),
        (
            "load_pi",
            RINGS.replace("def load(cfg, classes=None)", "def load(cfg)"),
            "load, the load of",
        ),
        ("proto_pi", RINGS.replace("protocol=Protocol(", "protocol=dict("), r"protocol is {.*}; it must be a Protocol"),
    ],
)
def test_what_cannot_be_registered_is_refused(tmp_path, monkeypatch, name, code, match):
    monkeypatch.syspath_prepend(tmp_path)
    if code is not None:
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    with pytest.raises(FedRayError, match=match):
        registry.plug_in(name)
    assert registry.plug_ins() == ()


@pytest.mark.usefixtures("fresh")
def test_a_module_is_registered_once_under_its_name(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    registry.plug_in("rings")
    registry.plug_in("rings")
    assert registry.plug_ins() == ("rings",)
    assert {"rings", "digits"} <= set(registry.datasets())
    assert registry.plug_ins_of({registry.NETWORK: "rings"}) == ("rings",)
    assert registry.plug_ins_of({registry.NETWORK: "mlp"}) == ()
    assert registry.sources(("rings",)) == [folder / "rings.py"]
    with pytest.raises(
        FedRayError, match=r"runs/x: used the plug-in gone_pi, which cannot be used here; .*No module named"
    ):
        registry.plug_in_again(("rings", "gone_pi"), "runs/x")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("value", ["rings", "rings:DATASET"])
def test_entry_points_of_installed_packages_are_found(folder, monkeypatch, value):
    monkeypatch.syspath_prepend(folder)
    point = importlib.metadata.EntryPoint("circles", value, "fedray.datasets")
    points = {"fedray.datasets": [point]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points.get(group, []))
    assert registry.datasets()["circles"].summary == "two rings"
    registry._installed.cache_clear()
    points["fedray.datasets"] = [importlib.metadata.EntryPoint("digits", value, "fedray.datasets")]
    with pytest.raises(FedRayError, match="the name 'digits' is taken"):
        registry.datasets()
    points["fedray.datasets"] = [importlib.metadata.EntryPoint("circles", "gone_pi", "fedray.datasets")]
    with pytest.raises(FedRayError, match=r"entry point circles = gone_pi of fedray.datasets: cannot be imported"):
        registry.datasets()


@pytest.mark.usefixtures("fresh")
def test_an_entry_point_with_wrong_parameters_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = f"{POLICY}\nSELECTION = SELECTION._replace(select=lambda state: ((), state))\n"
    (tmp_path / "wrong_policy_pi.py").write_text(code, encoding="utf-8")
    point = importlib.metadata.EntryPoint("mine", "wrong_policy_pi", "fedray.selection")
    points = {"fedray.selection": [point]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points.get(group, []))
    with pytest.raises(FedRayError, match=r"entry point mine = wrong_policy_pi .*the select of its Selection, takes"):
        registry.selections()


@pytest.mark.usefixtures("fresh")
def test_a_loaded_run_knows_its_plug_ins_and_passes_them_on(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    registry.plug_in("rings")
    plan = make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(name="rings"), rounds=1))
    assert plan.plug_ins == ("rings",)
    with LocalFederation(plan) as federation:
        writer = Writer(folder / "out")
        writer.run(plan, federation.snapshot(), ())
        writer.commit()
    loaded = load(folder / "out").plan
    assert describe(loaded)["plug_ins"] == ["rings"]  # what newcomers write of it
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(registry.programs, "rings", f"{RINGS}\nMORE = 1\n")
    load(folder / "out")
    assert "the plug-in rings has changed since" in capsys.readouterr().err


def rings_that(folder, monkeypatch, code):
    """A plan of the plug-in rings with another end."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "rings", raising=False)
    (folder / "rings.py").write_text(f"{RINGS}\n{code}\n", encoding="utf-8")
    registry.plug_in("rings")
    return make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(name="rings")))


DEALS = "PARTITION = PARTITION._replace(deal=lambda *words: changed(deal(*words)))"
SCALING = "import numpy as np\nfrom fedray.data.scaling import Scaling"
LOADS = "DATASET = DATASET._replace(load=lambda *words: changed(load(*words)))"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("p._replace(train=p.test)", "example .* occurs twice"),
        ("p._replace(train=p.train[1:], test=p.test[1:])", "it deals to 3 clients, and 4 are asked for"),
        ("p._replace(test=(p.test[0][:0], *p.test[1:]))", "client 0 has no examples to test"),
        (
            "p._replace(test=(p.test[0] + 800, *p.test[1:]))",
            "client 0 has example .* to test, .* 0 to 799",
        ),
        ("p.train", "one list for training and one for testing"),
    ],
)
def test_a_partition_of_a_plug_in_that_deals_wrongly_is_refused(folder, monkeypatch, changed, reason):
    with pytest.raises(FedRayError, match=rf"data.partition rings: .*{reason}.*correct the function deal"):
        rings_that(folder, monkeypatch, f"changed = lambda p: {changed}\n{DEALS}")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("d._replace(y=d.y + 1)", "labels are not 800 integers that number 2 classes"),
        ("d._replace(x=d.x / np.float32(0))", "x holds NaN or infinity"),
        ("d._replace(users=d.y - 1)", "users are not 800 integers"),
        ("d.x", "is not a Dataset"),
        ("d._replace(scaling=255)", r"its scaling is no Scaling of NumPy arrays that fit inputs of shape \[2\]"),
        ("d._replace(scaling=Scaling(np.zeros(3), np.ones(3)))", "its scaling is no Scaling of NumPy arrays that fit"),
    ],
)
def test_a_dataset_of_a_plug_in_that_is_none_is_refused(folder, monkeypatch, changed, reason):
    with (
        np.errstate(all="ignore"),
        pytest.raises(FedRayError, match=rf"data.name rings: load.*{reason}.*correct this function"),
    ):
        rings_that(folder, monkeypatch, f"{SCALING}\nchanged = lambda d: {changed}\n{LOADS}")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "changed = lambda d: 1 / 0\n" + LOADS,
            r"dataset rings: load raises ZeroDivisionError: .* \(rings\.py, line \d+\)",
        ),
        (
            "changed = lambda p: p.size\n" + DEALS,
            r"partition rings: deal raises AttributeError: .* \(rings\.py, line \d+\)",
        ),
        (
            f"turns = []\nchanged = lambda p: turns.append(p) or p._replace(train=p.train[:: 1 - 2 * (len(turns) % 2)])"
            f"\n{DEALS}",
            "it deals otherwise when it is asked again; take all randomness from the rng",
        ),
        ("NETWORK = NETWORK._replace(layers=lambda *words: 1 / 0)", "network rings: layers raises ZeroDivisionError"),
        (
            "NETWORK = NETWORK._replace(layers=lambda *words: nn.Linear(2, 2))",
            "layers returns a Linear; return an nn.Seq",
        ),
        (
            "NETWORK = NETWORK._replace(layers=lambda *words: nn.Sequential(*layers(*words), nn.LogSoftmax(-1)))",
            "the network ends in LogSoftmax, and its outputs are logits",
        ),
    ],
)
def test_a_function_of_a_plug_in_that_fails_is_named_with_its_line(folder, monkeypatch, code, reason):
    with pytest.raises(FedRayError, match=reason):
        rings_that(folder, monkeypatch, f"from torch import nn\n{code}")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", ["rounds", "runtime", "json"])
def test_a_setting_with_the_name_of_another_option_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(tmp_path)
    code = PROX.replace("mu: float = 0.01", f"{name}: float = 0.01").replace("self.mu", f"self.{name}")
    code = code.replace('"mu": Log', f'"{name}": Log')
    (tmp_path / f"{name}_pi.py").write_text(code, encoding="utf-8")
    words = [f"{name}_pi", "--plugin", f"{name}_pi"]
    with pytest.raises(FedRayError, match=rf"{name}_pi: its setting {name} has the name of --{name}; rename it"):
        launch.parse(words)


@pytest.mark.usefixtures("fresh")
def test_the_rings_of_the_guide_are_too_few_for_so_many_clients(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "rings", raising=False)
    registry.plug_in("rings")
    cfg = Experiment(algorithm=FedAvg(), clients=500, data=DataConfig(name="rings"))
    with pytest.raises(FedRayError, match=r"data.partition rings: .* has no examples to test; lower `clients`"):
        make_plan(cfg)
