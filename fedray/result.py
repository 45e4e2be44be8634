"""A finished run on disk: written atomically, and loaded as a predictor with uncertainty.

    config.json             the resolved experiment, and what is needed to rebuild the network
    summary.json            the numbers of the run and their protocol
    metrics.csv             one row per round
    clients.csv             one row per client, last evaluation
    calibration.csv         confidence bins, last evaluation
    client_calibration.csv  the same of each client
    loss_deviation.csv      with --loss-deviation: NLL by client and class on its own (L) and all (G) test examples, and
                            how far these are from the clients' means (dL, dG)
    uncertainty.npz         predictive draws of one test image per client (round, client, label, probs [F, M, C])
    partition.npz           which examples each client trained and tested on
    global.safetensors      the server's state
    personal.safetensors    every client's private state, stacked [N, ...]
    figures/                accuracy; reliability and uncertainty, pooled and by client; loss deviation
"""  # fmt: skip

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import data, networks, partition, registry, scaling, trees
from fedray.config import to_dict
from fedray.local import padded
from fedray.plan import Plan
from fedray.replies import Spotlight
from fedray.rounds import Snapshot
from fedray.runfolder import experiment_of
from fedray.tensors import load_tree, save_tree
from fedray.types import Batch, FedRayError, client_itself


class Writer:
    """Collects a result in a hidden folder and moves it to its destination, where config.json appears last.

    One process at a time may have it. Raises FedRayError at construction where the destination is taken (unless it is
    that of the run that is ``resumed``) or cannot be written.
    """

    def __init__(self, destination: Path, resumed: bool = False):
        self.destination = Path(os.path.abspath(destination))
        taken = self.destination.exists() and (not self.destination.is_dir() or any(self.destination.iterdir()))
        if taken and not resumed:
            raise FedRayError(f"--output {destination}: already holds something; choose another --output or --name")
        self.folder = self.destination.parent / f".{self.destination.name}.part"
        shutil.rmtree(self.folder, ignore_errors=True)  # of a process that was killed
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise FedRayError(
                f"--output {destination}: cannot be written ({error.strerror}); choose a folder that you may write to"
            ) from None

    def json(self, name: str, value: Any) -> None:
        """A JSON file."""
        (self.folder / name).write_text(json.dumps(value, indent=2) + "\n")

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A CSV file with the union of the rows' columns, in order of appearance."""
        write_table(self.folder / name, rows)

    def run(self, plan: Plan, snapshot: Snapshot, spotlights: Sequence[Spotlight]) -> None:
        """The configuration, the partition, the posteriors and the data of the uncertainty figure."""
        self.json("config.json", describe(plan))
        partition.save(self.folder / "partition.npz", plan.partition)
        save_tree(self.folder / "global.safetensors", snapshot.server)
        save_tree(self.folder / "personal.safetensors", snapshot.clients)
        if spotlights:
            np.savez_compressed(
                self.folder / "uncertainty.npz",
                round=np.concatenate([[spot.round] * len(spot.ids) for spot in spotlights]),
                client=np.concatenate([spot.ids for spot in spotlights]),
                label=np.concatenate([spot.label.numpy() for spot in spotlights]),
                probs=np.concatenate([spot.probs.numpy() for spot in spotlights]),
            )

    def commit(self) -> Path:
        """Move everything to the destination; what makes it a result, its config.json, last."""
        self.destination.mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "config.json"):
            target = self.destination / path.name
            if target.is_dir():  # of a run that was stopped in this very moment
                shutil.rmtree(target)
            os.replace(path, target)
        return self.destination

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file with the union of the rows' columns, in order of appearance."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def describe(plan: Plan) -> dict[str, Any]:
    """The resolved experiment with the algorithm's name, and the shape of its data."""
    shape = {
        "input_shape": list(plan.model.input_shape),
        "classes": plan.model.classes,
        "scaling": scaling.to_json(plan.scaling),
    }
    return {
        "algorithm": registry.algorithm_name(plan.cfg.algorithm),
        "experiment": to_dict(plan.cfg),
        "data": shape,
    }


class Prediction(NamedTuple):
    """The predictive distribution of B inputs; entropies in nats."""

    probs: Tensor  # [B, C] average over the posterior's draws
    entropy: Tensor  # [B] total uncertainty H[p̄]
    expected_entropy: Tensor  # [B] aleatoric part, mean over draws of H[p_m]
    mutual_information: Tensor  # [B] epistemic part, their difference
    draws: Tensor  # [M, B, C] one distribution per posterior draw


