"""Which machines see a folder of this one: what trials write there is lost on all others."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.machines.versions import SECONDS, ask


def blind(folder: Path) -> list[str]:
    """The other machines of the cluster, by name, that do not see this machine's folder; who does not answer is one."""
    me = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != me]
    if not others:
        return []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part") as mark:
        asked = {ask(node["NodeID"], os.path.exists, mark.name): node["NodeManagerHostname"] for node in others}
        ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
        return sorted(name for ref, name in asked.items() if not _answer(ref))


def _answer(ref: Any) -> bool:
    with contextlib.suppress(RayError):
        return bool(ray.get(ref, timeout=0.1))
    return False
