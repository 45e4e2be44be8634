"""Whether the machines of a cluster have the versions that the driver has: plans travel as pickles, and bits count."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# What actors import: MLflow, matplotlib and the rest of the driver's packages need not be on a machine.
PACKAGES = ("ray", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "fsspec", "safetensors", "psutil")
SECONDS = 300.0  # that a process may take to start on a machine under load, its environment included


class Mismatch(NamedTuple):
    """A package, or Python, of which a machine has another version, or none."""

    package: str
    there: str  # empty: it is missing
    here: str

    def __str__(self) -> str:
        return f"{self.package} {self.there or 'is missing'} there, {self.here} here"


def installed(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Python's version and those of packages in this process, without build tags; empty for one that is missing.

    Runs on machines that may have none of our packages, so it needs the standard library only.
    """
    found = {"Python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name).partition("+")[0]  # CPU and CUDA builds are one version
        except PackageNotFoundError:
            found[name] = ""
    return found


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[Mismatch]:
    """In what a machine differs from this process; what is missing here is not compared."""
    return [Mismatch(name, there[name], own) for name, own in here.items() if own and there[name] != own]


def check() -> None:
    """Look at the machines of the cluster that nobody has looked at; raises FedRayError for all that differ, by name.

    Every machine starts one process for it, which an actor may use afterwards.
    """
    from fedray.types import FedRayError  # imports PyTorch, which a machine may lack

    nodes = [node for node in ray.nodes() if node["Alive"]]
    job = ray.get_runtime_context().get_job_id()
    asked = {_versions(job, node["NodeID"]): node for node in nodes}
    late = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)[1]
    found = [f"{_named(asked[ref])}: did not answer within {SECONDS:g} s" for ref in late]
    own = installed()
    for ref, node in asked.items():
        if ref not in late and (wrong := _wrong(ref, own)):
            found.append(f"{_named(node)}: {wrong}")
    if found:
        raise FedRayError(
            f"machines of the cluster cannot take part: {'; '.join(found)}. Install the driver's versions there "
            "(uv pip install -c cluster/constraints.txt .) and start Ray anew"
        )


def unfit(node: str) -> str | None:
    """Why a machine cannot take part, empty if it can; None until it has answered, for which nobody waits here."""
    ref = _versions(ray.get_runtime_context().get_job_id(), node)
    return _wrong(ref, installed()) if ray.wait([ref], num_returns=1, timeout=0)[0] else None


def ask(node: str, function: Callable[..., Any], *args: Any) -> Any:
    """A reference to what a function gives on a machine; it costs no CPU, and is not tried again."""
    there: Any = NodeAffinitySchedulingStrategy(node, soft=False)  # Ray's own annotation knows other strategies only
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(function).remote(*args)


@functools.cache
def _versions(job: str, node: str) -> Any:
    """A reference to the versions on a machine, which do not change while its Ray runs; it ends with the job."""
    return ask(node, installed)


def _wrong(ref: Any, own: Mapping[str, str]) -> str:
    """Why a machine cannot take part; empty if it can, or is gone by now."""
    try:
        return ", ".join(map(str, differences(ray.get(ref), own)))
    except RuntimeEnvSetupError as error:
        return f"the code did not arrive ({' '.join(str(error).split())[:300]})"
    except RayError:
        return ""


def _named(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
