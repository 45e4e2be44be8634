"""cluster/slurm.sh on a SLURM of its own: a run over two machines, one of which loses its power in mid-run.

    python -m tests.cluster.slurm [--rounds 25] [--keep]

The machines are namespaces of this one, so it needs root, the tools of tests/cluster/hosts.py, and slurm-wlm and munge.
"""  # fmt: skip

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedray.types import FedRayError
from tests.cluster.end_to_end import ROOT, compare, in_a_folder, processes, say, until
from tests.cluster.hosts import Host, Network, run, why_not

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch")
OPTIONS = "pfedbayes --rounds {rounds} --seed 3 --local-steps 40 --tracking.uri none"
CPUS = 4  # that each machine claims to have, so that two jobs share it
CONFIGURATION = """
ClusterName=fedray
SlurmctldHost={control}({address})
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller on this machine and a daemon on each of the others; all of them end with the context."""

    def __init__(self, network: Network, work: Path):
        self.network, self.folder = network, work / "slurm"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "FEDRAY_ENV": sys.prefix,
            "TMPDIR": "/tmp/ray",
        }

    def __enter__(self) -> Slurm:
        (self.folder / "state").mkdir(parents=True)
        nodes = [f"NodeName={h.name} NodeAddr={h.address} CPUs={CPUS} State=UNKNOWN" for h in self.network.hosts]
        text = CONFIGURATION.format(
            control=os.uname().nodename, address=f"{self.network.prefix}.254", folder=self.folder,
            port=20000 + os.getpid() % 10000, node_port=30000 + os.getpid() % 10000, nodes="\n".join(nodes),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        socket = self.folder / "munge.socket"
        self._daemon(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
            f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed",
            f"--log-file={self.folder}/munged.log",
        )  # fmt: skip
        until("munge", 10, socket.exists, 0.1)
        self._daemon("slurmctld", "slurmctld", "-D", "-i")
        for host in self.network.hosts:
            self.boot(host)
        until("idle machines", 60, lambda: self("sinfo", "-h", "-o", "%T %D").split() == ["idle", str(len(nodes))], 0.5)
        return self

    def __exit__(self, *exc: object) -> None:
        for daemon in reversed(self.daemons.values()):
            daemon.kill()
            daemon.wait()

    def __call__(self, *command: str) -> str:
        """The output of one of SLURM's commands."""
        return run(*command, cwd=ROOT, env=self.env)

    def boot(self, host: Host) -> None:
        """Start the daemon of a machine."""
        self._daemon(host.name, "nsenter", "-t", str(host.pid()), "-a", "slurmd", "-D", "-N", host.name)

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            command = ("setpriv", "--pdeathsig", "KILL", *command)
            self.daemons[name] = subprocess.Popen(command, env=self.env, stdout=out, stderr=out)

    def submit(self, rounds: int, log: Path) -> str:
        """A job of two machines with half of each one's CPUs; its number."""
        options = ["--parsable", f"--cpus-per-task={CPUS // 2}", f"--output={log}", "--time=30"]
        return self("sbatch", *options, "cluster/slurm.sh", *OPTIONS.format(rounds=rounds).split()).strip()

    def state(self, job: str) -> str:
        return self("squeue", "-h", "-j", job, "-t", "all", "-o", "%T").strip()


def rounds_so_far(job: str) -> int:
    """The newest checkpoint of a job's run."""
    found = (ROOT / "runs" / f"slurm-{job}" / "checkpoints").glob("*[0-9]")
    return max((int("".join(filter(str.isdigit, path.stem))) for path in found), default=0)


def ended(slurm: Slurm, job: str, log: Path) -> None:
    """Wait for the end of a job, which must be a good one."""
    final = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY")
    took = until(f"the end of job {job}", 900, lambda: slurm.state(job) in final)
    if slurm.state(job) != "COMPLETED":
        raise FedRayError(f"job {job} is {slurm.state(job)}: {log.read_text(errors='replace')[-3000:]}")
    say(f"job {job} completed {took:.0f} s later")


def walk(work: Path, rounds: int) -> None:
    """Two jobs side by side on the same machines; then one of the machines loses its power, and a job goes on."""
    with Network(work) as network:
        for name in ("node1", "node2"):
            network.add(name)
        with Slurm(network, work) as slurm:
            say(f"machines: {', '.join(f'{host.name} {host.address}' for host in network.hosts)}")
            logs = [work / f"job-{name}.log" for name in ("short", "long")]
            jobs = [slurm.submit(n, log) for n, log in zip((3, rounds), logs, strict=True)]
            folders = [ROOT / "runs" / f"slurm-{job}" for job in jobs]
            try:
                say(f"sbatch cluster/slurm.sh, twice: jobs {' and '.join(jobs)} on the same machines")
                ended(slurm, jobs[0], logs[0])
                until("two rounds", 300, lambda: rounds_so_far(jobs[1]) >= 2 or slurm.state(jobs[1]) != "RUNNING", 0.5)
                actors = processes(network, "ray::ClientActor")
                say(f"job {jobs[1]} has a checkpoint of round {rounds_so_far(jobs[1])}; client actors: {actors}")
                victim = network.hosts[1]
                victim.end()
                say(f"{victim.name} lost its power")
                until("the job leaves", 120, lambda: slurm.state(jobs[1]) != "RUNNING", 0.5)
                say(f"job {jobs[1]} is {slurm.state(jobs[1])}; {victim.name} is switched on again")
                shutil.rmtree(victim.folder)
                victim.start()
                slurm.boot(victim)
                ended(slurm, jobs[1], logs[1])
                print("\n".join(logs[1].read_text(errors="replace").splitlines()[-12:]))
                left = {host.name: host.inside("ls", "/tmp/ray").split() for host in network.hosts}
                if any(left.values()):
                    raise FedRayError(f"the jobs left files on the machines: {left}")
                for n, folder in zip((3, rounds), folders, strict=True):
                    local = ["-m", "fedray.launch", *OPTIONS.format(rounds=n).split(), "--runtime", "local"]
                    run(sys.executable, *local, "--output", str(work / f"local-{n}"), cwd=ROOT)
                    compare(work / f"local-{n}", folder)
            finally:
                for job in jobs:
                    slurm("scancel", job)
                for log in logs:
                    if log.exists():
                        (work / f"{log.name}.kept").write_text(log.read_text(errors="replace"))
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    args = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if reason := why_not() or (f"{', '.join(missing)} missing: apt-get install -y slurm-wlm munge" if missing else ""):
        print(f"skipped: {reason}", file=sys.stderr)
        return 2
    return in_a_folder(lambda work: walk(work, args.rounds), args.keep)


if __name__ == "__main__":
    sys.exit(main())
