"""FedRay: personalized Bayesian federated learning on Ray.

    import fedray
    run = fedray.run("pfedbayes", "digits", rounds=5)
    run.predict(x, client=3).mutual_information
    fedray.compare_runs([run, fedray.run("fedavg", "digits", rounds=5, lr=0.1)])

The names below are the public ones; docs/library.md explains them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.config import CheckpointConfig as CheckpointConfig
    from fedray.config import DataConfig as DataConfig
    from fedray.config import Execution as Execution
    from fedray.config import Experiment as Experiment
    from fedray.config import ModelConfig as ModelConfig
    from fedray.config import TrackingConfig as TrackingConfig
    from fedray.federate.in_process import LocalFederation as LocalFederation
    from fedray.federate.planning import make_plan as make_plan
    from fedray.library.comparison import Comparison as Comparison
    from fedray.library.comparison import compare_runs as compare_runs
    from fedray.library.run import Round as Round
    from fedray.library.run import Run as Run
    from fedray.library.run import run as run
    from fedray.registry import plug_in as plug_in
    from fedray.running.finished import load as load
    from fedray.running.session import run_experiment as run_experiment
    from fedray.types import FedRayError as FedRayError
    from fedray.types import RunError as RunError

__version__ = "0.1.0"

MODULES = {  # PyTorch takes seconds to import: a name is imported when it is first used
    "CheckpointConfig": "fedray.config",
    "Comparison": "fedray.library.comparison",
    "DataConfig": "fedray.config",
    "Execution": "fedray.config",
    "Experiment": "fedray.config",
    "FedRayError": "fedray.types",
    "LocalFederation": "fedray.federate.in_process",
    "ModelConfig": "fedray.config",
    "Round": "fedray.library.run",
    "Run": "fedray.library.run",
    "RunError": "fedray.types",
    "TrackingConfig": "fedray.config",
    "compare_runs": "fedray.library.comparison",
    "load": "fedray.running.finished",
    "make_plan": "fedray.federate.planning",
    "plug_in": "fedray.registry",
    "run": "fedray.library.run",
    "run_experiment": "fedray.running.session",
}

# Without it, MKL may sum a product of small matrices in another order when it is one of a stack (seen on AMD). MKL
# reads it at its first product, hence here, before PyTorch is imported.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module 'fedray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULES])
