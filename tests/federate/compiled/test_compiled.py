"""Compiled steps: which run gets one, what its package is a function of, and the same training to the bit with it.

The tests marked slow compile, 20 seconds of CPU for each package; those of one process share what they have compiled.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedray.arrays import trees
from fedray.config import Execution, override
from fedray.federate import local_rounds
from fedray.federate.compiled import cache, choice, package
from fedray.federate.compiled import unit as unit_module
from fedray.federate.compiled.package import Package
from fedray.federate.compiled.unit import schema, unit
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.federate.storage.checkpoint import CheckpointStore, newest
from fedray.nets.densities import known_noise
from fedray.types import FedRayError
from tests.helpers import ALGORITHMS, block, differing, eager, experiment, federated_plan, play, small_plan

OTHER = Package("of another machine", b"")
ONE = {"algorithm.personal_steps": 1}  # of pfedbayes: the package that the slow tests share


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", sys.executable)  # it is looked for, and never called
    return tmp_path / "cache"


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is loaded as the step that it would have been compiled from."""
    monkeypatch.setattr(local_rounds, "load", lambda package, plan: eager(unit(plan)))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that the slow tests share."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.getbasetemp() / "packages"
        patch.setenv("FEDRAY_CACHE", str(place))
        yield place


# What a package is a function of


def test_seed_rounds_shards_and_settings_of_the_server_do_not_change_the_key() -> None:
    key = unit(small_plan("pfedbayes")).key
    for same in ({"seed": 1}, {"rounds": 7}, {"clients_per_round": 2}, {"local_steps": 9}, {"clients": 5}):
        assert unit(small_plan("pfedbayes", same)).key == key, same


@pytest.mark.parametrize(
    "other",
    [{"algorithm.lr_personal": 0.002}, {"batch_size": 47}, {"model.hidden": (9,)}, {"model.name": "mclr"}, ONE],
)
def test_constants_and_shapes_change_the_key(other) -> None:
    assert unit(small_plan("pfedbayes", other)).key != unit(small_plan("pfedbayes")).key


def test_a_fact_of_the_federation_is_in_the_key_where_the_step_reads_it() -> None:
    """DSGLD's gradient counts the clients; FedAvg's does not."""
    keys = {name: {unit(small_plan(name, {"clients": n})).key for n in (5, 6)} for name in ("dsgld", "fedavg")}
    assert {name: len(found) for name, found in keys.items()} == {"dsgld": 2, "fedavg": 1}


def test_a_known_noise_is_in_the_key() -> None:
    """An sd of its own is a constant of the machine code."""
    plan = small_plan("pfedbayes")
    assert len({unit(plan._replace(model=replace(plan.model, density=known_noise(sd)))).key for sd in (1, 2)}) == 2


def test_another_pytorch_or_cpu_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan()
    keys = {unit(plan).key}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.99")
        keys.add(unit(plan).key)
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
        keys.add(unit(plan).key)
    assert len(keys) == 3


def test_the_key_follows_the_code_of_every_module_that_a_step_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far_aot.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "near_aot.py").write_text("from far_aot import f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("near_aot")
    before = unit_module._code({"near_aot"})
    assert unit_module._code({"near_aot"}) == before
    (tmp_path / "far_aot.py").write_text("def f(x):\n    return x + 1\n")
    assert unit_module._code({"near_aot"}) != before
    for name in ("far_aot", "near_aot"):
        del sys.modules[name]


def test_the_code_of_pfedbayes_is_what_its_step_calls() -> None:
    reached = dict(unit_module._reached({"fedray.algorithms.bayesian.pfedbayes"}))
    assert len(reached) < 20
    assert {"fedray.bayes.variational", "fedray.nets.likelihood", "fedray.arrays.optim"} <= reached.keys()
    assert not {name.partition(".")[0] for name in reached} & {"torch", "numpy", "os"}


def test_layers_of_ones_own_are_refused() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), Twice())
    with pytest.raises(FedRayError, match=r"layers of your own \(Twice\); use backend=vmap"):
        unit(make_plan(experiment(), layers=layers))


