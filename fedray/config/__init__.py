"""What a run is: frozen dataclasses, checked as they are made, and the operations on them.

An :class:`Experiment` fully determines the results; an :class:`Execution` only decides where and how fast they are
computed, and where they are written.
"""

from fedray.config.data import DataConfig, ModelConfig
from fedray.config.execution import CheckpointConfig, Execution, TrackingConfig
from fedray.config.experiment import Experiment
from fedray.config.settings import (
    decisive,
    differences,
    differing,
    fingerprint,
    flatten,
    from_dict,
    origins,
    override,
    to_dict,
)

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "Execution",
    "Experiment",
    "ModelConfig",
    "TrackingConfig",
    "decisive",
    "differences",
    "differing",
    "fingerprint",
    "flatten",
    "from_dict",
    "origins",
    "override",
    "to_dict",
]
