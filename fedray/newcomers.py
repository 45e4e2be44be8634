"""python -m fedray.newcomers RUN --data FILE: what a finished run gives to clients that it has never met.

Their personal factors are trained on their own data; what the federation shares stays as it is. (Clients of the same
dataset are held out of a run from the start by its --novel-clients.)
"""

from __future__ import annotations

from fedray.cli import enter

if __name__ == "__main__":
    enter("newcomers")

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedray import cli, registry
from fedray.arrays.rng import Stream
from fedray.config import DataConfig, override
from fedray.data import loading, own, tables
from fedray.data.digests import EXAMPLES, LAYERS, of_examples
from fedray.data.partition import Partition
from fedray.data.partitions.iid import iid
from fedray.data.partitions.natural import natural
from fedray.data.readers import Dataset, reading
from fedray.data.shards import Shards
from fedray.federate import report
from fedray.federate.block import Block
from fedray.federate.device.cpu import numerics
from fedray.federate.in_process import LocalCohort
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State, play_round
from fedray.running import finished
from fedray.running.folder import naming
from fedray.running.folder.lock import locked
from fedray.running.predictor import Predictor
from fedray.running.writer import Writer
from fedray.terminal import bar, headlines, say
from fedray.types import FedRayError, require, writing


@dataclass(frozen=True, kw_only=True)
class Options:
    """Adapt a finished run to clients that it has never met."""

    run: tyro.conf.Positional[Path]
    """Folder of a finished run."""
    data: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """Their examples, in the units of the run's dataset, and perhaps their owners: an .npz of arrays x [N, ...], y [N]
    and client [N], or a table or LEAF file as for `fedray launch --data.name`."""
    clients: int | None = None
    """Newcomers: by default every owner is one, fewer are groups of owners; without owners the examples are dealt at
    random among them, by default to one."""
    rounds: int = 10
    """Rounds of local training, each of as many minibatches as the run's."""
    test_fraction: float = 0.25
    """Share of a newcomer's examples kept for testing."""
    seed: int = 0
    """Seed of the deal and of the training."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for their models, which `fedray.load` reads; by default RUN-newcomers. It must not hold anything yet."""
    json: bool = False
    """Print the summary as one JSON object."""


def make_plan(run: Plan, options: Options) -> tuple[Plan, Shards]:
    """The plan of newcomers alone, and their shards; raises FedRayError where they do not fit the run."""
    if run.algorithm.adapt is None:
        name = registry.algorithm_name(run.cfg.algorithm)
        raise FedRayError(
            f"{options.run}: {name} has no personal factors that a newcomer could adapt; choose another run"
        )
    formats = tuple(ending for record in registry.datasets().values() for ending in record.suffixes)
    remedy = f"give a file that ends in {', '.join(formats)}"
    require(options.data.endswith(formats), "data", options.data, "is no file of examples", remedy)
    dataset = _fitting(run, options)
    if run.examples and of_examples(dataset) == run.examples:
        say(f"warning: --data {options.data}: holds the run's own examples, and its clients are no newcomers")
    dealt = _dealt(dataset, run, options)
    clients = len(dealt.train)
    settings = {
        "data.name": str(Path(options.data).expanduser().resolve()),
        "data.partition": "iid" if dataset.users is None else "natural",
        "data.validation": 0.0,
        "data.classes": None,  # of the run's own file; theirs was read without
        "eval_clients": None,
        "clients": clients,
        "novel_clients": clients,
        "adapt_rounds": options.rounds,
        "seed": options.seed,
    }
    newcomers = run._replace(
        cfg=override(run.cfg, settings),
        partition=dealt,
        digests={name: own for name, own in run.digests.items() if name == LAYERS} | {EXAMPLES: of_examples(dataset)},
        names=run.names._replace(users=dataset.names.users if len(dataset.names.users) == clients else ()),
    )
    return newcomers, Shards(dataset, dealt, range(clients))


def _dealt(dataset: Dataset, run: Plan, options: Options) -> Partition:
    """The newcomers' shards; raises FedRayError where the examples do not go round."""
    fraction = options.test_fraction
    require(0 < fraction < 1, "test_fraction", fraction, "is not between 0 and 1", "leave it out for a quarter")
    reason = "it has one example, and a newcomer needs one to train and one to test on"
    require(len(dataset.y) > 1, "data", options.data, reason, "give more")
    rng = Stream(options.seed, "partition").numpy
    if dataset.users is None:
        return iid(dataset.y, options.clients or 1, fraction, rng)
    clients = options.clients or int(dataset.users.max()) + 1
    return natural(dataset.users, clients, run.cfg.data.alpha, fraction, rng)


