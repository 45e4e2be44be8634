"""What the cluster's autoscaler could start, is starting, and failed to start: all that we read of Ray's internals.

Ray offers no public way to learn this. The types of machines are in the file that `ray start --autoscaling-config`
names, or on Kubernetes in the RayCluster; both are at hand on the head only. What is starting is what `ray status`
shows. Where another version of Ray keeps any of it elsewhere, there is no offer, and runs use the machines that exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import ray

from actors.machines.offer import MachineKind, Offer
from actors.machines.placement import Node

T = TypeVar("T")

HEAD = "node:__internal_head__"  # a resource of the head's machine
HEAD_SECONDS = 120.0  # for a process on the head to start and look
KUBERNETES = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LOG_BYTES = 100_000  # of the autoscaler's log that are searched, from its end


class Starting(NamedTuple):
    """What the autoscaler is doing, by type of machine."""

    running: Mapping[str, int] = {}
    starting: Mapping[str, int] = {}
    failed: Mapping[tuple[str, float], str] = {}  # by type and time in Unix seconds: why no machine was started


class _Monitor(NamedTuple):
    """The autoscaler's process on the head."""

    config: str
    logs: str


class _Types(NamedTuple):
    """The types of machines of the autoscaler's file."""

    cluster: str
    head: str
    most: int  # workers
    kinds: tuple[tuple[str, Node, int], ...]  # name, resources, most


def offer() -> Offer | None:
    """What the cluster's autoscaler can start beside the machines that run; None where there is none that we can read.

    Types that do not say what their machines have (`ray up` of your own machines) are left out.
    """
    try:
        types = _on_the_head(_types, _address())
        if types is None:
            return None
        running = look().running
    except Exception:  # whatever Ray's internals raise in a version that has moved them
        return None
    kinds = tuple(
        MachineKind(name, node, max(0, most - running.get(name, 0)))
        for name, node, most in types.kinds
        if name != types.head and (node.cpus or node.gpus)
    )
    workers = sum(count for name, count in running.items() if name != types.head)
    return Offer(types.cluster, kinds, max(0, types.most - workers)) if kinds else None


def look() -> Starting:
    """What the autoscaler is doing now; nothing where it does not say."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    with contextlib.suppress(Exception):
        return _look_v2() if is_autoscaler_v2() else _look_v1()
    return Starting()


def why_failed(kind: str, reported: str) -> str:
    """The provider's own words for a failed launch, which autoscaler v2 leaves in its log; else the reported ones."""
    with contextlib.suppress(Exception):
        return _on_the_head(_logged_failure, _address(), kind) or reported
    return reported


def _look_v2() -> Starting:
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(_address())
    starting = Counter(node.ray_node_type_name for node in status.pending_nodes)
    for launch in status.pending_launches:
        starting[launch.ray_node_type_name] += launch.count
    return Starting(
        Counter(node.ray_node_type_name for node in [*status.active_nodes, *status.idle_nodes]),
        starting,
        {(one.ray_node_type_name, one.failed_ts_s or 0): one.details or "" for one in status.failed_launches},
    )


def _look_v1() -> Starting:
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    report: dict[str, Any] = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS))["autoscaler_report"]
    starting = Counter(report["pending_launches"]) + Counter(kind for _, kind, _ in report["pending_nodes"])
    records = report["node_availability_summary"]["node_availabilities"]
    failed = {
        (kind, record["last_checked_timestamp"]): f"{why['category']}: {why['description']}"
        for kind, record in records.items()
        if (why := record["unavailable_node_information"])
    }
    return Starting(report["active_nodes"], starting, failed)


def _address() -> str:
    return ray.get_runtime_context().gcs_address


def _on_the_head(act: Callable[..., T], *args: Any) -> T:
    """What a function returns on the head's machine."""
    me = ray.get_runtime_context().get_node_id()
    if any(node["NodeID"] == me and HEAD in node["Resources"] for node in ray.nodes()):
        return act(*args)
    task = ray.remote(num_cpus=0, resources={HEAD: 0.001}, max_retries=0)(act)
    return ray.get(task.remote(*args), timeout=HEAD_SECONDS)


def _types(address: str) -> _Types | None:
    """The types of machines; None without an autoscaler."""
    from ray.autoscaler.v2.instance_manager.config import FileConfigReader, KubeRayConfigReader

    monitor = _monitor(address)
    if monitor and monitor.config:
        reader: Any = FileConfigReader(os.path.expanduser(monitor.config))
    elif "RAY_CLUSTER_NAME" in os.environ and KUBERNETES.exists():
        from ray.autoscaler._private.kuberay.autoscaling_config import AutoscalingConfigProducer

        reader = KubeRayConfigReader(AutoscalingConfigProducer(os.environ["RAY_CLUSTER_NAME"], KUBERNETES.read_text()))
    else:
        return None
    config = reader.get_cached_autoscaling_config()
    kinds = tuple(
        (name, Node(kind.resources.get("CPU", 0.0), kind.resources.get("GPU", 0.0)), kind.max_worker_nodes)
        for name, kind in config.get_node_type_configs().items()
    )
    most = config.get_max_num_worker_nodes()
    most = sum(kind[2] for kind in kinds) if most is None else most
    return _Types(config.get_config("cluster_name"), config.get_head_node_type(), most, kinds)


def _monitor(address: str) -> _Monitor | None:
    """The autoscaler's process of the cluster at an address, if it runs on this machine."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if any(word.endswith("/monitor.py") for word in words) and options.get("gcs-address") == address:
            return _Monitor(options.get("autoscaling-config", ""), options.get("logs-dir", ""))
    return None


def _logged_failure(address: str, kind: str) -> str:
    """Why the last launch of a type failed, from the autoscaler's log; empty where it says nothing."""
    monitor = _monitor(address)
    if monitor is None:
        return ""
    with (Path(monitor.logs) / "monitor.log").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        text = log.read().decode(errors="replace")
    found = re.findall(rf"Failed to launch \d+ nodes of type {re.escape(kind)}: (.+)", text)
    return found[-1].strip() if found else ""
