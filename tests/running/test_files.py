"""Small files are whole, also where several processes write the same one."""

import multiprocessing
from pathlib import Path
from typing import Any

from fedray.running.files import leftover, whole

WORDS = {"a": "a" * 50_000, "b": "b" * 50_000}


def write(path: Path, name: str, at: dict[str, Any]) -> None:
    """Write in two halves; another process writes meanwhile."""
    with whole(path) as file:
        file.write(WORDS[name][:25_000])
        file.flush()
        at["begun"].wait(60)
        if name == "b":
            at["ended"].wait(60)
        file.write(WORDS[name][25_000:])
    at["ended"].set()


def test_two_processes_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    """As two comparisons do, or two parts of a study: a reader finds what one of them wrote, and neither fails."""
    context = multiprocessing.get_context("spawn")
    at = {"begun": context.Barrier(2), "ended": context.Event()}
    path = tmp_path / "table.md"
    writers = [context.Process(target=write, args=(path, name, at)) for name in WORDS]
    for writer in writers:
        writer.start()
    at["ended"].wait(60)
    assert path.read_text() in WORDS.values()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert path.read_text() == WORDS["b"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.md"]


def test_what_a_killed_writer_leaves_is_known_as_such(tmp_path: Path) -> None:
    with whole(tmp_path / "x"):
        assert [leftover(path) for path in tmp_path.iterdir()] == [True]
