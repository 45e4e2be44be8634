"""The machines of the end-to-end test: they answer by ssh, can be cut off, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedray.types import FedRayError
from tests.cluster.end_to_end import ROOT, cluster_file
from tests.cluster.hosts import Network, run, why_not


@pytest.fixture
def network(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    with Network(tmp_path) as network:
        yield network
    assert network.bridge not in run("ip", "-brief", "link")
    assert not any(Path(f"/proc/{host.process.pid}").exists() for host in network.hosts)


def reaches(network, host, other):
    options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=1")
    command = f"timeout 1 bash -c '</dev/tcp/{other.address}/22'"
    try:
        run("ssh", "-i", str(network.key), *options, f"root@{host.address}", command)
        return True
    except FedRayError:
        return False


def test_machines_reach_each_other_until_one_is_cut_off(network):
    first, second = network.add("first"), network.add("second")
    assert first.inside("hostname").strip() == "first"
    assert reaches(network, first, second)
    second.cut()
    assert not reaches(network, first, second)
    second.plug()
    assert reaches(network, first, second)


def test_a_machine_sees_only_its_own_processes_home_and_ray_folder(network):
    host = network.add("alone")
    assert len(host.inside("ps", "-eo", "pid").splitlines()) < 6
    assert host.inside("bash", "-c", "echo ~root").strip() == str(host.home)
    assert not host.inside("ls", "/tmp/ray")


def test_the_cluster_file_of_the_test_is_ours_but_for_addresses_user_key_and_packages(network):
    from ray.autoscaler._private.util import prepare_config, validate_config

    for name in ("head", "worker"):
        network.add(name)
    ours = yaml.safe_load((ROOT / "cluster" / "onprem.yaml").read_text())
    theirs = cluster_file(network, network.work / "cluster.yaml", ["true"])
    validate_config(prepare_config(theirs))
    changed = {key for key in ours if ours[key] != theirs[key]}
    assert changed == {"cluster_name", "provider", "auth", "setup_commands"}
    kept = [line for line in theirs["setup_commands"] if line in ours["setup_commands"]]
    assert len(kept) == len(ours["setup_commands"]) - 3  # without uv, its environment and its packages
