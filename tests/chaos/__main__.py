"""python -m tests.chaos --faults N --seed S: runs under faults of every kind end with the bits of one left alone."""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedray import launch
from fedray.arrays.tensor_files import load_tree
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.federate.rounds import Snapshot
from fedray.federate.storage import checkpoint
from fedray.running import finished
from fedray.running.folder import notes
from tests.chaos.arena import ARGV, Arena

KINDS = {
    "client": "SIGKILL of a client actor",
    "server": "SIGKILL of the server actor",
    "driver": "SIGKILL of the driver, then --resume",
    "torn": "the same, with the newest checkpoint damaged",
    "node": "SIGKILL of a node's raylet; another one joins",
    "exception": "a client raises",
    "nan": "a client uploads NaN",
    "memory": "a client runs out of memory",
    "exit": "a client's process leaves in mid-round",
    "hang": "a client's process is stopped (--round-timeout)",
}
PER_RUN = 20
TICKETS = ("exception", "nan", "memory", "exit", "hang")  # counted when a client has failed with them


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="faults to inject, %(default)s by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--nodes", type=int, default=3, help="raylets of the cluster, %(default)s by default")
    parser.add_argument("--pace", type=float, default=0.3, help="seconds that every round is made longer by")
    options = parser.parse_args(argv)
    began, counts, trouble = time.monotonic(), Counter[str](), Counter[str]()
    rng = random.Random(options.seed)
    kinds = [options.kinds[i % len(options.kinds)] for i in range(options.faults)]
    rng.shuffle(kinds)
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena(Path(folder), options.nodes, options.pace)
        try:
            for number, start in enumerate(range(0, len(kinds), PER_RUN)):
                play(arena, f"run-{number}", kinds[start : start + PER_RUN], rng, counts, trouble)
                done, seconds = sum(counts.values()), time.monotonic() - began
                say(f"{done} of {options.faults} faults, {dict(trouble)}, {seconds:.0f} s")
        finally:
            arena.close()
    show(counts, trouble, time.monotonic() - began)
    return 1 if sum(trouble.values()) else 0


def play(
    arena: Arena, name: str, kinds: list[str], rng: random.Random, counts: Counter[str], trouble: Counter[str]
) -> None:
    """One run, hit by one fault after the other while it plays, and compared at its end."""
    rounds = 3 * len(kinds) + 5
    arena.start(name, rounds)
    for kind in kinds:
        before = arena.reached()
        wanted = before + rng.randint(1, 2)
        if not arena.wait(lambda wanted=wanted: arena.reached() >= wanted):
            trouble["hangs"] += 1
        time.sleep(rng.uniform(0, 2 * arena.pace))
        if not go_on(arena, name, rounds):
            break
        if arena.inject(kind, rng) and kind not in TICKETS:
            counts[kind] += 1
        go_on(arena, name, rounds)
    if not arena.wait(arena.ended):
        trouble["hangs"] += 1
    while not arena.ended() or not (arena.run / notes.FINISHED).exists():
        if not go_on(arena, name, rounds) or not arena.wait(arena.ended):
            trouble["hangs"] += 1
            return
    counts.update(arena.taken())
    trouble["orphans"] += arena.wait_for_silence()
    trouble.update(compare(arena.run, rounds))


def go_on(arena: Arena, name: str, rounds: int) -> bool:
    """Start the driver again where it ended before its run; False where the run is finished."""
    if (arena.run / notes.FINISHED).exists():
        return False
    if arena.ended():
        arena.start(name, rounds, resume=(arena.run / notes.NOTE).exists())
    return True


def compare(folder: Path, rounds: int) -> Counter[str]:
    """Rounds that are missing or doubled, and tensors and measures that differ from those of an undisturbed run."""
    from mlflow.tracking import MlflowClient

    plan = make_plan(launch.parse([*ARGV, "--rounds", str(rounds)]).request.experiment)
    with LocalFederation(plan, "loop") as undisturbed:
        list(undisturbed)
        expected = undisturbed.snapshot()
    found = Snapshot(
        load_tree(folder / "global.safetensors", expected.server),
        load_tree(folder / "personal.safetensors", expected.clients),
    )
    trouble = Counter({"differing": len(differing(found, expected))})
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    trouble["lost"] += sum(int(row["round"]) != number for number, row in enumerate(rows, 1)) + abs(rounds - len(rows))
    for row, other in zip(rows, undisturbed.history().rows, strict=False):
        trouble["differing"] += sum(
            float(row[key]) != value for key, value in other.items() if not key.startswith("time/")
        )
    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    run_id = notes.read(str(folder)).run_id
    assert run_id is not None
    steps = [metric.step for metric in client.get_metric_history(run_id, "personal/accuracy")]
    trouble["lost"] += sorted(steps) != list(range(1, rounds + 1))
    trouble["lost"] += client.get_run(run_id).info.status != "FINISHED"
    trouble["lost"] += bool(checkpoint.rounds(checkpoint.CheckpointStore(str(folder / "checkpoints"))))
    finished.load(folder)
    return trouble


def differing(a: Snapshot, b: Snapshot) -> list[str]:
    from tests.helpers import differing

    return differing(a, b)


def show(counts: Counter[str], trouble: Counter[str], seconds: float) -> None:
    table = Table(title=f"{sum(counts.values())} faults in {seconds:.0f} s", title_justify="left")
    table.add_column("fault")
    table.add_column("injected", justify="right")
    for kind, meaning in KINDS.items():
        if counts[kind]:
            table.add_row(meaning, str(counts[kind]))
    Console().print(table)
    names = {"lost": "rounds lost or doubled", "differing": "differing values", "hangs": "hangs", "orphans": "orphans"}
    Console().print(", ".join(f"{trouble[key]} {name}" for key, name in names.items()))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
