"""The public names, and what all commands have in common: `fedray COMMAND`, exit codes, and what signals do."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

import fedray
from fedray import cli
from fedray.cli.written import _options
from fedray.types import FedRayError, RunError


def imported(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after some code."""
    heavy = ("torch", "ray", "mlflow", "numpy", "tyro")
    script = f"import sys\n{code}\nprint('IMPORTED', *(name for name in {heavy} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.partition("IMPORTED")[2].split())


def test_every_public_name_is_there_and_none_is_imported_before_it_is_used():
    assert imported("import fedray; fedray.__version__; dir(fedray)") == set()
    for name in fedray.MODULES:
        assert getattr(fedray, name).__name__ == name
    assert set(fedray.MODULES) <= set(dir(fedray))
    with pytest.raises(AttributeError, match="nosuch"):
        fedray.nosuch  # noqa: B018


def test_a_run_from_python_is_that_of_the_command_line(tmp_path, monkeypatch):
    from fedray.algorithms.averaging.fedavg import FedAvg

    monkeypatch.chdir(tmp_path)
    experiment = fedray.Experiment(algorithm=FedAvg(), rounds=2, local_steps=2)
    execution = fedray.Execution(runtime="local", tracking=fedray.TrackingConfig(uri="none"))
    found = fedray.run_experiment(experiment, execution)
    assert found.summary["rounds"] == 2
    assert "fedavg" in repr(fedray.load(found.folder))


def test_help_teaches_every_command(capsys):
    assert cli.main(["--help"]) == cli.main([]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in ("launch", "tune", "compare", "studies", "status", "newcomers"))
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedray {fedray.__version__}\n"


@pytest.mark.parametrize("name", cli.DOORS)
def test_every_command_is_reached_by_its_name(name, capsys):
    try:
        code = cli.main([name, "--help"])
    except SystemExit as leaving:  # tyro prints help and leaves
        code = leaving.code
    assert code == 0
    assert capsys.readouterr().out.startswith("usage: python -m")


@pytest.mark.parametrize(
    "name", [name for name in cli.DOORS if name != "status"]
)  # which imports nothing that takes long
def test_a_command_that_is_interrupted_while_it_imports_says_so_in_one_line(name, tmp_path):
    script = (
        "import runpy, sys\n"
        "class Slow:\n"
        "    def find_spec(self, module, *rest):\n"
        "        if module == 'torch': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        f"runpy.run_module({cli.DOORS[name].module!r}, run_name='__main__', alter_sys=True)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (130, "")
    assert run.stderr.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in run.stderr


def test_an_unknown_command_is_refused(capsys):
    assert cli.main(["lunch"]) == 2
    assert "lunch: not a command; did you mean launch? choose from launch" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["launch", "compare", "status"])
def test_a_current_folder_that_has_been_removed_is_named(name, tmp_path):
    """PyTorch ends the process in it: a library of its own cannot be loaded."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os; os.rmdir({str(gone)!r}); from fedray import cli; raise SystemExit(cli.main([{name!r}]))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", script], cwd=gone, env=env, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: the current folder has been removed; go to one that exists (cd)\n"


def test_status_does_not_wait_for_pytorch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert imported("from fedray import cli; assert cli.main(['status']) == 0") <= {"tyro"}


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (FedRayError("wrong"), 2), (RunError("broken"), 1), (KeyboardInterrupt(), 130)]
)
def test_exit_codes(error, code, capsys):
    def body():
        if error:
            raise error
        return cli.DONE

    assert cli.run_command(body, "interrupted: on purpose") == code
    shown = {0: "", 1: "error: broken\n", 2: "error: wrong\n", 130: "interrupted: on purpose\n"}
    assert capsys.readouterr().err == shown[code]


def test_a_mistake_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        cli.run_command(lambda: 1 // 0)


SLOW = """
import sys, time
from fedray import cli

def body():
    try:
        print("begun", flush=True)
        time.sleep({work})
    finally:
        print("cleaning", flush=True)
        time.sleep({cleanup})
        print("clean", flush=True)
    return cli.DONE

def main():
    return cli.run_command(body)

class LastSeconds:
    def __del__(self):  # while the interpreter ends
        print("ending", flush=True)
        time.sleep(1)

keep = LastSeconds()
cli.leave(main)
"""


def process(work: float, cleanup: float) -> subprocess.Popen[str]:
    script = SLOW.format(work=work, cleanup=cleanup)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(running: subprocess.Popen[str], word: str) -> None:
    assert running.stdout is not None
    assert any(line.strip() == word for line in running.stdout), f"it ended without {word!r}"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_cut_the_clean_up_short(first, second):
    running = process(work=300, cleanup=3)
    wait_for(running, "begun")
    os.kill(running.pid, first)
    wait_for(running, "cleaning")
    os.kill(running.pid, second)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert out.splitlines()[0] == "clean"
    assert "still stopping" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_end_changes_nothing(number):
    running = process(work=0, cleanup=0)
    wait_for(running, "ending")
    os.kill(running.pid, number)
    _, err = running.communicate(timeout=300)
    assert running.returncode == 0
    assert err == ""


def test_handlers_of_the_caller_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert cli.run_command(lambda: cli.DONE) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


TALKATIVE = """
import sys
from fedray import cli, terminal

def main():
    return cli.run_command(lambda: sys.stdin.readline() and {print}("result\\n" * {lines}) or cli.DONE)

cli.leave(main)
"""


@pytest.mark.parametrize("how", ["print", "terminal.console().print"])
@pytest.mark.parametrize("lines", [1, 10_000])  # one is written when the buffer is flushed, the others before
def test_a_reader_who_leaves_early_sees_no_traceback(lines, how):
    talking = subprocess.Popen(
        [sys.executable, "-c", TALKATIVE.format(lines=lines, print=how)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert talking.stdin is not None
    assert talking.stdout is not None
    assert talking.stderr is not None
    talking.stdout.close()
    talking.stdin.write("now\n")
    talking.stdin.close()
    assert talking.stderr.read() == ""
    assert talking.wait(timeout=300) == 141


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_full_disk_behind_stdout_is_said(lines):
    with open("/dev/full", "w") as full:
        talking = subprocess.run(
            [sys.executable, "-c", TALKATIVE.format(lines=lines, print="print")],
            input="now\n",
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert talking.stderr == "error: stdout: cannot be written (no space left on device); send it elsewhere\n"
    assert talking.returncode == 1


def test_streams_that_the_caller_has_closed_lead_nowhere():
    """And no file gets their numbers: what is printed would end up in it."""
    program = """
import sys
from fedray import cli

def main():
    print("result")
    print("words", file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        return 0 if file.fileno() > 2 else 9

cli.leave(main)
"""
    for closed in ("1>&-", "2>&-", "0<&- 1>&- 2>&-"):
        command = ["sh", "-c", f'"$0" -c "$1" /dev/null {closed}', sys.executable, program]
        assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0, closed


def test_another_broken_pipe_is_not_hidden():
    lost = "import sys\nfrom fedray import cli\ndef main(): raise BrokenPipeError('the other end')\ncli.leave(main)"
    ended = subprocess.run([sys.executable, "-c", lost], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert "BrokenPipeError: the other end" in ended.stderr


def test_a_mapping_is_typed_as_it_is_read() -> None:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        weights: dict[str, float]

    assert _options(Settings({"a": 1.0, "b c": 2.0}), Settings({}), "") == ["--weights", "a", "1.0", "'b c'", "2.0"]
