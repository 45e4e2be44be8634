"""The files for `ray up` against Ray's own schema and our rules for them; no network."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
LAUNCHED = ("gpu", "gcp", "onprem")  # by `ray up`
CLOUDS = ("gpu", "gcp")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())


def starts(config: dict[str, Any], kind: str) -> str:
    """The one `ray start` among the commands of the head or the workers."""
    [command] = [line for line in config[f"{kind}_start_ray_commands"] if "ray start" in line]
    return command


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_accepts_the_file(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(read(name)))


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_token_is_on_in_both_start_commands_and_sent_to_every_machine(name):
    config = read(name)
    for kind in ("head", "worker"):
        assert "RAY_AUTH_MODE=token " in starts(config, kind).split("ray start")[0]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("chmod 600 ~/.ray/auth_token" in line for line in config["setup_commands"])
    assert any("RAY_AUTH_MODE=token" in line and ".bashrc" in line for line in config["setup_commands"])


@pytest.mark.parametrize("name", [*LAUNCHED, "kuberay"])
def test_nothing_listens_to_the_world(name):
    text = (CLUSTER / f"{name}.yaml").read_text()
    assert "0.0.0.0" not in text
    assert "::/0" not in text


@pytest.mark.parametrize("name", LAUNCHED)
def test_dashboard_and_mlflow_answer_on_the_head_only(name):
    config = read(name)
    assert "--dashboard-host=127.0.0.1" in starts(config, "head")
    [mlflow] = [line for line in config["head_start_ray_commands"] if "mlflow server" in line]
    assert "--host 127.0.0.1 --port 5000" in mlflow
    assert "sqlite:///$HOME/" in mlflow
    assert "--artifacts-destination $HOME/" in mlflow


@pytest.mark.parametrize("name", LAUNCHED)
def test_no_setting_that_ray_ignores_silently(name):
    assert "min_workers" not in read(name)


def test_ray_opens_nothing_but_ssh_on_aws():
    assert read("gpu")["provider"]["security_group"].keys() == {"GroupName"}


@pytest.mark.parametrize("name", CLOUDS)
def test_workers_have_gpus_and_may_all_go_and_the_head_has_only_cpus(name):
    config = read(name)
    types = dict(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    assert head["resources"]["CPU"] >= 1
    assert head["resources"]["GPU"] == 0
    for worker in types.values():
        assert worker["min_workers"] == 0
        assert worker["resources"]["GPU"] >= 1
    assert any(worker["max_workers"] >= 1 for worker in types.values())
    assert max(worker["max_workers"] for worker in types.values()) <= config["max_workers"]


@pytest.mark.parametrize("name", CLOUDS)
def test_a_federation_fits_as_soon_as_one_gpu_machine_is_there(name):
    from actors.machines.placement import Node, arrange

    types = read(name)["available_node_types"]
    nodes = {kind: Node(entry["resources"]["CPU"], entry["resources"]["GPU"]) for kind, entry in types.items()}
    head = nodes.pop("head")
    for worker in nodes.values():
        for count in (1, 2, 4):
            layout = arrange(10, [head] + [worker] * count)
            actors = math.ceil(len(layout.blocks) / count)
            assert actors * layout.gpus <= worker.gpus
            assert actors * layout.cpus <= worker.cpus


def test_spot_machines_are_an_explicit_choice():
    aws = read("gpu")["available_node_types"]
    assert [kind for kind, entry in aws.items() if "InstanceMarketOptions" in entry["node_config"]] == ["g5_spot"]
    assert aws["g5_spot"]["max_workers"] == 0
    google = read("gcp")["available_node_types"]
    spot = [
        kind for kind, entry in google.items() if entry["node_config"].get("scheduling", [{}])[0].get("preemptible")
    ]
    assert spot == ["l4_spot"]
    assert google["l4_spot"]["max_workers"] == 0


def test_own_machines_use_the_autoscaler_that_starts_all_of_them_and_placeholder_addresses():
    config = read("onprem")
    assert "RAY_enable_autoscaler_v2=0" in starts(config, "head")
    addresses = [config["provider"]["head_ip"], *config["provider"]["worker_ips"]]
    assert all(address.startswith("192.0.2.") for address in addresses)  # kept free for documentation


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_checkout_is_installed_with_the_tested_versions(name):
    config = read(name)
    assert config["file_mounts"]["~/fedray"] == "."
    assert {".git", ".venv", "runs"} <= set(config["rsync_exclude"])
    assert any("pip install" in line and "-c cluster/constraints.txt" in line for line in config["setup_commands"])


@pytest.mark.parametrize("name", LAUNCHED)
def test_all_machines_have_one_python_to_the_last_digit(name):
    """Ray refuses a worker whose patch version is not the head's, and every image brings a Python of its own."""
    [line] = [line for line in read(name)["setup_commands"] if "uv venv" in line]
    assert re.search(r"--managed-python --python 3\.\d+\.\d+ ", line)


