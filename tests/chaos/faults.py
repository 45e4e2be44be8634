"""Clients that fail on demand: an algorithm is wrapped so that whoever finds a ticket in a folder fails with it."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import torch
from ray import cloudpickle

from fedray.arrays import trees
from fedray.federate.plan import Plan
from fedray.types import Sums

KINDS = ("exception", "nan", "exit", "hang", "memory")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know nothing of the tests


def faulty(plan: Plan, tickets: Path, spared: int = 0) -> Plan:
    """The same plan, whose clients fail once for every ticket; run it with the backend ``loop``.

    The first ``spared`` that train in a process do not.
    """
    finish, trained = plan.algorithm.finish, []

    def failing(ctx, local, data):
        client, up = finish(ctx, local, data)
        trained.append(1)
        kind = claim(tickets) if len(trained) > spared else None
        if kind == "exception":
            raise RuntimeError("a fault was injected")
        if kind == "memory":
            raise MemoryError("a fault was injected")
        if kind == "exit":
            os._exit(1)
        if kind == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        return client, trees.tree_map(lambda leaf: leaf * math.nan, up) if kind == "nan" else up

    return plan._replace(algorithm=plan.algorithm._replace(finish=failing))


def always(plan: Plan, total: int, kind: str) -> Plan:
    """The same plan, in which the clients with so many training examples always fail."""
    finish = plan.algorithm.finish

    def failing(ctx, local, data):
        client, up = finish(ctx, local, data)
        ill = data.total == total
        if kind == "exception" and bool(ill):
            raise RuntimeError("this client cannot")
        spoilt = trees.tree_map(lambda leaf: torch.where(ill, math.nan, leaf), client if kind == "nan state" else up)
        return (spoilt, up) if kind == "nan state" else (client, spoilt)

    return plan._replace(algorithm=plan.algorithm._replace(finish=failing))


def fails_in(plan: Plan, name: str) -> Plan:
    """The same plan, in which a function of the algorithm fails wherever it is called, after its work is done."""
    sums = plan.algorithm.aggregate
    record = sums if isinstance(sums, Sums) and name in Sums._fields else plan.algorithm
    function = getattr(record, name)

    def failing(*args):
        function(*args)
        raise RuntimeError("no luck")

    record = record._replace(**{name: failing})
    algorithm = plan.algorithm._replace(aggregate=record) if isinstance(record, Sums) else record
    return plan._replace(algorithm=algorithm)


def issue(tickets: Path, kind: str, number: int) -> None:
    """Lay out a ticket."""
    tickets.mkdir(parents=True, exist_ok=True)
    (tickets / f"{number:04d}.{kind}").touch()


def claim(tickets: Path) -> str | None:
    """Take a ticket, which nobody else then gets."""
    for name in sorted(os.listdir(tickets)) if tickets.is_dir() else ():
        if name.endswith(".taken"):
            continue
        try:
            os.rename(tickets / name, tickets / f"{name}.taken")
        except FileNotFoundError:
            continue
        return name.rpartition(".")[2]
    return None
