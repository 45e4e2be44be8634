"""The environment of a side, made by uv from the requirements that its script names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.benchmarks.peers.sides.measured import Case

SIDES = Path(__file__).parent / "sides"
HERE = Path(__file__).parents[3]  # the repository
# All sides compute with one thread per process, as FedRay does; Flower's and Ray's reports to their makers stay off.
SETTINGS = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip


def script(peer: str) -> Path:
    """The script that plays a side."""
    return SIDES / f"play_{peer}.py"


def python_version(peer: str) -> str:
    """The oldest Python that the script of a peer asks for, such as 3.14."""
    return script(peer).read_text().split('requires-python = ">=')[1].split('"')[0]


def python_of(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is made in the folder where it is missing."""
    home = folder / peer
    made = home / "made"  # written last: an environment without it is made again
    wanted = script(peer).read_text().split("# ///\n")[0]
    if not made.exists() or made.read_text() != wanted:
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", python_version(peer), home], check=True)
        python = home / "bin" / "python"
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, "-r", script(peer)], check=True)
        made.write_text(wanted)
    return home / "bin" / "python"


def command(peer: str, case: Case, python: Path) -> list[str]:
    """What plays a side's part: a process of its own, so that nothing of one turn is left in the next."""
    return [str(python), str(script(peer)), json.dumps(case._asdict())]


def settings() -> dict[str, str]:
    """The environment variables of every side."""
    own = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    return own | SETTINGS | {"PYTHONPATH": str(HERE)}