def test_all_launched_files_set_up_and_start_their_machines_alike():
    gpu, gcp, onprem = (read(name) for name in LAUNCHED)
    for key in ("file_mounts", "rsync_exclude", "setup_commands", "worker_start_ray_commands"):
        assert gpu[key] == gcp[key] == onprem[key]
    assert gpu["head_start_ray_commands"] == gcp["head_start_ray_commands"]
    own = [line.replace(" RAY_enable_autoscaler_v2=0", "") for line in onprem["head_start_ray_commands"]]
    assert own == gpu["head_start_ray_commands"]


def pinned() -> dict[str, str]:
    return dict(line.split("==") for line in (CLUSTER / "constraints.txt").read_text().split() if "==" in line)


@pytest.mark.parametrize(
    "pattern",
    [r"\ndependencies = \[\n(.*?)\n\]", r"\n\[project.optional-dependencies\]\n(.*?)\n\n"],
    ids=["dependencies", "extras"],
)
def test_the_constraints_name_every_dependency_at_one_version_that_is_allowed(pattern):
    section = re.search(pattern, (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert section is not None
    wanted = [Requirement(text) for text in re.findall(r'"(.*?)"', section[1])]
    assert len(wanted) > 4
    for requirement in wanted:
        assert requirement.name in pinned()
        assert pinned()[requirement.name] in requirement.specifier


@pytest.mark.parametrize("option", ["--name", "--output=else", "--resume"])
def test_the_slurm_script_refuses_what_it_sets_itself(option):
    script = CLUSTER / "slurm.sh"
    job = os.environ | {"FEDRAY_ENV": sys.prefix, "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
    done = subprocess.run(["bash", script, "fedavg", option], env=job, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{option} is set by cluster/slurm.sh\n")


# Stand-ins for SLURM and for what runs below it; the launch stops as ours does.
STUBS = {
    "srun": """[ "$1" = --overlap ] || exec sleep 60""",
    "scontrol": """echo "scontrol $*" """,
    "python": """case "$1 $2" in
        "-c "*) echo token ;;
        "- ") echo 127.0.0.1 1 2 ;;
        "-m fedray.launch") trap 'echo stopped; exit 143' TERM; echo plays; while :; do sleep 0.05; done ;;
    esac""",
}


@pytest.mark.parametrize(
    ("sign", "said"),
    [(signal.SIGUSR1, ["stopped", "scontrol requeue 77"]), (signal.SIGTERM, ["stopped"])],
    ids=["its time is nearly up", "scancel"],
)
def test_a_slurm_job_is_queued_again_at_the_end_of_its_time_and_not_when_it_is_cancelled(tmp_path, sign, said):
    (tmp_path / "bin").mkdir()
    for name, body in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin/activate").write_text(f"PATH={tmp_path / 'bin'}:$PATH\n")
    job = {"JOB_ID": "77", "SUBMIT_DIR": str(tmp_path), "CPUS_PER_TASK": "1", "JOB_NUM_NODES": "2"}
    env = os.environ | {f"SLURM_{name}": value for name, value in job.items()}
    env |= {"FEDRAY_ENV": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = ["bash", CLUSTER / "slurm.sh", "fedavg"]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "plays\n"
        idle = 0
        while idle < 5:  # until it waits for the launch
            idle = idle + 1 if psutil.Process(script.pid).status() == psutil.STATUS_SLEEPING else 0
            time.sleep(0.02)
        script.send_signal(sign)
        lines = [line for line in script.stdout.read().splitlines() if not line.startswith("the job is ending")]
    assert lines == said
    assert script.returncode


def test_the_file_that_serves_a_run_gives_settings_that_exist_and_listens_on_the_head_only():
    from fedray.config import from_dict
    from fedray.serve import Serving, application
    from fedray.types import FedRayError

    config = read("serve")
    [app] = config["applications"]
    assert app["import_path"] == "fedray.serve:application"
    assert from_dict(Serving, app["args"]).terms.unknown_client == "404"
    assert config["http_options"]["host"] == "127.0.0.1"
    assert "token" not in app["args"]
    with pytest.raises(FedRayError, match=r"args: .*Serving has no setting loded, but loaded, .*; correct them"):
        application(app["args"] | {"loded": 4})
