"""The status of a run: what the driver leaves, what another terminal shows, and when a run is called stopped."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedray import status
from fedray.running import progress
from fedray.running.progress import Status, read, write
from fedray.status import main

MEASURES = {"personal/accuracy": 0.921, "global/accuracy": 0.8, "personal/nll": 0.3}
RUNNING = Status("mine", "running", 3, 10, MEASURES, 2.5, 1, 2, "python -m fedray.launch --resume runs/mine")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leave(folder, **changes):
    Path(folder).mkdir(parents=True, exist_ok=True)
    assert write(
        Path(folder), RUNNING._replace(command=f"python -m fedray.launch --resume {folder}")._replace(**changes)
    )


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_status_reads_back_and_says_who_wrote_it_where_and_when():
    leave("runs/mine")
    found = read(Path("runs/mine"))
    assert found[:9] == RUNNING[:9]
    assert (found.pid, found.host) == (os.getpid(), socket.gethostname())
    assert abs(found.updated - time.time()) < 60
    assert os.listdir("runs/mine") == ["status.json"]  # nothing half-written beside it


def test_one_line_says_how_far_how_good_and_how_long(capsys):
    leave("runs/mine")
    assert main([]) == 0
    (text,) = capsys.readouterr().out.splitlines()
    assert text.split("  ") == ["mine", "round 3/10", "personal 92.1%", "global 80.0%", "2.5 s/round", "18 s left",
                                "1 failure", "checkpoint 2", "0 s ago"]  # fmt: skip


def test_the_line_says_where_the_clients_are_and_how_they_moved(capsys):
    leave("runs/mine", machines={"a": 6})
    assert main([]) == 0
    assert "machine" not in capsys.readouterr().out  # there is only one
    leave("runs/mine", machines={"a": 4, "b": 2}, moves=("before round 2: b joined", "before round 3: c left"))
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "  2 machines (a 4, b 2)  2 moves, the last before round 3: c left  " in text
    leave("runs/mine", machines={"a": 6}, moves=("before round 3: b left",))
    assert main([]) == 0
    assert "  1 machine (a 6)  1 move, the last before round 3: b left  " in capsys.readouterr().out


def test_sweeps_and_studies_count_what_they_consist_of(dead, capsys):
    again = "python -m tune --resume runs/sweep"
    leave("runs/sweep", unit="trial", measures={"validation/personal/accuracy": 0.5}, pid=dead, command=again)
    leave("runs/quick", unit="run", rounds=4, name="quick")
    leave("runs/quick/fedavg-s0")
    assert main([]) == 0
    run, study, sweep = capsys.readouterr().out.splitlines()
    assert study.startswith("quick  run 3/4  personal 92.1%  global 80.0%  2.5 s/run  2 s left")
    assert run.startswith("mine  round 3/10")
    assert "trial 3/10  validation, personal 50.0%  2.5 s/trial" in sweep
    assert f"stopped: resume with {again}" in sweep
    assert "checkpoint" not in study + sweep


def test_a_run_whose_process_is_dead_is_stopped_and_can_be_resumed(dead, capsys):
    leave("runs/mine", pid=dead)
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "stopped: resume with python -m fedray.launch --resume runs/mine" in text
    assert "left" not in text


def test_a_killed_driver_that_nobody_has_waited_for_is_stopped():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    leave("runs/mine", pid=process.pid)
    assert read(Path("runs/mine")).state == "running"
    process.kill()
    deadline = time.time() + 20
    while read(Path("runs/mine")).state == "running" and time.time() < deadline:
        time.sleep(0.05)
    assert read(Path("runs/mine")).state == "stopped"
    process.wait()


def test_another_process_that_got_the_number_of_a_dead_driver_is_not_taken_for_it():
    leave("runs/mine", updated=time.time() - 86_400 * 365)  # long before this process began
    assert read(Path("runs/mine")).state == "stopped"


def test_a_run_that_was_copied_is_shown_and_resumed_where_it_is(dead, elsewhere, capsys):
    leave("runs/mine", pid=dead)
    shutil.copytree("runs/mine", "runs/my copy")
    assert main([]) == 0
    mine, copy = sorted(capsys.readouterr().out.splitlines())
    assert mine.startswith("mine  ")
    assert mine.endswith("--resume runs/mine")
    assert copy.startswith("my copy  ")
    assert copy.endswith(f"stopped: resume with python -m fedray.launch --resume '{elsewhere}/runs/my copy'")


def test_a_run_on_another_machine_is_believed(dead):
    leave("runs/mine", pid=dead, host="elsewhere")
    assert read(Path("runs/mine")).state == "running"


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_run_that_ended_early_says_how_to_go_on_or_that_it_cannot(state, capsys):
    leave("runs/a", state=state)
    leave("runs/b", state=state, command="", checkpoint=None)
    assert main([]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f"{state}: resume with python -m fedray.launch --resume runs/a")
    assert second.endswith(f"{state}: it cannot be resumed, start it again")
    assert "no checkpoint" in second


def test_only_runs_that_are_not_finished_are_shown_unless_they_are_named(capsys):
    leave("runs/a", name="a", state="finished")
    leave("runs/b", name="b")
    leave("runs/study/c", name="c")
    leave("runs/artifacts/0123/artifacts", name="a copy in the tracking store")
    Path("runs/empty").mkdir()
    assert main([]) == 0
    assert [text.split("  ")[0] for text in capsys.readouterr().out.splitlines()] == ["b", "c"]
    assert main(["runs/a"]) == 0
    assert capsys.readouterr().out.strip().endswith("finished")


def test_json_is_a_list_with_everything(capsys):
    leave("runs/mine", measures={**MEASURES, "global/nll": float("nan")})
    assert main(["--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(found) == {"folder", "seconds_left", *Status._fields}
    assert (found["folder"], found["seconds_left"], found["measures"]) == ("runs/mine", 17.5, MEASURES)


def test_nothing_to_show_is_said_and_is_no_error(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no unfinished run below runs/" in err
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"name": "x"}', "null"])
def test_a_folder_without_a_status_is_named_and_the_remedy_too(content, capsys):
    Path("runs/odd").mkdir(parents=True)
    if content is not None:
        Path("runs/odd/status.json").write_text(content)
    assert main(["runs/odd"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "runs/odd: holds no status of a run" in err
    assert "Traceback" not in err
    assert main([]) == 0  # one odd folder does not hide the others


def test_values_of_another_type_are_refused_not_shown(capsys):
    leave("runs/odd")
    values = json.loads(Path("runs/odd/status.json").read_text())
    for name, value in (("round", None), ("seconds", "2"), ("measures", 3), ("measures", {"global/accuracy": "x"})):
        Path("runs/odd/status.json").write_text(json.dumps({**values, name: value}))
        assert main(["runs/odd"]) == 2, name
        capsys.readouterr()


@pytest.mark.parametrize("reason", ["full", "gone", "read-only"])
def test_a_disk_that_refuses_costs_the_status_not_the_run(reason, monkeypatch, tmp_path):
    leave("runs/mine")
    before = Path("runs/mine/status.json").read_text()

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    if reason == "full":
        opened = Path.open
        monkeypatch.setattr(
            Path, "open", lambda path, *how, **more: (refuse if "w" in how else opened)(path, *how, **more)
        )
    elif reason == "read-only":
        monkeypatch.setattr(progress.os, "replace", refuse)
    folder = Path("runs/gone" if reason == "gone" else "runs/mine")
    assert write(folder, RUNNING._replace(round=4)) is False
    assert Path("runs/mine/status.json").read_text() == before
    assert os.listdir("runs/mine") == ["status.json"]


def test_readers_never_see_half_a_status():
    leave("runs/mine")
    stop = threading.Event()

    def rewrite():
        number = 0
        while not stop.is_set():
            number += 1
            leave("runs/mine", name="n" * (number % 5000), round=number)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(300):
            assert read(Path("runs/mine")).state == "running"
    finally:
        stop.set()
        writer.join()


def test_watching_ends_when_the_last_run_ends(monkeypatch, capsys):
    leave("runs/mine")
    waits = []

    def wait(seconds):
        waits.append(seconds)
        leave("runs/mine", round=10, state="finished" if len(waits) == 2 else "running")

    monkeypatch.setattr(status.time, "sleep", wait)
    assert main(["--watch"]) == 0
    assert waits == [2.0, 2.0]
    assert "finished" in capsys.readouterr().out


def test_watching_is_not_json(capsys):
    assert main(["--watch", "--json"]) == 2
    assert "choose one" in capsys.readouterr().err


def test_the_help_teaches_and_a_status_costs_no_torch():
    code = (
        "import sys; from fedray.status import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
        **os.environ, "PYTHONPATH": str(Path(status.__file__).parents[1])})  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert all(words in found.stdout for words in ("--watch", "--json", "runs/NAME", "every run below runs/"))
