"""A federation as its server hosts it: what is played, where, and from which state."""

from __future__ import annotations

from typing import Any, NamedTuple

from actors.machines.placement import Layout
from fedray.federate.compiled.package import Backend
from fedray.federate.failures import RETRY, FailurePolicy
from fedray.federate.plan import Plan
from fedray.federate.storage.checkpoint import CheckpointStore
from fedray.federate.storage.checkpoint_files import Checkpoint


class Hosted(NamedTuple):
    """A federation as a server hosts it."""

    plan: Plan
    layout: Layout
    backend: Backend
    policy: FailurePolicy = RETRY
    dataset: Any = None  # reference to the examples; None: each process loads its own
    store: CheckpointStore | None = None  # of its checkpoints; None: it keeps none
    begun: Checkpoint | None = None  # from where it goes on
    name: str = "fedray"  # by which Ray's dashboard shows its actors: the run's, or the sweep's whose trials share them
    label: str = ""  # by which metrics are told apart: a trial's; by default the name