class Predictor:
    """The global and the personal models of a finished run."""

    def __init__(self, plan: Plan, snapshot: Snapshot):
        self.plan, self.snapshot = plan, snapshot

    def __repr__(self) -> str:
        plan, name = self.plan, registry.algorithm_name(self.plan.cfg.algorithm)
        kinds = [kind for kind, has in (("personal", plan.personal), ("global", plan.algorithm.predict_global)) if has]
        call = "predict(x, client=0)" if plan.personal else "predict(x)"
        return f"{' and '.join(kinds)} models of {name}, {plan.clients} clients, {plan.cfg.rounds} rounds: .{call}"

    def predict(self, x: Any, client: int | None = None, samples: int | None = None, seed: int = 0) -> Prediction:
        """Predict inputs x [B, ...], in the dataset's own units, with a client's model or the global one (None).

        ``samples`` posterior draws are averaged (by default as in the run, 0 for the mean weights).
        Raises FedRayError for a model that the method lacks, an unknown client, or inputs of another shape.
        """
        plan, algorithm = self.plan, self.plan.algorithm
        predict = algorithm.predict_global if client is None else algorithm.predict_personal
        kind = "global model" if client is None else "personal models"
        if predict is None:
            raise FedRayError(f"client={client}: {registry.algorithm_name(plan.cfg.algorithm)} has no {kind}")
        if client is not None and not 0 <= client < plan.clients:
            raise FedRayError(f"client={client}: this run has clients 0 to {plan.clients - 1}")
        model = plan.view(self.snapshot.server) if client is None else self._personal(client)
        samples = plan.cfg.predict_samples if samples is None else samples
        noise = plan.prediction_noise(samples, f"predict-{seed}", client or 0, 0)
        with torch.no_grad():
            return _uncertainty(predict(plan.cfg.algorithm, plan.model, model, self._inputs(x), noise))

    def _inputs(self, x: Any) -> Tensor:
        x = torch.as_tensor(np.asarray(x)).float()
        if tuple(x.shape[1:]) != self.plan.model.input_shape:
            wanted = ", ".join(map(str, self.plan.model.input_shape))
            raise FedRayError(f"x has shape {tuple(x.shape)}; this network takes [B, {wanted}]")
        return x if self.plan.scaling is None else self.plan.scaling.apply(x.clone())

    def _personal(self, client: int) -> Any:
        plan, algorithm = self.plan, self.plan.algorithm
        shape = algorithm.personal_noise(plan.cfg.algorithm, plan.model, plan.facts)
        noise = plan.stream("personalize", client, plan.cfg.rounds).normal(shape)
        state, view = trees.row(self.snapshot.clients, client), plan.view(self.snapshot.server)
        return algorithm.personalize(plan.cfg.algorithm, plan.model, state, view, self._shard(client), noise)

    def _shard(self, client: int) -> Batch | None:
        """The client's training data, for the methods that adapt at prediction; the others need no dataset."""
        plan = self.plan
        if plan.algorithm.personalize is client_itself:
            return None
        (shard,) = data.shards(plan.dataset(), plan.partition, [client])
        return padded(shard, plan.facts.shard)


def _uncertainty(log_probs: Tensor) -> Prediction:
    draws = log_probs.exp()
    probs = (torch.logsumexp(log_probs, 0) - math.log(len(log_probs))).exp()
    entropy = -torch.special.xlogy(probs, probs).sum(-1)
    expected = -torch.special.xlogy(draws, draws).sum(-1).mean(0)
    return Prediction(probs, entropy, expected, (entropy - expected).clamp_min(0), draws)


def load(folder: str | Path) -> Predictor:
    """The predictor of a finished run.

    Raises FedRayError naming the file that is missing, damaged or of another run.
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / "config.json").read_text())
        name, shape = described["algorithm"], described["data"]
        cfg = experiment_of(name, described["experiment"])
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise FedRayError(
            f"{folder / 'config.json'} cannot be read ({error}); give the folder of a finished run"
        ) from None
    size = cfg.model.hidden, cfg.model.lstm_hidden
    model = networks.build(cfg.model.name, *size, tuple(shape["input_shape"]), shape["classes"])
    algorithm = registry.algorithm_of(cfg.algorithm)
    selection = registry.pick(registry.selections(), "--selection", cfg.selection)
    plan = Plan(
        cfg, algorithm, selection, model, partition.load(folder / "partition.npz"), scaling.from_json(shape["scaling"])
    )
    server = plan.initial_server()
    client = algorithm.client_init(cfg.algorithm, model, server)
    clients = trees.stack([client] * plan.clients)
    snapshot = Snapshot(
        load_tree(folder / "global.safetensors", server), load_tree(folder / "personal.safetensors", clients)
    )
    return Predictor(plan, snapshot)
