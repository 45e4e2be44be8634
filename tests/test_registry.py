"""The file name is the name, and a broken file fails loudly."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fedray import algorithms, registry, selection
from fedray.types import Algorithm, FedRayError, Selection, records

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("package", "table"), [(algorithms, registry.algorithms()), (selection, registry.selections())]
)
def test_every_file_is_registered_under_its_name_and_summarized(package, table):
    files = {path.stem for path in Path(package.__path__[0]).rglob("[!_]*.py")}
    assert set(table) == files
    assert list(table) == sorted(table)
    assert all(record.summary for record in table.values())


def test_a_config_names_its_algorithm_even_if_it_inherits_from_anothers():
    for name, record in registry.algorithms().items():
        assert registry.algorithm_name(record.config()) == name


def test_settings_add_to_a_record_and_take_from_it():
    for record in registry.algorithms().values():
        assert registry.algorithm_of(record.config()).config is record.config
    for name in ("fedavg", "fedprox"):
        record = registry.algorithms()[name]
        plain, tuned = (registry.algorithm_of(record.config(ft=ft)) for ft in (0, 1))
        assert plain.predict_personal is None
        assert tuned.predict_personal is record.predict_personal is not None
        assert tuned.step is plain.step is record.step


def test_an_unknown_name_that_is_a_file_here_may_be_a_plug_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    with pytest.raises(FedRayError, match=r"^algorithm 'mine' is not known; mine\.py here is not loaded \(`plugin`\);"):
        registry.pick(registry.algorithms(), "algorithm", "mine")


def test_an_unknown_name_lists_the_known_ones():
    assert isinstance(registry.pick(registry.selections(), "--selection", "uniform"), Selection)
    with pytest.raises(FedRayError, match=r"--selection 'best'.*uniform"):
        registry.pick(registry.selections(), "--selection", "best")


WRONG = """from fedray.algorithms.averaging import fedavg

def step(cfg, model, local, batch, noise):
    return local, fedavg.Info(noise.sum())

ALGORITHM = fedavg.ALGORITHM._replace(step=step)
"""
STAGE = """from fedray.algorithms.averaging import fedavg
from fedray.types import Stage

stage = Stage(lambda ctx, client, view, data: data.y, lambda ctx, server, replies: sum(replies))
ALGORITHM = fedavg.ALGORITHM._replace(scores={"size": (stage,)})
"""


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("ALGORITHM = 3", FedRayError, r"broken\.bad: ALGORITHM is 3, not an instance of Algorithm; "),
        ("", FedRayError, r"broken\.bad: ALGORITHM is None"),
        ("import no_such_module", ModuleNotFoundError, "no_such_module"),
        (WRONG, FedRayError, r"broken\.bad: step, the step of its Algorithm, takes \(cfg, model, local, batch, noise\)"
         r", but is called with \(ctx, local, batch, noise\); "),
        (STAGE, FedRayError, r"broken\.bad: <lambda>, the probe of its Stage, takes \(ctx, client, view, data\), "),
        (WRONG.replace("step=step", "publish=3"), FedRayError, r"publish is 3, not a function; .*\(ctx, server\)"),
    ],
)  # fmt: skip
def test_a_broken_file_fails_loudly(tmp_path, monkeypatch, source, error, match):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").touch()
    (tmp_path / "broken" / "bad.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import broken

    try:
        with pytest.raises(error, match=match):
            registry._discover(broken, "ALGORITHM", Algorithm)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "broken"]:
            del sys.modules[name]


def test_a_policy_that_cannot_be_called_is_refused():
    policy = registry.selections()["uniform"]._replace(select=lambda state, scores, m: ((), state))
    with pytest.raises(FedRayError, match=r"mine: <lambda>, the select of its Selection, takes \(state, scores, m\)"):
        records.check_record("mine", policy)


PLANTED = """from fedray.algorithms.averaging import fedavg
from fedray.types import Algorithm, Batch, Context, Sums
from torch import Tensor

def step(ctx: Context[fedavg.FedAvg], local: fedavg.Local, batch: Batch, noise: Tensor):
    return local, fedavg.Info(noise.sum())

ALGORITHM = Algorithm(
    summary="planted",
    config=fedavg.FedAvg,
    server_init=fedavg.server_init,
    client_init=fedavg.client_init,
    broadcast=fedavg.broadcast,
    begin=fedavg.begin,
    step=step,
    finish=fedavg.finish,
    aggregate=Sums(fedavg.absorb),
    predict_global=fedavg.predict_global,
    predict_personal=None,
)
"""


@pytest.mark.parametrize(
    ("right", "wrong"), [("noise: Tensor", "noise: Tensor"), ("noise: Tensor", "noise: Tensor, more: int"),
                         ("batch: Batch", "batch: Tensor"), ("return local, ", "return ")]
)  # fmt: skip
def test_pyright_reports_a_wrong_signature(tmp_path, right, wrong):
    (tmp_path / "planted.py").write_text(PLANTED.replace(right, wrong))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(tmp_path / "planted.py")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ('"step"' in found.stdout) is (right != wrong), found.stdout
    assert (found.returncode == 0) is (right == wrong)


def test_two_families_cannot_use_one_name(tmp_path, monkeypatch):
    for family in ("one", "two"):
        (tmp_path / "zoo" / family).mkdir(parents=True)
        (tmp_path / "zoo" / family / "__init__.py").touch()
        (tmp_path / "zoo" / family / "same.py").write_text("from fedray.selection.uniform import SELECTION\n")
    (tmp_path / "zoo" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FedRayError, match=r"zoo\.two\.same: the name 'same' is taken; rename the file"):
        registry._discover(importlib.import_module("zoo"), "SELECTION", Selection)


def test_the_line_of_an_error_is_that_of_the_module_itself(tmp_path, monkeypatch):
    """Not that of another file whose name ends alike."""
    (tmp_path / "mylib_pi.py").write_text("def fails():\n    return 1 / 0\n", encoding="utf-8")
    (tmp_path / "lib_pi.py").write_text("import mylib_pi\n\n\ndef calls():\n    mylib_pi.fails()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    lib = importlib.import_module("lib_pi")
    with pytest.raises(ZeroDivisionError) as caught:
        lib.calls()
    assert registry.line_of(caught.value, "lib_pi") == "lib_pi.py, line 5"
    assert registry.line_of(caught.value, "mylib_pi") == "mylib_pi.py, line 2"
    assert registry.line_of(caught.value, "pi") == ""