def _fitting(run: Plan, options: Options) -> Dataset:
    """The newcomers' examples in the run's units; raises FedRayError where its network cannot take them."""

    def load(embedding: str | Path | None) -> Dataset:
        cfg = DataConfig(name=str(path), embedding=embedding)
        dataset = loading.load(cfg, run.model.classes, run.names.classes)
        with reading(path, "give the columns of the run's data"):
            return tables.arranged(dataset, run.names.features)

    path = Path(options.data).expanduser()
    real, dataset = run.target is not None, load(None)
    reason = "its inputs are texts, those of the run numbers"
    require(run.texts or not dataset.texts, "data", options.data, reason, "give numbers")
    if dataset.texts and run.cfg.data.embedding is not None:
        dataset = load(run.cfg.data.embedding)  # the vectors that the run's words had
    wanted = run.model.input_shape
    if dataset.vectors is None:
        dataset = dataset._replace(x=own.fitted(dataset.x, wanted))
    shape = dataset.input_shape
    reason = f"its inputs have the shape {list(shape)}, those of the run {list(wanted)}"
    require(shape == wanted, "data", options.data, reason, "give inputs of that shape")
    kinds = {True: "real numbers", False: "labels"}
    reason = f"its targets are {kinds[dataset.real]}, those of the run {kinds[real]}"
    require(dataset.real == real, "data", options.data, reason, "give targets of that kind")
    return dataset._replace(scaling=run.scaling, target=run.target)


def adapt(run: Predictor, options: Options) -> tuple[Plan, Snapshot, State]:
    """Train the newcomers' personal factors under the server's state of the run."""
    plan, shards = make_plan(run.plan, options)
    state = State(plan.cfg.rounds, run.snapshot.server, plan.selection.init(1))
    with numerics(), bar("round", options.rounds, "newcomers") as move:
        cohort = LocalCohort(plan, block=Block(plan, range(plan.clients), shards, "auto"))
        while state.round < plan.rounds:
            state, _ = play_round(plan, state, cohort)
            move(state.round - plan.cfg.rounds, "  ".join(headlines(state.rows[-1])))
    return plan, Snapshot(state.server, cohort.snapshot()), state


def summarize(plan: Plan, state: State, options: Options) -> dict[str, Any]:
    """The measures of the last evaluation and what they mean."""
    last = state.rows[-1]
    return {
        "run": str(options.run),
        "data": options.data,
        "clients": plan.clients,
        "rounds": options.rounds,
        "train_examples": sum(map(len, plan.partition.train)),
        "test_examples": sum(map(len, plan.partition.test)),
        report.NOVEL: {name: last[f"{report.NOVEL}/{name}"] for name in plan.task.measures},
    }


def play(options: Options) -> tuple[dict[str, Any], Path]:
    """Adapt, and write the newcomers' models as a result of their own; raises FedRayError."""
    for name, value in (("clients", options.clients), ("rounds", options.rounds)):
        require(value is None or value >= 1, name, value, "at least one is needed", "leave it out")
    require(options.seed >= 0, "seed", options.seed, "is negative", "give a whole number from 0 on")
    run = finished.load(options.run)
    destination = naming.place("", options.output or f"{str(options.run).rstrip('/')}-newcomers", "")
    with locked(destination):
        writer = Writer(destination)
        try:
            plan, snapshot, state = adapt(run, options)
            summary = summarize(plan, state, options)
            with writing(writer.destination):
                writer.run(plan, snapshot, ())
                writer.table("metrics.csv", state.rows)
                writer.json("summary.json", summary)
                return summary, writer.commit()
        finally:
            writer.discard()


def show(options: Options, summary: dict[str, Any], folder: Path) -> None:
    """Print how well the newcomers are served, and where their models are."""
    found = summary[report.NOVEL]
    if "rmse" in found:
        quality = f"RMSE {found['rmse']:.4g}, NLL {found['nll']:.3f} nats, coverage {found['coverage']:.1%}"
    else:
        quality = f"accuracy {found['accuracy']:.2%}, NLL {found['nll']:.3f} nats, ECE {found['ece']:.2%}"
    examples = summary["train_examples"]
    print(
        f"{summary['clients']} newcomers after {options.rounds} rounds on {examples} examples: {quality}\n"
        f"result   {folder}\n"
        f"use it   {cli.load_command(folder)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 it could not end, 2 the request was at fault, 130 interrupted."""

    def body() -> int:
        given = sys.argv[1:] if argv is None else argv
        options = cli.read_options(Options, given, "python -m fedray.newcomers", __doc__ or "")
        summary, folder = play(options)
        if options.json:
            print(json.dumps(summary))
        else:
            show(options, summary, folder)
        return cli.DONE

    return cli.run_command(body, "interrupted: nothing was written")