def test_a_step_that_fails_on_zeros_is_refused() -> None:
    def step(ctx, local, batch, noise):
        raise KeyError("no zeros, please")

    plan = small_plan()
    with pytest.raises(FedRayError, match=r"a step on zeros failed \('no zeros, please'\); use backend=vmap"):
        unit(plan._replace(algorithm=plan.algorithm._replace(step=step)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_step_can_be_called_without_data_and_keeps_its_shapes(name: str) -> None:
    plan = federated_plan(name)
    found = unit(plan)
    assert found.operations > 20
    assert schema(found.result[0]) == schema(found.example[0])


# Which run gets one


@pytest.fixture
def obtained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the units for which a package was asked."""
    keys: list[str] = []

    def obtain(work, tell):
        keys.append(work.key)
        return Package(work.key, b"code")

    monkeypatch.setattr(choice, "obtain_unit", obtain)
    return keys


@pytest.mark.parametrize(
    ("rounds", "operations", "begun", "expected"),
    [
        (50, 1000, None, True),
        (49, 1000, None, False),
        (50, 999, None, False),
        (1, 1, "key", True),
        (99, 9999, "", False),
    ],
)
def test_auto_compiles_what_is_long_enough_or_began_so(rounds, operations, begun, expected) -> None:
    """4 clients, 5 steps: 20 calls of the step per round, and a million operations in all."""
    plan = small_plan("fedavg", {"rounds": rounds})
    assert choice.wanted(plan, operations, begun) is expected


def test_training_clients_count_that_are_not_averaged() -> None:
    plan = small_plan("pfedbayes", {"rounds": 50, "train_all": True})  # 6 clients train
    assert choice.wanted(plan, 667, None)
    assert not choice.wanted(plan, 666, None)


def test_a_long_run_is_compiled_and_a_short_one_is_not(obtained: list[str]) -> None:
    plan = make_plan(override(experiment("pfedbayes"), {"rounds": 10, "local_steps": 20, "clients_per_round": 6}))
    assert choice.choose(plan, "auto", None, print) is None  # 1,200 steps of some 500 operations
    longer = plan._replace(cfg=override(plan.cfg, {"rounds": 20}))
    taken = choice.choose(longer, "auto", None, print)
    assert taken is not None
    assert obtained == [taken.key]


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_backend_that_was_asked_for_is_taken(backend: str, obtained: list[str], capsys) -> None:
    assert choice.choose(small_plan("fedavg", {"rounds": 10**6}), backend, None, print) is None
    assert choice.choose(small_plan(), backend, "abc", print) is None
    assert capsys.readouterr().out == (
        "the run began with the compiled step abc; without it, its numbers agree up to rounding\n"
    )
    assert obtained == []


def test_convolutions_are_not_compiled_by_auto(obtained: list[str]) -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Flatten(), torch.nn.Linear(36, 10))
    plan = make_plan(experiment("fedavg", {"rounds": 10**6}), layers=layers)
    assert choice.choose(plan, "auto", None, print) is None
    assert choice.choose(plan, "compiled", None, print) is not None
    assert len(obtained) == 1


def test_a_resumed_run_keeps_its_package_and_says_where_it_cannot(obtained: list[str], capsys) -> None:
    plan = small_plan()
    key = unit(plan).key
    assert choice.choose(plan, "auto", key, print) == Package(key, b"code")
    assert choice.choose(plan, "auto", "", print) is None
    assert capsys.readouterr().out == f"local steps run compiled (package {key})\n"
    assert choice.choose(plan, "auto", "abc", print) is not None
    assert "the step abc of other code, PyTorch or CPU" in capsys.readouterr().out


def test_without_a_compiler_auto_goes_without_and_compiled_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    plan = small_plan("fedavg", {"rounds": 10**6})
    monkeypatch.setenv("CXX", "nowhere")
    assert choice.choose(plan, "auto", None, print) is None
    assert "steps are not compiled" in capsys.readouterr().out
    with pytest.raises(FedRayError, match=r"backend=compiled: no C\+\+ compiler.*install g\+\+"):
        choice.choose(plan, "compiled", None, print)
    cache.write(unit(plan).key, b"code")  # a package does not need one
    assert choice.choose(plan, "auto", None, print) == Package(unit(plan).key, b"code")


def test_a_cache_that_others_may_write_is_refused_or_left_alone(place: Path, capsys) -> None:
    plan = small_plan("fedavg", {"rounds": 10**6})
    place.mkdir()
    place.chmod(0o777)
    assert choice.choose(plan, "auto", None, print) is None
    assert "others may write there" in capsys.readouterr().out
    with pytest.raises(FedRayError, match="others may write there"):
        choice.choose(plan, "compiled", None, print)


def test_a_step_is_compiled_once_and_again_where_its_package_is_damaged(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(package, "_compiled", lambda work: made.append(work.key) or b"machine code")
    plan = small_plan()
    first = package.obtain(plan)
    assert package.obtain(plan) == first == Package(unit(plan).key, b"machine code")
    assert len(made) == 1
    (place / first.key).write_bytes((place / first.key).read_bytes()[:-1])
    assert package.obtain(plan) == first
    assert len(made) == 2


def test_a_step_that_cannot_be_exported_is_not_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(package, "_compiled", lambda work: made.append(work.key) or b"")
    for _ in range(2):
        with pytest.raises(FedRayError, match=r"cannot export this step.*remove .* to try again"):
            package.obtain(small_plan())
    assert len(made) == 1


# How a block trains with one


def test_a_package_of_another_machine_is_not_loaded() -> None:
    plan = small_plan()
    with pytest.warns(UserWarning, match="does not fit this machine"):
        host = block(plan, backend=OTHER)
    assert host.rounds.backend == "vmap"
    assert all(differing(a, b) == [] for a, b in zip(play(plan, [host]), play(plan, [block(plan)]), strict=True))


@pytest.mark.parametrize("name", ["fedavg", "pfedbayes", "dsgld", "fedamp", "fedem", "per_fedavg", "pvi"])
def test_a_block_gives_a_compiled_step_the_same_numbers(name: str, uncompiled: None) -> None:
    """The step that would be compiled, fed with bits and states as compiled code is, does what the loop does."""
    plan = federated_plan(name)
    host = block(plan, backend=OTHER)
    assert (host.rounds.backend, host.rounds.stack.size) == ("compiled", 1)
    assert all(differing(a, b) == [] for a, b in zip(play(plan, [host]), play(plan, [block(plan)]), strict=True))


def test_newcomers_adapt_without_it(uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan("pfedbayes", {"novel_clients": 2, "clients_per_round": 4, "adapt_rounds": 1, "rounds": 1})
    loop, other = LocalFederation(plan, "loop"), LocalFederation(plan, OTHER)
    for federation in (loop, other):
        assert len(list(federation)) == 2
    assert differing(loop.snapshot(), other.snapshot()) == []


# With a compiler


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "bpfed", "pfedbred", "pfedme", "per_fedavg", "pvi", "dsgld"])
def test_a_compiled_step_trains_as_the_loop_does_up_to_rounding(name: str, compiled: Path) -> None:
    close(name, {"local_steps": 2})


@pytest.mark.slow
@pytest.mark.parametrize("kl", ["qw", "wq"])
def test_pfedbayes_compiled(kl: str, compiled: Path) -> None:
    close("pfedbayes", {"local_steps": 2, "algorithm.kl": kl} | ONE)


def close(name: str, settings: dict) -> None:
    plan = small_plan(name, settings)
    whole, loop = (play(plan, [block(plan, backend=backend)]) for backend in ("compiled", "loop"))
    for (leaf, x), (_, y) in zip(trees.named_leaves(whole), trees.named_leaves(loop), strict=True):
        # Adam turns the rounding of a vanishing gradient into a step of its own, so single entries may differ.
        far = (x - y).abs() > 1e-3 * (y.abs().max() if y.numel() else 0)
        assert far.sum() <= 0.01 * far.numel(), leaf


@pytest.mark.slow
def test_company_does_not_matter_to_a_compiled_step(compiled: Path) -> None:
    plan = small_plan("pfedbayes", ONE)
    whole = play(plan, [block(plan, backend="compiled")])
    parts = play(plan, [block(plan, ids, "compiled") for ids in ((0, 1), (2, 3), (4, 5))])
    assert all(differing(a, b) == [] for a, b in zip(whole, parts, strict=True))
    assert differing(whole[1], play(plan, [block(plan)])[1])  # it did not run uncompiled


@pytest.mark.slow
def test_a_compiled_run_goes_on_from_a_checkpoint(compiled: Path, tmp_path: Path) -> None:
    plan = small_plan("pfedbayes", ONE | {"rounds": 3})
    whole = LocalFederation(plan, "compiled")
    assert len(list(whole)) == 3
    store = CheckpointStore(str(tmp_path / "kept"))
    first = iter(LocalFederation(plan, "compiled", store=store))
    assert [next(first).round, next(first).round] == [1, 2]
    second = LocalFederation(plan, "compiled", begun=newest(store, plan, pytest.fail))
    assert [played.round for played in second] == [3]
    assert differing(second.snapshot(), whole.snapshot()) == []


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_one_process_and_1_2_and_6_actors_give_the_same_bits(compiled: Path) -> None:
    """The actors get the package's bytes, also one whose predecessor was killed."""
    from actors.federation import RayFederation

    plan = small_plan("pfedbayes", ONE | {"rounds": 3})
    whole = LocalFederation(plan, "compiled")
    assert len(list(whole)) == 3
    code = package.obtain(plan)
    for clients_per_actor in (6, 3, 1):
        execution = Execution(clients_per_actor=clients_per_actor)
        with RayFederation(plan, execution, package=code) as federation:
            rounds = iter(federation)
            next(rounds)
            os.kill(federation.client_pids()[0], signal.SIGKILL)
            assert len(list(rounds)) == 2
            assert differing(federation.snapshot(), whole.snapshot()) == [], clients_per_actor


@pytest.mark.slow
def test_a_fresh_process_loads_a_package_without_the_compiler(compiled: Path) -> None:
    plan = small_plan("pfedbayes", ONE)
    package.obtain(plan)
    code = (
        "import sys\nfrom tests.helpers import block, small_plan\n"
        "plan = small_plan('pfedbayes', {'algorithm.personal_steps': 1})\n"
        "host = block(plan, (0,), 'compiled')\n"
        "down = plan.algorithm.broadcast(plan.context, plan.initial_server(), (0,))\n"
        "host.train(1, (0,), down)\n"
        "assert host.rounds.backend == 'compiled'\n"
        "assert not {'torch._inductor', 'torch._dynamo'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3], env=os.environ | {"PATH": ""}
    )
