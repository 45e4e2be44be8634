"""Sides that do the same work in turn, A B A B, and what their costs say."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.benchmarks.peers.sides.measured import Result

Side = Callable[[], Result]  # one turn of it


class UnequalWorkError(Exception):
    """Two sides did not do the same: their costs must not be compared."""


class Figures(NamedTuple):
    """What the turns of one side say: medians, per round; ratios are medians of each turn's ratio to the first side."""

    cpu: float
    wall: float
    start_cpu: float
    cpu_ratio: float
    wall_ratio: float


def from_process(command: Sequence[str], settings: Mapping[str, str]) -> Side:
    """A side that is a command whose last line is its result."""

    def turn() -> Result:
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[:2])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return Result(**json.loads(done.stdout.strip().splitlines()[-1]))

    return turn


def in_turn(sides: Mapping[str, Side], turns: int, say: Callable[[str], None] = print) -> dict[str, list[Result]]:
    """The results of every side, A B A B; raises UnequalWorkError as soon as one did other work than the first."""
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for number in range(turns):
        for name, side in sides.items():
            results[name].append(side())
            result = results[name][-1]
            say(f"  turn {number + 1}, {name}: {result.cpu:.2f} CPU s, {result.wall:.2f} s")
            check_equal_work(results)
    return results


def check_equal_work(results: Mapping[str, Sequence[Result]]) -> None:
    """Raise UnequalWorkError unless all results agree in rounds, clients, parameters and example-gradients."""
    played = [(name, result) for name, turns in results.items() for result in turns]
    for what in ("rounds", "clients", "parameters", "gradients"):
        counts = {name: getattr(result, what) for name, result in played}
        if len({getattr(result, what) for _, result in played}) > 1:
            raise UnequalWorkError(f"the sides differ in {what}: {counts}")


def figures(results: Mapping[str, Sequence[Result]]) -> dict[str, Figures]:
    """Medians of every side, and of its ratios to the first side in the same turn."""
    base = next(iter(results.values()))
    return {
        name: Figures(
            statistics.median(turn.cpu / turn.rounds for turn in turns),
            statistics.median(turn.wall / turn.rounds for turn in turns),
            statistics.median(turn.start_cpu for turn in turns),
            statistics.median(turn.cpu / other.cpu for turn, other in zip(turns, base, strict=True)),
            statistics.median(turn.wall / other.wall for turn, other in zip(turns, base, strict=True)),
        )
        for name, turns in results.items()
    }


def table(results: Mapping[str, Sequence[Result]]) -> str:
    """The figures as a Markdown table; per million example-gradients where there are any, else per client-round."""
    first = next(iter(results.values()))[0]
    unit = "CPU s / 10^6 gradients" if first.gradients else "CPU ms / client-round"
    scale = 1e6 * first.rounds / first.gradients if first.gradients else 1e3 / first.clients
    lines = [
        f"{first.clients} clients, {first.parameters:,} parameters, {first.rounds} rounds measured, "
        f"{first.gradients:,} example-gradients, turns: {min(map(len, results.values()))}\n",
        f"| | CPU s / round | {unit} | CPU ratio | wall s / round | wall ratio | CPU s before |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, side in figures(results).items():
        lines.append(
            f"| {name} | {side.cpu:.3g} | {scale * side.cpu:.3g} | {side.cpu_ratio:.2f} | {side.wall:.3g} "
            f"| {side.wall_ratio:.2f} | {side.start_cpu:.0f} |"
        )
    return "\n".join(lines)
