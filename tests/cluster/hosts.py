"""Machines that are namespaces of this one, each with its own network, processes, sshd, home and Ray folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from fedray.types import FedRayError

SECONDS = 300
TOOLS = ("ip", "unshare", "setpriv", "nsenter", "ssh", "ssh-keygen", "rsync", "sshd")
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
# The default route leads nowhere: Ray asks for the way to a public address to learn its own.
BOOT = """
set -e
hostname {name}
mount --make-rprivate /
mount --bind {folder}/ray /tmp/ray
mount --bind {folder}/passwd /etc/passwd
mount -t tmpfs tmpfs /dev/shm
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
ip route add default via {gateway}
exec {sshd} -D -e -f {folder}/sshd_config
"""


def why_not() -> str:
    """Why such machines cannot be made here; empty if they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install -y openssh-server rsync iproute2"
    attempt = ["unshare", "-n", "-p", "-m", "-u", "--fork", "ip", "link", "add", "try", "type", "bridge"]
    return subprocess.run(attempt, capture_output=True, text=True).stderr.strip()


def run(*command: str, **options: object) -> str:
    """The output of a command; FedRayError with its errors where it fails or takes minutes."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired as error:
        raise FedRayError(f"{' '.join(command)}: not done within {SECONDS} s") from error
    if done.returncode:
        raise FedRayError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Network:
    """A bridge of this machine, and the hosts on it; all of them end with the context."""

    def __init__(self, work: Path):
        self.work, self.hosts = work, list[Host]()
        taken = run("ip", "-brief", "-4", "addr")
        free = (f"10.213.{(os.getpid() + i) % 256}" for i in range(256))
        self.prefix = next(prefix for prefix in free if f" {prefix}." not in taken)
        self.bridge = f"fr{os.getpid() % 10**8}"
        self.key = work / "key"

    def __enter__(self) -> Network:
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        Path("/run/sshd").mkdir(exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.prefix}.254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for host in self.hosts:
            host.end()
        with contextlib.suppress(FedRayError):
            run("ip", "link", "del", self.bridge)

    def add(self, name: str) -> Host:
        """A machine that answers by ssh."""
        host = Host(self, name, len(self.hosts) + 1)
        self.hosts.append(host)
        host.start()
        return host


class Host:
    """One machine; the user is root, whose home is a folder of its own."""

    def __init__(self, network: Network, name: str, number: int):
        self.network, self.name = network, name
        self.address = f"{network.prefix}.{number}"
        self.folder = network.work / name
        self.home = self.folder / "home"
        self.link = f"{network.bridge}-{number}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._furnish()
        boot = BOOT.format(
            name=self.name,
            folder=self.folder,
            address=self.address,
            gateway=f"{self.network.prefix}.254",
            sshd=shutil.which("sshd"),
        )
        # With the first process of a PID namespace everything in it ends, Ray's daemons too; and it ends with us.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "-n", "-p", "-m", "-u", "--fork", "--kill-child"]
        command += ["--mount-proc", "bash", "-c", boot]
        with (self.folder / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", f"{self.link}p")
        run("ip", "link", "set", self.link, "master", self.network.bridge, "up")
        run("ip", "link", "set", f"{self.link}p", "netns", str(self.pid()), "name", "eth0")
        key = str(self.network.key)
        options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=2")
        for attempt in range(50):
            try:
                run("ssh", "-i", key, *options, f"root@{self.address}", "true")
                return
            except FedRayError:
                if attempt == 49:
                    raise FedRayError(f"{self.name}: no sshd, {(self.folder / 'sshd.log').read_text()}") from None
                time.sleep(0.2)

    def _furnish(self) -> None:
        for folder in (self.home, self.folder / "ray"):
            folder.mkdir(parents=True)
        (self.home / ".bashrc").touch()  # Ray sources it
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key"))
        shutil.copy(self.network.key.with_suffix(".pub"), self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(SSHD.format(folder=self.folder))
        users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
        users = [[*user[:5], str(self.home), "/bin/bash"] if user[0] == "root" else user for user in users]
        (self.folder / "passwd").write_text("".join(":".join(user) + "\n" for user in users))

    def pid(self) -> int:
        """The first process of the machine, as seen from here."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for _ in range(100):
            if text := children.read_text().split():
                return int(text[0])
            time.sleep(0.05)
        raise FedRayError(f"{self.name}: its first process did not start")

    def inside(self, *command: str) -> str:
        """The output of a command run on the machine, without its network."""
        return run("nsenter", "-t", str(self.pid()), "-a", *command)

    def cut(self) -> None:
        """Pull the network cable."""
        run("ip", "link", "set", self.link, "down")

    def plug(self) -> None:
        """Put it back."""
        run("ip", "link", "set", self.link, "up")

    def end(self) -> None:
        """Power off."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            with contextlib.suppress(FedRayError):  # the network may outlive the machine by a minute
                run("ip", "link", "del", self.link)
