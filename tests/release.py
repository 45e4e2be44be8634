"""python -m tests.release: build the wheel, install it into a clean environment, and use it outside of the checkout.

Takes minutes, since it installs every dependency at the versions of cluster/constraints.txt. ``--installed`` borrows
the dependencies of the running environment and so checks the wheel alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedray", "actors", "tune")
QUICK = ("--rounds", "1", "--local-steps", "1", "--runtime", "local", "--tracking.uri", "none", "--json")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--installed", action="store_true", help="borrow the dependencies of this environment")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), options.installed)
    print("passed")
    return 0


def check(folder: Path, installed: bool) -> None:
    """Build, install and use the wheel below ``folder``; raises at the first thing that fails."""
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    wheel = build(python, folder / "dist")
    missing = sources() - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        raise SystemExit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    install(python, wheel, installed)
    use(python.parent, folder / "elsewhere")


def build(python: Path, target: Path) -> Path:
    """The wheel of this checkout."""
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", target, ROOT)
    [wheel] = target.glob("fedray-*.whl")
    return wheel


def sources() -> set[str]:
    """Every file of the packages, templates and tables included, as a wheel names it."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix != ".pyc"}


def install(python: Path, wheel: Path, installed: bool) -> None:
    """The wheel with its dependencies, or beside those of the running environment."""
    uv = ("uv", "pip", "install", "--quiet", "--python", python)
    if not installed:
        run(*uv, "--constraint", ROOT / "cluster" / "constraints.txt", wheel)
        return
    run(*uv, "--no-deps", wheel)
    [site] = (python.parents[1] / "lib").glob("python*/site-packages")
    # A line of a .pth file that is a folder is searched after the environment's own packages.
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def use(binaries: Path, elsewhere: Path) -> None:
    """What a user types first, in a folder that is not the checkout."""
    elsewhere.mkdir()
    version = run(binaries / "fedray", "--version", cwd=elsewhere)
    if "0." not in version:
        raise SystemExit(f"fedray --version printed {version!r}")
    for number, command in enumerate([(binaries / "python", "-m", "fedray.launch"), (binaries / "fedray", "launch")]):
        summary = json.loads(run(*command, *QUICK, "--name", f"run-{number}", cwd=elsewhere))
        if summary["algorithm"] != "pfedbayes":
            raise SystemExit(f"{command} played {summary['algorithm']}")
    where = "import fedray, actors, tune; print(fedray.__file__, actors.__file__, tune.__file__)"
    for path in run(binaries / "python", "-c", where, cwd=elsewhere).split():
        if Path(path).is_relative_to(ROOT):
            raise SystemExit(f"{path} was imported from the checkout")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Stdout of a command that must succeed; it does not see the checkout's packages."""
    print("$", *command, file=sys.stderr, flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
