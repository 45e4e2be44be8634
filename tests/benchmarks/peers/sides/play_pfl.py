# /// script
# requires-python = ">=3.11"
# dependencies = ["pfl[pytorch]==0.6.0", "torch==2.15.0", "psutil==7.2.2"]
# ///
"""pfl (Apple's pfl-research) in one process: clients that do nothing, or FedAvg of a small network.

Variants: "one process".
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from measured import Case, Meter, Result, play
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

NOTHING = 80_035  # parameters of the clients that do nothing


class Network(nn.Module):
    """A network with the two methods that pfl asks for; it counts the examples whose loss it has computed."""

    def __init__(self, layers: nn.Module):
        super().__init__()
        self.layers = layers
        self.examples = 0

    def loss(self, x, y, **_):
        self.examples += len(y)
        return nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, *_, **__):
        return {}


class Nothing(FederatedAveraging):
    """Clients that send back what they were sent."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        return model.get_model_difference(initial_model_state), Metrics()


class Rounds(TrainingProcessCallback):
    """Starts the meter after the warm-up."""

    def __init__(self, case: Case, meter: Meter, network: Network):
        self.case, self.meter, self.network = case, meter, network

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if central_iteration + 1 == self.case.warmup:
            self.meter.start()
            self.network.examples = 0
        return False, Metrics()


def side(case: Case, meter: Meter) -> Result:
    torch.set_num_threads(1)
    idle = case.work == "no-op"
    if idle:
        network, users = (
            Network(nn.Linear(NOTHING, 1, bias=False)),
            {i: [np.zeros((1, 1))] for i in range(case.clients)},
        )
    else:
        network = Network(nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)))
        given = np.load(case.shards)
        x = (torch.from_numpy(given["x"]).float() / 255 - 0.5) / 0.5
        y = torch.from_numpy(given["y"])
        users = {i: [x[given[f"train{i}"]], y[given[f"train{i}"]]] for i in range(case.clients)}
    asked: list[int] = []
    order = itertools.cycle(range(case.clients))  # every client once a round

    def sampler() -> int:
        asked.append(next(order))
        return asked[-1]

    dataset = FederatedDataset.from_slices(users, sampler)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    rounds = case.warmup + case.rounds
    (Nothing() if idle else FederatedAveraging()).run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=case.clients, val_cohort_size=0
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset),
        model,
        NNTrainHyperParams(
            local_num_epochs=case.epochs, local_learning_rate=case.lr or 0.1, local_batch_size=case.batch or None
        ),
        NNEvalHyperParams(local_batch_size=None),
        [Rounds(case, meter, network)],
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return meter.result(case, len(set(asked[-case.clients :])), parameters, network.examples)


if __name__ == "__main__":
    play(side)
