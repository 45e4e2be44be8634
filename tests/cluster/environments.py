"""A federation over two environments: the driver's, and one of a machine that has only what actors import.

    python -m tests.cluster.environments [--folder FOLDER]

Makes the other environment with uv, from uv's cache or the package index, and starts two raylets here: a head from this
environment without CPUs, and a machine from the other one, so that all actors run there. Then that machine gets another
version of one package. The environment is kept in the folder for the next time, if one is given.
"""  # fmt: skip

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray

from actors.machines.versions import PACKAGES, installed
from fedray.types import FedRayError
from tests.cluster.end_to_end import ROOT, compare, say, until
from tests.cluster.hosts import run
from tests.cluster.metrics import cluster

OPTIONS = "pfedbayes --clients 6 --rounds 3 --local-steps 10 --seed 3 --backend loop --tracking.uri none"
START = (
    "--address={address} --block --disable-usage-stats --dashboard-agent-listen-port=0 --num-cpus=2 --temp-dir={folder}"
)
OTHER = "fsspec==2025.3.0"


def environment(folder: Path) -> Path:
    """The bin folder of an environment with the driver's versions of what actors import, and nothing else of ours."""
    here = {name: version for name, version in installed().items() if name in PACKAGES}
    extra = {"ray": "ray[default]"}  # of which every machine needs the runtime environment's agent
    wanted = [f"{extra.get(name, name)}=={version}" for name, version in here.items()]
    if not (folder / "bin" / "python").exists():
        run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
    say(f"uv pip install {' '.join(wanted)}")
    if subprocess.run(
        ["uv", "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *wanted]
    ).returncode:
        raise FedRayError("uv could not make the environment")
    return folder / "bin"


@contextlib.contextmanager
def machines(work: Path, bin: Path) -> Iterator[str]:
    """The address of a head from this environment, and a machine from the other one."""
    with cluster(work / "h", 0) as (address, _), (work / "machine.log").open("wb") as log:
        options = START.format(address=address, folder=work / "w").split()
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env |= {"RAY_AUTH_MODE": "token"}
        machine = subprocess.Popen([str(bin / "ray"), "start", *options], cwd=work, env=env, stdout=log, stderr=log)
        try:
            took = until("the machine", 120, lambda: sum(node["Alive"] for node in ray.nodes()) == 2, 0.5)
            there = ray.get(ray.remote(lambda: sys.prefix).remote())
            if there != str(bin.parent):
                raise FedRayError(f"its processes run in {there}")
            say(f"after {took:.0f} s processes start in {there}, the driver in {sys.prefix}")
            yield address
        except FedRayError:
            print((work / "machine.log").read_text())
            raise
        finally:
            machine.terminate()  # takes its children down
            machine.wait()


def launch(work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run from this environment."""
    command = [sys.executable, "-m", "fedray.launch", *OPTIONS.split(), *options]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=400)


def alike(work: Path, bin: Path) -> None:
    """Equal versions: the actors run in the other environment, from one copy of the code, to the same bits."""
    with machines(work, bin) as address:
        for options in (["--address", address, "--name", "first"], ["--address", address, "--name", "second"],
                        ["--runtime", "local", "--name", "local"]):  # fmt: skip
            if (done := launch(work, *options)).returncode:
                raise FedRayError(done.stderr[-3000:])
        compare(work / "runs" / "local", work / "runs" / "second")
        [session] = work.glob("w/session_2*")
        code = [path.name for path in (session / "runtime_resources" / "py_modules_files").iterdir() if path.is_dir()]
        processes = len(list((session / "logs").glob("worker-*.err")))
        say(f"two runs: {processes} processes shared one copy of each of {len(code)} packages")
        if len(code) != 3 or processes < 4:
            raise FedRayError(f"the code did not arrive once: {code}")


def unlike(work: Path, bin: Path) -> None:
    """Another version of one package: refused before an actor starts, with both versions."""
    run("uv", "pip", "install", "--quiet", "--python", str(bin / "python"), OTHER)
    name, _, there = OTHER.partition("==")
    with machines(work, bin) as address:
        done = launch(work, "--address", address, "--name", "other")
        print(done.stderr)
        if done.returncode != 2 or f"{name} {there} there, {installed()[name]} here" not in done.stderr:
            raise FedRayError(f"not refused by version (status {done.returncode})")
        if (work / "runs").exists() and any((work / "runs").iterdir()):
            raise FedRayError("the refused run left something")
        say("refused, both versions named")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the other environment is, or is kept")
    args = parser.parse_args()
    if shutil.which("uv") is None:
        print("skipped: uv missing", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="fedray-env-"))
    try:
        bin = environment(args.folder or work / "venv")
        for number, walk in enumerate((alike, unlike)):
            (work / str(number)).mkdir()
            walk(work / str(number), bin)
    except FedRayError as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
