# /// script
# requires-python = ">=3.14"
# dependencies = ["blazefl[contrib,reproducibility]==3.0.0", "torch==2.15.0", "torchvision==0.29.2", "psutil==7.2.2"]
# ///
"""BlazeFL's benchmark: FedAvg of the small CNN on CIFAR-10, without its random flips and crops.

Variants: "pictures" normalises every picture when it is asked for, by torchvision's transforms, as BlazeFL's benchmark
does; "tensors" has done so before. "..., one process" trains client after client; otherwise two worker processes do,
which BlazeFL starts anew in every round.
"""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path

import numpy as np
import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
)
from blazefl.core import FilteredDataset, PartitionedDataset
from measured import Case, Meter, Result, play
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms

PROCESSES = 2
NORMALIZED = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])


class Networks:
    """BlazeFL asks for a fresh network by name."""

    def select_model(self, model_name: str) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return nn.Sequential(
                *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
            )


class Shards(PartitionedDataset):
    """A file per client, as in BlazeFL's examples: its worker processes read it, and write it back."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, type_: Enum, cid: int | None) -> Path:
        return self.folder / f"{type_.value}{'' if cid is None else cid}.pt"

    def get_dataset(self, type_: Enum, cid: int | None):
        return torch.load(self.path(type_, cid), weights_only=False)

    def set_dataset(self, type_: Enum, cid: int | None, dataset) -> None:
        torch.save(dataset, self.path(type_, cid))

    def get_dataloader(self, type_: Enum, cid: int | None, batch_size: int | None = None, generator=None) -> DataLoader:
        dataset = self.get_dataset(type_, cid)
        return DataLoader(dataset, batch_size or len(dataset), shuffle=True, generator=generator)


def deal(case: Case, folder: Path) -> Shards:
    """The shards of the case as BlazeFL wants them."""
    shards, given = Shards(folder), np.load(case.shards)
    pictures, y = given["x"].transpose(0, 2, 3, 1), given["y"]

    def dataset(at: np.ndarray):
        if case.variant.startswith("pictures"):
            return FilteredDataset(range(len(at)), pictures[at], y[at].tolist(), transform=NORMALIZED)
        x = torch.stack([NORMALIZED(picture) for picture in pictures[at]])
        return TensorDataset(x, torch.from_numpy(y[at]))

    for i in range(case.clients):
        shards.set_dataset(FedAvgPartitionType.TRAIN, i, dataset(given[f"train{i}"]))
    everything = np.concatenate([given[f"test{i}"] for i in range(case.clients)])
    shards.set_dataset(FedAvgPartitionType.TEST, None, dataset(everything))
    return shards


def side(case: Case, meter: Meter) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        shards, networks = deal(case, Path(folder)), Networks()
        common = {
            "model_selector": networks, "model_name": "cnn", "dataset": shards, "num_clients": case.clients,
            "device": "cpu", "batch_size": case.batch, "seed": 0,
        }  # fmt: skip
        handler = FedAvgBaseServerHandler(**common, global_round=case.warmup + case.rounds, sample_ratio=1.0)
        common |= {"epochs": case.epochs, "lr": case.lr}
        if case.variant.endswith("one process"):
            torch.set_num_threads(1)
            trainer = FedAvgBaseClientTrainer(**common)
        else:
            trainer = FedAvgProcessPoolClientTrainer(
                **common, state_dir=Path(folder) / "state", num_parallels=PROCESSES
            )
        gradients, clients = 0, set()
        while not handler.is_stopped():
            if handler.round == case.warmup:
                meter.start()
                gradients = 0
            chosen = handler.sample_clients()
            trainer.local_process(handler.downlink_package(), chosen)
            for package in trainer.uplink_package():
                gradients += case.epochs * package.data_size  # the size of the shard, all of which an epoch passes over
                clients.add(package.cid)
                handler.load(package)
            handler.get_summary()  # its benchmark tests the global model after every round
        parameters = sum(parameter.numel() for parameter in handler.model.parameters())
        return meter.result(case, len(clients), parameters, gradients)


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    play(side)
