"""The clients of a federation in its server's own process, where one process holds them all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from fedray.federate.compiled.package import Backend
from fedray.federate.device.numbers import set_precision
from fedray.federate.failures import FailurePolicy
from fedray.federate.in_process import LocalCohort
from fedray.federate.messages import Failure
from fedray.federate.plan import Plan


class InsideCohort(LocalCohort):
    """All clients here, for a server that asks as it asks client actors; what kills them kills their server."""

    lags: Mapping[str, float] = {}  # nobody waits for anybody

    def __init__(self, plan: Plan, backend: Backend, dataset: Any = None, folder: str = ""):
        """``dataset`` is a reference to the loaded dataset, without which it is read from its files."""
        self._backend: Backend = backend
        self._dataset = None if dataset is None else ray.get(dataset)
        self._folder = folder
        self._begin(plan)

    def reset(self, plan: Plan, policy: FailurePolicy) -> None:
        """Begin another federation."""
        self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        set_precision(plan.cfg.precision)
        given = plan if self._dataset is None else plan._replace(given=self._dataset)
        super().__init__(given, self._backend, folder=self._folder)

    def take_failures(self) -> tuple[Failure, ...]:
        """None: a failure of a client ends the server's process, or is an error of the round."""
        return ()

    def pids(self) -> list[int]:
        """The process that hosts the clients."""
        return [os.getpid()]

    def close(self) -> None:
        """Nothing to stop; states on this machine's disk go."""
        self.block.private.clear()
