"""A process that dies at any moment of a run's first checkpoint: --resume gives the bits of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedray import launch
from fedray.running.drawing import all_figures
from fedray.running.files import leftover
from tests.running.resumed.test_resume import rows

FAST = ["pfedbayes", "--runtime", "local", "--rounds", "2", "--local-steps", "1", "--model.hidden", "4"]
FAST += ["--tracking.uri", "none"]

# Forks one driver per event, which ends there as if by SIGKILL; prints how many events there are.
NURSERY = """
import os, sys
from fedray import launch
from fedray.federate.storage import checkpoint_files
from fedray.running import session
from fedray.running.drawing import all_figures

all_figures.draw_all = lambda *_: None

def drive(last):
    seen = 0
    def count():
        nonlocal seen
        seen += 1
        if seen == last:
            os._exit(9)
    def watch(event, args):
        if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir") or event == "open" and args[2] & os.O_ACCMODE:
            path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
            if f"cut-{last}/" in path + "/":
                count()
    honest = checkpoint_files.zlib.crc32
    class Torn:  # between the pieces of a file
        def __getattr__(self, name):
            return honest_module.__dict__[name]
        def crc32(self, *args):
            count()
            return honest(*args)
    honest_module = checkpoint_files.zlib
    checkpoint_files.zlib = Torn()
    sys.addaudithook(watch)
    launch.main([*sys.argv[1:], "--name", f"cut-{last}"])
    os._exit(0)

for last in range(1, 1000):
    child = os.fork()
    if not child:
        drive(last)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if os.path.exists(f"runs/cut-{last}/checkpoints/round-000001/manifest.json") or code == 0:
        print("EVENTS", last)
        break
"""

# As fedray.launch, but instead of drawing figures, which follows the tables of a result, it waits to be stopped.
HELD = """
import time
from fedray import cli, launch
from fedray.running.drawing import all_figures

all_figures.draw_all = lambda *_: time.sleep(120)
cli.leave(launch.main)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(all_figures, "draw_all", lambda *_: None)  # seconds, and nothing to do with this


@pytest.mark.slow
def test_a_kill_at_every_event_of_the_first_checkpoint_costs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main([*FAST, "--name", "whole"]) == 0
    done = subprocess.run([sys.executable, "-c", NURSERY, *FAST], capture_output=True, text=True, check=True)
    events = int(done.stdout.partition("EVENTS")[2])
    assert events > 20
    capfd.readouterr()
    from_zero = 0
    for event in range(1, events):
        folder = Path(f"runs/cut-{event}")
        again = ["--resume", str(folder)] if (folder / "run.json").exists() else [*FAST, "--name", folder.name]
        assert launch.main(again) == 0, f"after a kill at event {event}"
        from_zero += "starts again at round 0" in capfd.readouterr().err
        assert rows(str(folder)) == rows("runs/whole")
        for name in ("global.safetensors", "personal.safetensors"):
            assert (folder / name).read_bytes() == Path("runs/whole", name).read_bytes()
        assert not [path for path in folder.iterdir() if leftover(path)]
    assert from_zero > 10


def test_what_a_kill_leaves_does_not_block_a_name() -> None:
    Path("runs/x").mkdir(parents=True)
    for name in (".run.json.part", ".status.json.4711.part"):
        Path("runs/x", name).write_text("{")
    assert launch.main([*FAST, "--name", "x"]) == 0
    assert not list(Path("runs/x").glob("*.part")) + list(Path("runs/x").glob(".*.part"))
    Path("runs/y").mkdir()
    Path("runs/y/thesis.part").write_text("years of work")
    assert launch.main([*FAST, "--name", "y"]) == 2


@pytest.mark.parametrize("moment", ["first round", "result"])
def test_sigterm_ends_with_130_leaves_nothing_half_written_and_says_how_to_go_on(moment: str) -> None:
    long = ["--rounds", "2000" if moment == "first round" else "2"]
    program = ["-m", "fedray.launch"] if moment == "first round" else ["-c", HELD]
    command = [sys.executable, *program, *FAST, *long, "--name", "cut"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wanted = Path("runs/cut/status.json") if moment == "first round" else Path("runs/.cut.part/metrics.csv")
    deadline = time.monotonic() + 120
    while not wanted.exists():
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.002)
    os.kill(run.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.kill(run.pid, signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert f"--resume {Path('runs/cut').absolute()}" in err
    assert "Traceback" not in err
    assert sorted(path.name for path in Path("runs").iterdir()) == ["cut"]
    assert not [path for path in Path("runs/cut").iterdir() if leftover(path)]
