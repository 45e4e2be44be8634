"""What a run needs of a federation, wherever its clients live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from fedray.federate.messages import ClassLosses, File, RoundMetrics
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot, State
from fedray.federate.uncertainty.reply import Uncertainty


class Source(Protocol):
    """A federation whose rounds are played: what a result is made of."""

    @property
    def device(self) -> str:
        """What its clients compute on: cpu, GPU on Ray, or the name of a GPU. Results have other last digits there."""
        ...

    def snapshot(self) -> Snapshot:
        """The server's and the clients' states now."""
        ...

    def save(self, folder: str) -> list[File]:
        """Write the clients' states into a folder as into a checkpoint, by links where they are on disk."""
        ...

    def class_losses(self) -> ClassLosses:
        """The sums by class, of the personal models now, that the loss deviation is made of."""
        ...

    def uncertainty(self, far: Tensor | None = None) -> Uncertainty:
        """What the uncertainty of the members' models now is good for; ``far`` are examples of another dataset."""
        ...

    def history(self) -> State:
        """The server's state with the measures of the rounds so far."""
        ...


class Federation(Source, Protocol):
    """A federation that is iterated over, round by round, inside a ``with`` block that frees its resources."""

    @property
    def plan(self) -> Plan:
        """What it plays, with the generator that ``auto`` stands for on its device."""
        ...

    def __enter__(self) -> Federation: ...

    def __exit__(self, *exc: object) -> None: ...

    def __iter__(self) -> Iterator[RoundMetrics]:
        """Play the rounds that are left; yield the metrics of each as it ends."""
        ...
