"""Machines with other versions than the driver's are refused by name, before any actor starts."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import NodeDiedError, RuntimeEnvSetupError

from actors.machines import cluster, versions
from fedray.types import FedRayError

OWN = versions.installed()
NODE = {"Alive": True, "NodeManagerHostname": "worker1", "NodeManagerAddress": "10.0.0.2"}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each machine answers: its versions, or an error; None: nothing in time."""
    answers: list[Any] = []

    def get(ref: int) -> Any:
        if isinstance(answers[ref], Exception):
            raise answers[ref]
        return answers[ref]

    def wait(refs: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [ref for ref in refs if answers[ref] is not None], [ref for ref in refs if answers[ref] is None]

    monkeypatch.setattr(ray, "nodes", lambda: [NODE | {"NodeID": at} for at in range(len(answers))])
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01000000"))
    monkeypatch.setattr(versions, "_versions", lambda job, node: node)
    return answers


def test_equal_machines_and_such_as_are_gone_by_now_are_no_obstacle(machines: list[Any]) -> None:
    machines += [OWN, NodeDiedError("gone"), OWN]
    versions.check()


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (OWN | {"torch": "2.13.0"}, f"torch 2.13.0 there, {OWN['torch']} here"),
        (OWN | {"Python": "3.10.1"}, f"Python 3.10.1 there, {OWN['Python']} here"),
        (OWN | {"scipy": ""}, f"scipy is missing there, {OWN['scipy']} here"),
        (RuntimeEnvSetupError("no space\nleft"), r"the code did not arrive \(.*no space left\)"),
        (None, "did not answer within 300 s"),
    ],
)
def test_a_machine_that_differs_is_named_with_both_versions(machines: list[Any], there: Any, said: str) -> None:
    machines += [OWN, there]
    with pytest.raises(
        FedRayError, match=rf"machines of the cluster cannot .*: worker1 \(10\.0\.0\.2\): {said}.*uv pip"
    ):
        versions.check()


def test_all_that_differ_are_named_at_once(machines: list[Any]) -> None:
    machines += [OWN | {"torch": "1", "numpy": "1"}, OWN | {"ray": "1"}]
    with pytest.raises(FedRayError, match=r"torch 1 there.*, numpy 1 there.*; worker1.*ray 1 there"):
        versions.check()


def test_builds_of_one_version_for_cpus_and_gpus_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "2.15.0+cu130")
    assert versions.installed(["torch"])["torch"] == "2.15.0"


def test_the_packages_that_are_compared_are_all_that_actors_import() -> None:
    """Beyond what these packages import themselves."""
    names = ", ".join({"scikit-learn": "sklearn"}.get(name, name) for name in versions.PACKAGES)
    code = f"import sys, {names}; before = set(sys.modules); import actors.client, actors.server; "
    code += "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known = packages_distributions()
    imported = {name for module in done.stdout.split() for name in known.get(module, ())} - {"fedray"}
    assert imported <= set(versions.PACKAGES)


def test_a_driver_of_another_version_than_the_head_is_told_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\nThis process was ..."

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(cluster, "_knock", lambda address: None)
    monkeypatch.setattr(cluster, "_running", lambda: "host:2")
    for given in ("host:1", None):  # even one that was only found: a run of one's own would hide it
        with pytest.raises(FedRayError, match=r"Ray: 2\.60\.0 Python: 3\.12\.1 This process was"):
            cluster.connect(given)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_machines_of_a_real_cluster_are_asked_once() -> None:
    versions.check()
    before = versions._versions.cache_info()
    versions.check()
    after = versions._versions.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + len(ray.nodes()))


@pytest.mark.ray
@pytest.mark.usefixtures("own_cluster")
def test_who_leaves_a_cluster_and_joins_it_again_asks_anew() -> None:
    """What the machines answered the first time is lost with the connection."""
    there = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(2):
            ray.init(address=there.address, log_to_driver=False)
            versions.check()
            ray.shutdown()
    finally:
        there.shutdown()
