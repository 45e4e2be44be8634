"""The result of a run, written atomically.

    config.json             the resolved experiment, and what is needed to rebuild the network
    summary.json            the numbers of the run and their protocol
    metrics.csv             one row per round
    clients.csv             one row per client, last evaluation
    calibration.csv         confidence bins, last evaluation
    client_calibration.csv  the same of each client
    coverage.csv            of real targets instead: how many lie in central intervals, last evaluation
    loss_deviation.csv      with --loss-deviation: NLL by client and class on its own (L) and all (G) test examples, and
                            how far these are from the clients' means (dL, dG)
    client_uncertainty.csv  with --uncertainty: what each client's uncertainty is good for, thresholds of its sets
    risk_coverage.csv       likewise: the share of errors among the most confident predictions
    shift.csv               likewise: accuracy and calibration under corrupted inputs
    uncertainty.npz         predictive draws of one test image per client (round, client, label, probs [F, M, C])
    partition.npz           which examples each client trained and tested on
    global.safetensors      the server's state, a tensor per layer (posterior_files.py)
    selection.safetensors   the selection policy's, if it remembers anything
    personal.safetensors    every client's private state, stacked [N, ...], likewise; with states on disk instead:
    personal/               a file for every client that has trained, with whole vectors, and files.json, their list
    figures/                accuracy, or RMSE and coverage; reliability and uncertainty, pooled and by client; loss
                            deviation; what the uncertainty is good for
"""  # fmt: skip

from __future__ import annotations

import csv
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray import registry
from fedray.arrays import trees
from fedray.arrays.tensor_files import save_tree
from fedray.config import to_dict
from fedray.data import partition, scaling
from fedray.federate.measures import loss_deviation
from fedray.federate.messages import Saved, Spotlight
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot
from fedray.federate.uncertainty import summary as uncertain
from fedray.running import posterior_files
from fedray.running.files import leftover, remove_leftovers, to_disk, write_json, write_table
from fedray.terminal import uninterrupted
from fedray.types import FedRayError, unwritable

PERSONAL = "personal"
SELECTION = "selection.safetensors"
# What a result of fewer rounds may have, or a run that was stopped in `commit`, that the one in its place lacks.
OPTIONAL = (
    *(PERSONAL, f"{PERSONAL}.safetensors", SELECTION, "failures.csv", "uncertainty.npz", "figures"),
    *(loss_deviation.TABLE, uncertain.CLIENTS, uncertain.RISKS, uncertain.SHIFT),
)


class Writer:
    """Collects a result in a hidden folder and moves it to its destination, where config.json appears last.

    One process at a time may have it. Raises FedRayError at construction where the destination is taken (unless it is
    that of the run that is ``resumed``) or cannot be written.
    """

    def __init__(self, destination: Path, resumed: bool = False):
        self.destination = Path(os.path.abspath(destination))
        if taken(self.destination) and not resumed:
            raise FedRayError(f"--output {destination}: already holds something; choose another --output")
        # Files are moved from there, which cannot be another volume: a link may lead to one.
        real = Path(os.path.realpath(self.destination))
        self.folder = (real if os.path.ismount(real) else real.parent) / part_of(real)
        shutil.rmtree(self.folder, ignore_errors=True)  # of a process that was killed
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise FedRayError(unwritable(f"--output {destination}", error)) from None

    def json(self, name: str, value: Any) -> None:
        """A JSON file."""
        write_json(self.folder / name, value)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A CSV file with the union of the rows' columns, in order of appearance."""
        write_table(self.folder / name, rows)

    def stream(self, name: str, rows: Iterator[Mapping[str, Any]]) -> None:
        """A CSV file of rows that are made one by one, and that all have the columns of the first."""
        first = next(rows, {})
        with (self.folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(first))
            writer.writeheader()
            writer.writerows(itertools.chain([first], rows))

    def run(self, plan: Plan, snapshot: Snapshot, spotlights: Sequence[Spotlight]) -> None:
        """The configuration, the partition, the posteriors and the data of the uncertainty figure."""
        self.json("config.json", describe(plan))
        partition.save(self.folder / "partition.npz", plan.partition)
        words = {"algorithm": registry.algorithm_name(plan.cfg.algorithm), "rounds": str(plan.cfg.rounds)}
        words |= {"classes": ", ".join(plan.names.classes)} if plan.names.classes else {}
        posterior_files.save(self.folder / "global.safetensors", snapshot.server, plan.model, words)
        if isinstance(snapshot.clients, Saved):
            self.json(f"{PERSONAL}/files.json", [file._asdict() for file in snapshot.clients.files])
        else:
            words |= {"clients": ", ".join(plan.names.users) or f"0 to {plan.clients - 1}"}
            posterior_files.save(
                self.folder / f"{PERSONAL}.safetensors", snapshot.clients, plan.model, words, stacked=True
            )
        if spotlights:
            np.savez_compressed(
                self.folder / "uncertainty.npz",
                round=np.concatenate([[spot.round] * len(spot.ids) for spot in spotlights]),
                client=np.concatenate([spot.ids for spot in spotlights]),
                label=np.concatenate([spot.label.numpy() for spot in spotlights]),
                probs=np.concatenate([spot.probs.numpy() for spot in spotlights]),
            )

    def selection(self, state: Any) -> None:
        """What the selection policy remembers, for a run that is to go on."""
        if trees.leaves(state):
            save_tree(self.folder / SELECTION, state)

    def commit(self) -> Path:
        """Move everything to the destination: last what makes it a result, its config.json, and then its status."""
        for path in self.folder.rglob("*"):
            to_disk(path)  # the checkpoints go once the result is there, and that has to survive the machine's own fall
        with uninterrupted():  # what is replaced and what replaces it would both be lost
            self.destination.mkdir(exist_ok=True)
            remove_leftovers(self.destination)
            (self.destination / "config.json").unlink(missing_ok=True)  # of fewer rounds: no longer a result
            for path in (self.destination / name for name in OPTIONAL):
                linked = path.is_symlink()  # what it leads to stays
                shutil.rmtree(path) if path.is_dir() and not linked else path.unlink(missing_ok=True)
            last = ("config.json", "status.json")
            for path in sorted(
                self.folder.iterdir(), key=lambda path: last.index(path.name) if path.name in last else -1
            ):
                os.replace(path, self.destination / path.name)
            to_disk(self.destination)
            self.discard()
        return self.destination

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


def taken(destination: Path) -> bool:
    """Whether anything but what a killed process left is at a place."""
    if not destination.is_dir():
        return destination.exists()
    part = part_of(Path(os.path.realpath(destination)))
    return not all(leftover(path) or path.name == part for path in destination.iterdir())


def part_of(real: Path) -> str:
    """The name of the hidden folder in which the result of a destination, which is no link, is collected."""
    return f".{real.name}.part"


def describe(plan: Plan) -> dict[str, Any]:
    """The resolved experiment with the algorithm's name, and the shape of its data."""
    shape = {
        "input_shape": list(plan.model.input_shape),
        "classes": plan.model.classes,
        "texts": plan.texts,
        "scaling": scaling.to_json(plan.scaling),
        "target": scaling.to_json(plan.target),
        "names": plan.names._asdict(),
    }
    return {
        "algorithm": registry.algorithm_name(plan.cfg.algorithm),
        "plug_ins": list(plan.plug_ins),
        "experiment": to_dict(plan.cfg),
        "data": shape,
        "digests": dict(plan.digests),
    }
