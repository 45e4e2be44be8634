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


def rayjob() -> dict[str, Any]:
    """The documents of the KubeRay file by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text())}


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


def test_the_rayjob_keeps_its_result_on_a_volume():
    documents = rayjob()
    head = documents["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    [volume] = head["volumes"]
    [mount] = head["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == documents["PersistentVolumeClaim"]["metadata"]["name"]
    assert mount["name"] == volume["name"]
    assert f"cd {mount['mountPath']} " in documents["RayJob"]["spec"]["entrypoint"]
    assert f"sqlite:///{mount['mountPath']}/" in documents["RayJob"]["spec"]["entrypoint"]
