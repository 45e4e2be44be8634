"""The clients of a federation in its server's own process, where one process holds them all."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray

from actors.hosted import Hosted
from fedray.federate.device.numbers import set_precision
from fedray.federate.in_process import LocalCohort
from fedray.federate.messages import Failure


class InsideCohort(LocalCohort):
    """All clients here, for a server that asks as it asks client actors; what kills them kills their server."""

    lags: Mapping[str, float] = {}  # nobody waits for anybody

    def __init__(self, hosted: Hosted, folder: str = ""):
        """``folder`` keeps the clients' states on disk; without one they stay in memory."""
        self._backend = hosted.backend
        self._dataset = None if hosted.dataset is None else ray.get(hosted.dataset)
        self._folder = folder
        self.reset(hosted)

    def reset(self, hosted: Hosted) -> None:
        """Begin another federation."""
        plan = hosted.plan
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
