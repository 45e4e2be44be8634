"""The KubeRay file: the fields we rely on, strictly, and our rules for it; no network and no operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"
# What of KubeRay 1.6 the file relies on: the fields, and the type of their values ({} has fields of its own).
RAYJOB = {
    "entrypoint": str,
    "submissionMode": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "submitterPodTemplate": dict,
    "rayClusterSpec": {
        "rayVersion": str,
        "authOptions": {"mode": str},
        "enableInTreeAutoscaling": bool,
        "autoscalerOptions": {"idleTimeoutSeconds": int},
        "headGroupSpec": {"serviceType": str, "rayStartParams": dict, "template": dict},
        "workerGroupSpecs": list,
    },
}
WORKERS = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "rayStartParams": dict,
    "template": dict,
}


def documents() -> list[dict[str, Any]]:
    """The documents of the KubeRay file."""
    return list(yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text()))


def rayjob() -> dict[str, Any]:
    """The documents of the KubeRay file by kind, of which there is one."""
    return {document["kind"]: document for document in documents()}


def claims() -> dict[str, list[str]]:
    """How the volumes may be mounted, by the names of their claims."""
    found = [document for document in documents() if document["kind"] == "PersistentVolumeClaim"]
    return {document["metadata"]["name"]: document["spec"]["accessModes"] for document in found}


def mounts(pod: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """(path, whether it is only read) of the volumes in a pod, by the names of their claims."""
    claimed = {volume["name"]: volume["persistentVolumeClaim"] for volume in pod["spec"].get("volumes", ())}
    [container] = pod["spec"]["containers"]
    found = {}
    for mount in container.get("volumeMounts", ()):
        claim = claimed.pop(mount["name"])
        assert mount.get("readOnly", False) == claim.get("readOnly", False)
        found[claim["claimName"]] = mount["mountPath"], mount.get("readOnly", False)
    assert not claimed, f"not mounted: {claimed}"
    return found


def pods() -> list[dict[str, Any]]:
    """The templates of all pods of the RayJob: submitter, head, workers."""
    spec = rayjob()["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [spec["submitterPodTemplate"], *(group["template"] for group in groups)]


def conforms(values: Any, shape: Any, where: str) -> None:
    """Exactly these fields, of these types."""
    if not isinstance(shape, dict):
        assert type(values) is shape, f"{where}: {values!r} is not a {shape.__name__}"
        return
    assert set(values) == set(shape), f"{where}: {set(values) ^ set(shape)}"
    for name, kind in shape.items():
        conforms(values[name], kind, f"{where}.{name}")


def test_the_rayjob_has_exactly_the_fields_we_rely_on():
    job = rayjob()["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    conforms(job["spec"], RAYJOB, "spec")
    assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in (CLUSTER / "constraints.txt").read_text().split()
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        conforms(group, WORKERS, "workerGroupSpecs")
        assert group["minReplicas"] == 0
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_rayjob_has_the_token_on_and_ends_with_its_run():
    spec = rayjob()["RayJob"]["spec"]
    assert spec["rayClusterSpec"]["authOptions"]["mode"] == "token"
    assert spec["rayClusterSpec"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["shutdownAfterJobFinishes"]
    assert spec["activeDeadlineSeconds"] > 0


def test_the_pods_of_the_rayjob_are_limited_alike_and_walled_off():
    policy = rayjob()["NetworkPolicy"]["spec"]
    walled = policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert len(pods()) == 3
    for pod in pods():
        assert walled.items() <= pod["metadata"]["labels"].items()
        [container] = pod["spec"]["containers"]
        assert container["image"] == pods()[0]["spec"]["containers"][0]["image"]
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods()]
    assert ["nvidia.com/gpu" in limit for limit in limits] == [False, False, True]


def test_the_rayjob_keeps_its_result_on_a_volume_of_the_head():
    _, head, worker = map(mounts, pods())
    path, read_only = head["fedray-runs"]
    entrypoint = rayjob()["RayJob"]["spec"]["entrypoint"]
    assert not read_only
    assert "fedray-runs" in claims()
    assert "fedray-runs" not in worker  # it may be mounted once
    assert f"cd {path} " in entrypoint
    assert f"sqlite:///{path}/" in entrypoint


def test_head_and_workers_read_the_datasets_at_the_path_that_the_launch_names():
    submitter, head, worker = map(mounts, pods())
    assert submitter == {}
    assert head["fedray-data"] == worker["fedray-data"] == ("/data", True)
    assert claims()["fedray-data"] == ["ReadWriteMany"]
    assert "--data.root /data " in rayjob()["RayJob"]["spec"]["entrypoint"]


def test_the_image_is_that_of_the_tested_ray_and_holds_all_that_the_installation_needs():
    lines = (line.split() for line in (CLUSTER / "Dockerfile").read_text().splitlines() if line and line[0] != "#")
    steps = [(word, [name for name in rest if not name.startswith("--")]) for word, *rest in lines]
    version = rayjob()["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"]
    assert steps[0] == ("FROM", [f"rayproject/ray:{version}-py312-gpu"])
    copied = {source: target for word, (*sources, target) in steps if word == "COPY" for source in sources}
    assert {source: target for source, target in copied.items() if not (CLUSTER.parent / source).exists()} == {}
    project = (CLUSTER.parent / "pyproject.toml").read_text()
    for line in ('readme = "README.md"', 'license-files = ["LICENSE"]', 'packages = ["fedray", "actors", "tune"]'):
        assert line in project
    assert copied == {
        **dict.fromkeys(("pyproject.toml", "README.md", "LICENSE"), "./"),
        "cluster/constraints.txt": "cluster/",
        **{name: f"{name}/" for name in ("fedray", "actors", "tune")},
    }
    assert ["pip", "install", "-c", "cluster/constraints.txt", "."] in [rest for word, rest in steps if word == "RUN"]
