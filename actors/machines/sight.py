"""Which machines see a folder of this one: what trials write there is lost on all others."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.machines.versions import SECONDS


def blind(folder: Path) -> list[str]:
    """The other machines of the cluster, by name, that do not see this machine's folder; who does not answer is one."""
    me = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != me]
    if not others:
        return []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part") as mark:
        asked = {_ask(node["NodeID"], mark.name): node["NodeManagerHostname"] for node in others}
        ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
        return sorted(name for ref, name in asked.items() if not _answer(ref))


def _ask(node: str, path: str) -> Any:
    """A reference to whether a machine has a file."""
    there: Any = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(os.path.exists).remote(path)


def _answer(ref: Any) -> bool:
    with contextlib.suppress(RayError):
        return bool(ray.get(ref, timeout=0.1))
    return False
