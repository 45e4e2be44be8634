# /// script
# requires-python = ">=3.11"
# dependencies = ["flwr[simulation]==1.41.0", "torch==2.15.0", "psutil==7.2.2"]
# ///
"""Flower's simulation on Ray, with its message API: clients that do nothing, or FedAvg of a small network.

Variants: "2 actors".
"""

from __future__ import annotations

import functools

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from measured import Case, Meter, Result, play

NOTHING = 80_035  # parameters of the clients that do nothing


class Strategy(FedAvg):
    """FedAvg of all clients, which starts the meter after the warm-up and counts what comes back."""

    def __init__(self, case: Case, meter: Meter):
        super().__init__(fraction_evaluate=0.0, min_train_nodes=case.clients, min_available_nodes=case.clients)
        self.case, self.meter, self.gradients, self.replies = case, meter, 0, 0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == self.case.warmup + 1:
            self.meter.start()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if server_round > self.case.warmup:
            self.gradients += sum(int(reply.content["metrics"]["gradients"]) for reply in replies)
            self.replies += len(replies)
        return super().aggregate_train(server_round, replies)


def idle(message, context):
    """Send back what was sent."""
    return answered(message, message.content["arrays"], 0)


def answered(message, arrays: ArrayRecord, gradients: int):
    from flwr.app import Message

    metrics = MetricRecord({"num-examples": 1, "gradients": gradients})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def network():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


@functools.cache
def examples(shards: str):
    """All examples and the clients' positions; an actor reads them once."""
    import torch

    torch.set_num_threads(1)
    given = np.load(shards)
    x = (torch.from_numpy(given["x"]).float() / 255 - 0.5) / 0.5
    return x, torch.from_numpy(given["y"]), {name: given[name] for name in given.files if name.startswith("train")}


def trained(case: Case, message, context):
    """A client's steps of SGD."""
    import torch

    xs, ys, positions = examples(case.shards)
    at = positions[f"train{context.node_config['partition-id']}"]
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), case.lr)
    gradients = 0
    for _ in range(case.epochs):
        for batch in torch.from_numpy(np.random.permutation(at)).split(case.batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(xs[batch]), ys[batch]).backward()
            optimizer.step()
            gradients += len(batch)
    return answered(message, ArrayRecord(model.state_dict()), gradients)


def side(case: Case, meter: Meter) -> Result:
    client, server = ClientApp(), ServerApp()
    if case.work == "no-op":
        start = ArrayRecord([np.zeros(NOTHING, np.float32)])
        client.train()(idle)
    else:
        start = ArrayRecord(network().state_dict())
        client.train()(functools.partial(trained, case))
    results: list[Result] = []
    parameters = sum(array.numpy().size for array in start.values())

    @server.main()
    def main(grid, context) -> None:
        strategy = Strategy(case, meter)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=case.warmup + case.rounds)
        clients, left = divmod(strategy.replies, case.rounds)
        assert not left, "a client did not answer"
        results.append(meter.result(case, clients, parameters, strategy.gradients))

    resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=case.clients, backend_config=resources)
    return results[0]


if __name__ == "__main__":
    import play_flower  # so that actors import this file instead of getting its functions with every message

    play(play_flower.side)
