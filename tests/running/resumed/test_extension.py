"""--resume with more rounds: the numbers are those of a run that was begun with that many, or it is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray import launch
from fedray.running import writer
from fedray.running.resumed import extension
from fedray.types import FedRayError, Sums
from tests.helpers import ALGORITHMS, small_plan
from tests.running.resumed.test_resume import FAST, rows, same_result

pytestmark = pytest.mark.usefixtures("unpainted")
QUIET = [*FAST, "--tracking.uri", "none"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        ["--eval-every", "3", "--data.validation", "0.2"],
        ["--selection", "round_robin", "--clients-per-round", "3", "--client-states", "disk"],
    ],
)
def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(options: list[str]) -> None:
    assert launch.main([*QUIET, *options, "--name", "whole"]) == 0
    assert launch.main([*QUIET, *options, "--rounds", "4", "--name", "short"]) == 0
    assert launch.main(["--resume", "runs/short", "--rounds", "6"]) == 0
    same_result("runs/whole", "runs/short")
    summaries = [json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("whole", "short")]
    assert summaries[0] | {"seconds": 0} == summaries[1] | {"seconds": 0}
    whole, short = (np.load(f"runs/{name}/uncertainty.npz") for name in ("whole", "short"))
    assert all(np.array_equal(whole[name], short[name]) for name in whole.files)


@pytest.mark.parametrize(("before", "after"), [("disk", "memory"), ("memory", "disk")])
def test_a_longer_result_has_nothing_of_the_shorter_one(before: str, after: str) -> None:
    also = ["--uncertainty", "--loss-deviation", "--client-states", before]
    instead = ["--figures", "none", "--client-states", after]
    without = ["--no-uncertainty", "--no-loss-deviation", *instead]
    assert launch.main([*QUIET, *instead, "--name", "whole"]) == 0
    assert launch.main([*QUIET, *also, "--rounds", "4", "--name", "short"]) == 0
    Path("runs/short/notes.txt").write_text("the user's")
    assert launch.main(["--resume", "runs/short", "--rounds", "6", *without]) == 0
    assert Path("runs/short/notes.txt").read_text() == "the user's"
    Path("runs/short/notes.txt").unlink()
    same_result("runs/whole", "runs/short")
    x = np.random.default_rng(0).random((5, 1, 8, 8))
    whole, short = fedray.load("runs/whole"), fedray.load("runs/short")
    assert all(np.array_equal(whole.predict(x, i).draws, short.predict(x, i).draws) for i in range(10))


def test_an_interrupted_run_may_get_more_rounds_again_and_again(cut: Callable[..., int]) -> None:
    assert launch.main([*QUIET, "--name", "whole"]) == 0
    assert cut([*QUIET, "--rounds", "3", "--name", "cut"], 2) == 130
    assert cut(["--resume", "runs/cut", "--rounds", "5"], 3) == 130
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert len(rows("runs/cut")) == 5
    # Until the end of the longer run the result of the shorter one is kept.
    assert cut(["--resume", "runs/cut", "--rounds", "6"], 6) == 130
    assert "5 rounds" in repr(fedray.load("runs/cut"))
    assert launch.main(["--resume", "runs/cut"]) == 0
    assert "6 rounds" in repr(fedray.load("runs/cut"))
    same_result("runs/whole", "runs/cut")


def test_an_interrupted_run_that_gets_more_rounds_has_no_evaluations_of_the_shorter_one(
    cut: Callable[..., int],
) -> None:
    options = [*QUIET, "--eval-every", "4", "--eval-last", "3"]
    assert launch.main([*options, "--rounds", "8", "--name", "whole"]) == 0
    assert cut([*options, "--rounds", "5", "--name", "cut"], 4) == 130
    assert launch.main(["--resume", "runs/cut", "--rounds", "8"]) == 0
    same_result("runs/whole", "runs/cut")


def test_a_longer_run_that_dies_before_its_first_checkpoint_starts_from_the_result(cut: Callable[..., int]) -> None:
    assert launch.main([*QUIET, "--name", "whole"]) == 0
    assert launch.main([*QUIET, "--rounds", "4", "--name", "short"]) == 0
    assert cut(["--resume", "runs/short", "--rounds", "6", "--checkpoint.every", "0"], 5) == 130
    assert launch.main(["--resume", "runs/short"]) == 0
    same_result("runs/whole", "runs/short")


def test_an_interruption_does_not_cut_the_exchange_of_two_results_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.main([*QUIET, "--name", "whole"]) == 0
    assert launch.main([*QUIET, "--rounds", "4", "--checkpoint.every", "0", "--name", "short"]) == 0
    remove = writer.remove_leftovers

    def interrupted(folder: Path) -> None:
        remove(folder)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "remove_leftovers", interrupted)
        assert launch.main(["--resume", "runs/short", "--rounds", "6"]) == 130
    assert "6 rounds" in repr(fedray.load("runs/short"))
    assert launch.main(["--resume", "runs/short"]) == 0
    same_result("runs/whole", "runs/short")


def test_the_store_has_a_run_of_its_own_for_the_longer_one() -> None:
    assert launch.main([*FAST, "--rounds", "2", "--name", "short"]) == 0
    first = json.loads(Path("runs/short/run.json").read_text())["run_id"]
    assert launch.main(["--resume", "runs/short", "--rounds", "3"]) == 0
    second = json.loads(Path("runs/short/run.json").read_text())["run_id"]
    assert first != second
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/runs/mlflow.db")
    found = [client.get_run(run_id) for run_id in (first, second)]
    assert [run.data.params["rounds"] for run in found] == ["2", "3"]
    assert [run.info.status for run in found] == ["FINISHED", "FINISHED"]
    assert [m.step for m in client.get_metric_history(second, "personal/accuracy")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rounds", "3"], "--rounds 3: the run began with 4, and rounds can only be added"),
        (["--rounds", "6", "--zeta", "3"], "differs in algorithm.zeta, rounds"),
    ],
)
def test_a_run_gets_no_shorter_and_no_other(argv: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main([*QUIET, "--rounds", "4", "--name", "short"]) == 0
    before = sorted((path.name, path.stat().st_mtime_ns) for path in Path("runs/short").iterdir())
    assert launch.main(["--resume", "runs/short", *argv]) == 2
    assert words in capfd.readouterr().err
    assert sorted((path.name, path.stat().st_mtime_ns) for path in Path("runs/short").iterdir()) == before


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_of_ours_depends_on_the_number_of_rounds(name: str) -> None:
    extension.check(small_plan(name, {"rounds": 3}), 2)


def test_nor_does_one_whose_minibatches_are_larger_than_its_shards() -> None:
    """FedEM reads of every example of a minibatch which one of the shard it is."""
    plan = small_plan("fedem", {"rounds": 3, "batch_size": 400})
    assert plan.facts.shard < 400
    extension.check(plan, 2)


def test_particles_whose_slots_suffice_for_more_rounds_go_on_and_their_policies_too() -> None:
    serial = {"algorithm.mode": "serial", "algorithm.sites": "history", "algorithm.slots": 9, "clients_per_round": 1}
    extension.check(small_plan("dsvgd", serial | {"rounds": 9, "selection": "hip"}), 2)
    with pytest.raises(FedRayError, match="slots"):
        small_plan("dsvgd", serial | {"rounds": 10})


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which looks at the number of rounds."""

    def asks(ctx: Any, *args: Any) -> Any:
        return function(ctx, *args) if ctx.facts.rounds else None

    return asks


