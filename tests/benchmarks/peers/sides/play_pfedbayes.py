# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.15.0", "numpy", "h5py", "tqdm", "matplotlib", "scipy", "psutil==7.2.2"]
# ///
"""The public reimplementation of pFedBayes (AllenBeau/pFedBayes), from a checkout that the user names.

Its training code is used as it is. Its reader of JSON files is replaced by the shards of the case, and its evaluation,
which it does before every round, is left out. Five personal steps per minibatch are a constant of its code.

Variants: "as published".
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from measured import Case, Meter, Result, play


def users(case: Case) -> dict[str, Any]:
    """The clients' examples in the structure that its reader returns."""
    given = np.load(case.shards)
    x, y = given["x"].reshape(len(given["x"]), -1) / 127.5 - 1, given["y"]

    def part(name: str) -> dict[str, dict[str, np.ndarray]]:
        at = {f"f_{i:05d}": given[f"{name}{i}"] for i in range(case.clients)}
        return {user: {"x": x[chosen].astype(np.float32), "y": y[chosen]} for user, chosen in at.items()}

    return {"train": part("train"), "test": part("test")}


def side(case: Case, meter: Meter) -> Result:
    sys.path.insert(0, case.reference)
    os.chdir(case.reference)
    from FLAlgorithms.servers import serverpFedbayes
    from FLAlgorithms.trainmodel.models import pBNN

    data = users(case)
    serverpFedbayes.read_data = lambda dataset: (sorted(data["train"]), [], data["train"], data["test"])
    torch.manual_seed(1)
    device = torch.device("cpu")
    model = pBNN(784, 100, 10, device, 0.1, -3, 10), "pbnn"
    server = serverpFedbayes.pFedBayes(
        dataset="Mnist", algorithm="pFedBayes", model=model, batch_size=case.batch, learning_rate=case.lr, beta=1.0,
        lamda=15, num_glob_iters=case.warmup + case.rounds, local_epochs=case.steps, optimizer="SGD",
        num_users=case.clients, times=0, device=device, personal_learning_rate=case.lr,
    )  # fmt: skip
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    for user in server.users:
        user.optimizer1.register_step_post_hook(count)
    for round_number in range(case.warmup + case.rounds):
        if round_number == case.warmup:
            meter.start()
            steps = 0
        server.send_parameters()
        server.selected_users = server.select_users(round_number, server.num_users)
        for user in server.selected_users:
            user.train(server.local_epochs)
        server.aggregate_parameters()
    weights = sum(mu.numel() for mu in server.model.mus)
    return meter.result(case, len(server.selected_users), weights, steps * case.batch)


if __name__ == "__main__":
    play(side)
