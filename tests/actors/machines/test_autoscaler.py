"""What we read of Ray's autoscaler, from the files and replies of the Ray that is installed; no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.v2 import sdk
from ray.autoscaler.v2.schema import ClusterStatus, LaunchRequest, NodeInfo
from ray.experimental import internal_kv

from actors.machines import autoscaler
from actors.machines.autoscaler import Starting
from actors.machines.offer import MachineKind, Offer
from actors.machines.placement import Node

CLUSTER = Path(__file__).parents[3] / "cluster"


def asked(
    name: str, running: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsaid: str = ""
) -> Offer | None:
    """The offer of a cluster that was started by one of our files; one type may not say what its machines have."""
    file = tmp_path / "bootstrap.yaml"
    config = prepare_config(yaml.safe_load((CLUSTER / f"{name}.yaml").read_text()))
    if unsaid:
        config["available_node_types"][unsaid]["resources"] = {}
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    monkeypatch.setattr(autoscaler, "_address", lambda: "1.2.3.4:6379")
    monkeypatch.setattr(autoscaler, "_on_the_head", lambda act, *args: act(*args))
    monkeypatch.setattr(autoscaler, "_monitor", lambda address: autoscaler._Monitor(str(file), ""))
    monkeypatch.setattr(autoscaler, "look", lambda: Starting(running))
    return autoscaler.offer()


def test_the_offer_of_our_own_file_counts_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Node(8, 1)
    found = asked("gpu", {"head": 1}, tmp_path, monkeypatch)
    assert found == Offer("fedray-gpu", (MachineKind("g6", machine, 4), MachineKind("g5_spot", machine, 0)), 4)
    found = asked("gpu", {"head": 1, "g6": 3}, tmp_path, monkeypatch)
    assert found == Offer("fedray-gpu", (MachineKind("g6", machine, 1), MachineKind("g5_spot", machine, 0)), 1)


def test_machines_that_do_not_say_what_they_have_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked("onprem", {}, tmp_path, monkeypatch) is None
    found = asked("gpu", {}, tmp_path, monkeypatch, unsaid="g6")
    assert found is not None
    assert [kind.name for kind in found.kinds] == ["g5_spot"]


def test_without_an_autoscaler_or_with_one_that_cannot_be_read_there_is_no_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked("gpu", {}, tmp_path, monkeypatch) is not None
    monkeypatch.setattr(autoscaler, "_monitor", lambda address: None)
    assert autoscaler.offer() is None
    monkeypatch.setattr(autoscaler, "_monitor", lambda address: autoscaler._Monitor("/nowhere", ""))
    assert autoscaler.offer() is None


def test_the_state_of_autoscaler_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(kind: str) -> NodeInfo:
        return NodeInfo("", kind, "", "")

    pending, failed = LaunchRequest.Status.PENDING, LaunchRequest.Status.FAILED
    status = ClusterStatus(
        active_nodes=[node("head")],
        idle_nodes=[node("g6")],
        pending_nodes=[node("g6")],
        pending_launches=[LaunchRequest("", "g6", 2, pending, 0)],
        failed_launches=[LaunchRequest("", "big", 1, failed, 0, 7, "no quota")],
    )
    monkeypatch.setattr(autoscaler, "_address", lambda: "")
    monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
    assert autoscaler._look_v2() == Starting({"head": 1, "g6": 1}, {"g6": 3}, {("big", 7): "no quota"})


def test_the_state_of_autoscaler_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import asdict

    from ray.autoscaler._private import node_provider_availability_tracker as tracker
    from ray.autoscaler._private.autoscaler import AutoscalerSummary

    why = tracker.UnavailableNodeInformation("quota", "none left")
    records = {
        "big": tracker.NodeAvailabilityRecord("big", False, 7.0, why),
        "g6": tracker.NodeAvailabilityRecord("g6", True, 8.0, None),
    }
    report = AutoscalerSummary(
        {"head": 1}, None, [("1.2.3.4", "g6", "setting-up")], {"g6": 2}, [], tracker.NodeAvailabilitySummary(records)
    )
    told = json.dumps({"autoscaler_report": asdict(report)})
    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key: told.encode())
    assert autoscaler._look_v1() == Starting({"head": 1}, {"g6": 3}, {("big", 7.0): "quota: none left"})


def test_the_words_of_the_provider_are_found_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "INFO node_provider.py -- Launching 1 nodes of type g6.",
        "INFO node_provider.py -- Failed to launch 1 nodes of type g6: old",
        "INFO node_provider.py -- Failed to launch 2 nodes of type g6: no quota",
        "INFO node_provider.py -- Failed to launch 1 nodes of type g6_spot: other",
    ]
    (tmp_path / "monitor.log").write_text("\n".join(lines))
    monkeypatch.setattr(autoscaler, "_monitor", lambda address: autoscaler._Monitor("", str(tmp_path)))
    monkeypatch.setattr(autoscaler, "_address", lambda: "")
    monkeypatch.setattr(autoscaler, "_on_the_head", lambda act, *args: act(*args))
    assert autoscaler.why_failed("g6", "reported") == "no quota"
    assert autoscaler.why_failed("p5", "reported") == "reported"


def test_the_monitor_is_that_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(address: str) -> SimpleNamespace:
        command = ["python", "-u", "/ray/autoscaler/v2/monitor.py", "--logs-dir=/logs", f"--gcs-address={address}"]
        return SimpleNamespace(info={"cmdline": [*command, f"--autoscaling-config=/{address}.yaml"]})

    others = [SimpleNamespace(info={"cmdline": None}), SimpleNamespace(info={"cmdline": ["vi", "monitor.py"]})]
    found = [*others, process("a:1"), process("b:1")]
    monkeypatch.setattr(autoscaler.psutil, "process_iter", lambda names: found)
    assert autoscaler._monitor("b:1") == autoscaler._Monitor("/b:1.yaml", "/logs")
    assert autoscaler._monitor("c:1") is None
