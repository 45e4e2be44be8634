"""The processes of a trial: its own is the server of a federation, whose clients are actors in its reservation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from actors.hosted import Hosted
from actors.server import ServerActor
from fedray.arrays import trees
from fedray.federate.messages import ClassLosses, File
from fedray.federate.rounds import Snapshot, State
from fedray.federate.uncertainty.reply import Uncertainty


class Processes:
    """Hands the client processes of a trial on to the trial that follows in its place, where they fit that one."""

    def __init__(self) -> None:
        self._server: ServerActor | None = None
        self._fit: Any = None  # what the processes were started with

    def serve(self, hosted: Hosted) -> ServerActor:
        """The server of a federation that begins, in this process."""
        states = hosted.store.states if hosted.store else ""
        fit = hosted.layout, hosted.backend, hosted.dataset, states
        if self._server is not None and fit == self._fit and not states:
            self._server.reset(hosted)
        else:
            self.close()
            self._server = ServerActor(hosted)
            self._fit = fit
        return self._server

    def close(self) -> None:
        """Stop the client processes."""
        if self._server is not None:
            self._server.close()
        self._server = None


class Served:
    """What the result of a run is made of, asked of its server in this process."""

    def __init__(self, server: ServerActor, device: str):
        self._server = server
        self.device = device

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        return trees.to_torch(self._server.snapshot())

    def save(self, folder: str) -> list[File]:
        """Write the clients' states into a folder, and list the files."""
        return self._server.save(folder)

    def class_losses(self) -> ClassLosses:
        """The sums by class that the loss deviation is made of."""
        return trees.to_torch(self._server.class_losses())

    def uncertainty(self, far: Tensor | None = None) -> Uncertainty:
        """What the uncertainty of the members' models is good for; ``far`` are examples of another dataset."""
        return trees.to_torch(self._server.uncertainty(trees.to_numpy(far)))

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        return trees.to_torch(self._server.history())