@pytest.mark.parametrize("name", ["broadcast", "begin", "step", "finish", "publish", "terms", "weigh", "absorb"])
def test_an_algorithm_whose_schedule_depends_on_the_number_of_rounds_is_refused(name: str) -> None:
    plan = small_plan("pfedbayes", {"rounds": 3})
    record = plan.algorithm
    assert isinstance(record.aggregate, Sums)
    if name in Sums._fields:
        record = record._replace(
            aggregate=record.aggregate._replace(**{name: _asking(getattr(record.aggregate, name))})
        )
    else:
        function = getattr(record, name) or (lambda ctx, server: server)
        record = record._replace(**{name: _asking(function)})
    with pytest.raises(FedRayError, match="rounds 3: the run began with 2, and the algorithm computes with the number"):
        extension.check(plan._replace(algorithm=record), 2)


def test_an_algorithm_that_begins_with_the_number_of_rounds_or_fails_on_zeros_is_refused() -> None:
    plan = small_plan("fedavg", {"rounds": 3})
    begin = plan.algorithm.server_init

    def scaled(ctx: Any, rng: Any) -> Any:
        server = begin(ctx, rng)
        return server._replace(**{server._fields[0]: server[0] / ctx.facts.rounds})

    with pytest.raises(FedRayError, match="computes with the number of rounds"):
        extension.check(plan._replace(algorithm=plan.algorithm._replace(server_init=scaled)), 2)

    def fails(ctx: Any, local: Any, batch: Any, noise: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(FedRayError, match=r"is unknown: a trial round fails \(.*step raises ValueError: not today"):
        extension.check(plan._replace(algorithm=plan.algorithm._replace(step=fails)), 2)


def test_newcomers_that_have_adapted_end_a_run() -> None:
    plan = small_plan("pfedbayes", {"rounds": 3, "novel_clients": 1})
    with pytest.raises(FedRayError, match="its 1 newcomers are to adapt after round 2"):
        extension.check(plan, 2)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("global.safetensors", lambda content: b"torn"),
        ("personal.safetensors", lambda content: content[:-8]),
        ("metrics.csv", lambda content: b""),
        ("metrics.csv", lambda content: content[:-2]),
        ("metrics.csv", lambda content: content[: content[:-1].rindex(b"\n") + 1]),
    ],
)
def test_a_damaged_result_is_named(name: str, left: Callable[[bytes], bytes]) -> None:
    assert launch.main([*QUIET, "--rounds", "2", "--name", "short"]) == 0
    path = Path("runs/short", name)
    path.write_bytes(left(path.read_bytes()))
    plan = launch.parse(["--resume", "runs/short", "--rounds", "3"]).request.experiment
    with pytest.raises(FedRayError, match=r"runs/short: its result is no checkpoint"):
        extension.from_result(Path("runs/short"), fedray.make_plan(plan))
