"""A cloud for Ray's autoscaler: its machines are raylets on this machine, with GPUs that do not exist.

A machine is a file in a folder, with the process of its `ray start`: it ends when its file is removed. What a machine
of a type does is in the ``node_config`` of the type: how many seconds it takes to start, whether it never does, or why
it is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

HEAD = "head"
RAY = str(Path(sys.executable).parent / "ray")
# Ports that several raylets on one machine do not share; no more memory than a test needs.
ALIKE = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0", "--disable-usage-stats",
         "--object-store-memory=80000000"]  # fmt: skip


def switch_off(pid: int) -> None:
    """Kill a process and all that it has started, as a loss of power would."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


class Raylets(NodeProvider):
    """The machines of a folder; see Ray's ``NodeProvider`` for the methods."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str):
        super().__init__(provider_config, cluster_name)
        self._folder = Path(provider_config["folder"])
        self._address = provider_config["address"]
        self._lock = threading.RLock()
        self._tags = {HEAD: {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD,
                             TAG_RAY_NODE_NAME: HEAD, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}}  # fmt: skip
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            for name in [name for name in self._tags if name != HEAD and not (self._folder / name).exists()]:
                self.terminate_node(name)
            return [name for name, tags in self._tags.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._tags

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self._tags

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self._lock:
            return dict(self._tags[node_id])

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        with self._lock:
            self._tags[node_id].update(tags)

    def internal_ip(self, node_id: str) -> str:
        return "127.0.0.1"

    external_ip = internal_ip

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        if node_config.get("refused"):
            raise RuntimeError(node_config["refused"])
        kind = tags[TAG_RAY_USER_NODE_TYPE]
        for _ in range(count):
            with self._lock:
                number = len(list(self._folder.glob("*.log"))) + 1
                name = f"{kind}-{number}"
                command = [RAY, "start", f"--address={self._address}", "--block", *ALIKE]
                command += [f"--num-cpus={resources.get('CPU', 0):g}", f"--num-gpus={resources.get('GPU', 0):g}"]
                # A folder of its own: two that start at a time would choose the same names for their sockets.
                command.append(f"--temp-dir={os.environ['RAY_TMPDIR']}/{name}")
                line = "sleep infinity" if node_config.get("never") else " ".join(["exec", *command])
                with (self._folder / f"{name}.log").open("wb") as log:
                    process = subprocess.Popen(
                        ["bash", "-c", f"sleep {node_config.get('seconds', 0)}; {line}"],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                        env=os.environ | {"RAY_CLOUD_INSTANCE_ID": name, "RAY_NODE_TYPE_NAME": kind},
                    )  # fmt: skip
                self._tags[name] = tags | {TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
                self._processes[name] = process
                (self._folder / name).write_text(json.dumps({"pid": process.pid, "kind": kind}))

    def terminate_node(self, node_id: str) -> None:
        with self._lock:
            (self._folder / node_id).unlink(missing_ok=True)
            self._tags.pop(node_id, None)
            process = self._processes.pop(node_id, None)
        if process is not None:
            switch_off(process.pid)
            process.wait()
