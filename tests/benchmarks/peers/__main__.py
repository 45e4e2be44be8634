"""FedRay beside another simulator: the same model, data, clients, batch and steps, in turn, on this machine.

    python -m tests.benchmarks.peers NAME [--case CASE] [--turns 3] [--rounds R] [--environments FOLDER]

NAME is flower, pfl, blazefl, or pfedbayes (which needs --reference DIR, a checkout of AllenBeau/pFedBayes). Each peer
has an environment of its own, made by uv from the pinned release in its script; blazefl needs Python 3.14. Datasets are
read from FEDRAY_DATA_ROOT. Every turn is a process of its own with one thread per process; CPU seconds are those of all
processes of a side in the measured rounds, without start-up and warm-up. The command fails where the sides did not do
the same work.
"""  # fmt: skip

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.config import DataConfig, Experiment
from fedray.data import loading
from fedray.federate.planning import make_plan
from tests.benchmarks.peers.environments import command, python_of, settings
from tests.benchmarks.peers.harness import from_process, in_turn, table
from tests.benchmarks.peers.sides.measured import Case

ENVIRONMENTS = Path("~/.cache/fedray/peers").expanduser()
ON_RAY, HERE_ALONE = "on Ray, 2 actors", "in process"


class Match(NamedTuple):
    """A case, and how the peer and FedRay are to play it; the peer's first variant is what ratios refer to."""

    case: Case
    peer: tuple[str, ...]
    fedray: tuple[str, ...]
    data: str = ""  # the dataset whose shards both sides get


IDLE = Case("no-op", "", clients=100, rounds=10, warmup=3)
IDLE_1000 = IDLE._replace(clients=1000, rounds=3, warmup=2)
MNIST = Case("fedavg", "", clients=100, rounds=5, warmup=2, steps=30, batch=20, lr=0.05)
CIFAR10 = Case("fedavg", "", clients=100, rounds=5, warmup=1, steps=50, batch=50, lr=0.1, epochs=5)
MEDIUM = Case("pfedbayes", "", clients=10, rounds=5, warmup=1, steps=20, batch=100, lr=0.001)
MATCHES = {
    "flower": {
        "no-op": Match(IDLE, ("2 actors",), (ON_RAY,)),
        "no-op-1000": Match(IDLE_1000, ("2 actors",), (ON_RAY,)),
        "mnist": Match(MNIST, ("2 actors",), (ON_RAY,), "mnist"),
    },
    "pfl": {
        "no-op": Match(IDLE, ("one process",), (HERE_ALONE, ON_RAY)),
        "no-op-1000": Match(IDLE_1000, ("one process",), (HERE_ALONE, ON_RAY)),
        "mnist": Match(MNIST, ("one process",), (HERE_ALONE, ON_RAY), "mnist"),
    },
    "blazefl": {
        "cifar10": Match(CIFAR10, ("pictures", "tensors", "tensors, one process"), (HERE_ALONE, ON_RAY), "cifar10")
    },
    "pfedbayes": {"mnist-medium": Match(MEDIUM, ("as published",), (HERE_ALONE, ON_RAY), "mnist")},
}


def deal(case: Case, data: str, file: Path) -> None:
    """Write the pooled examples and every client's positions: the official halves at random, or pFedBayes's shards."""
    if case.work == "pfedbayes":
        plan = make_plan(Experiment(algorithm=PFedBayes(), data=DataConfig(name=data, size="medium")))
        dataset, parts = plan.dataset(), {"train": plan.partition.train, "test": plan.partition.test}
    else:
        dataset = loading.load(DataConfig(name=data))
        tests = 10_000  # of both datasets, after the training examples
        rng = np.random.default_rng(0)
        train = rng.permutation(len(dataset.y) - tests)
        test = len(dataset.y) - tests + rng.permutation(tests)
        parts = {"train": np.split(train, case.clients), "test": np.split(test, case.clients)}
    named = {f"{part}{i}": at for part, shards in parts.items() for i, at in enumerate(shards)}
    np.savez(file, x=dataset.x, y=dataset.y, **named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MATCHES)
    parser.add_argument("--case", help="one of the peer's cases; by default all of them")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds to measure in a turn, instead of the case's")
    parser.add_argument("--clients", type=int, help="only so many of the case's clients, for a quick look")
    parser.add_argument("--fedray", help="FedRay's variants instead of the case's, with semicolons between")
    parser.add_argument("--peer", help="the peer's variants, likewise")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help=f"folder; by default {ENVIRONMENTS}")
    parser.add_argument("--reference", type=Path, help="a checkout of AllenBeau/pFedBayes")
    args = parser.parse_args()
    if args.name == "pfedbayes" and args.reference is None:
        parser.error("pfedbayes needs --reference, the folder of a checkout of AllenBeau/pFedBayes")
    matches = MATCHES[args.name]
    if args.case and args.case not in matches:
        parser.error(f"{args.name} has no case {args.case}; choose from {', '.join(matches)}")
    python = python_of(args.name, args.environments)
    for case in [args.case] if args.case else matches:
        match = matches[case]
        if args.fedray:
            match = match._replace(fedray=tuple(args.fedray.split(";")))
        if args.peer:
            match = match._replace(peer=tuple(args.peer.split(";")))
        print(f"\n{args.name}, {case}", flush=True)
        print("\n" + play(args, match, python), flush=True)


def play(args: argparse.Namespace, match: Match, python: Path) -> str:
    """The table of one match."""
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards.npz" if match.data else ""
        if match.data:
            deal(match.case, match.data, Path(shards))
        reference = "" if args.reference is None else str(args.reference.resolve())
        case = match.case._replace(
            clients=args.clients or match.case.clients,
            rounds=args.rounds or match.case.rounds,
            shards=str(shards),
            reference=reference,
        )
        sides = {
            f"{name}, {variant}": from_process(command(script, case._replace(variant=variant), own), settings())
            for name, script, own, variants in (
                (args.name, args.name, python, match.peer),
                ("FedRay", "fedray", Path(sys.executable), match.fedray),
            )
            for variant in variants
        }
        return table(in_turn(sides, args.turns, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
