"""Tables of a run that cannot be written, or not to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.federate.messages import Failure
from fedray.running import failure_list, files


def test_a_table_that_cannot_be_written_leaves_the_one_before_it(tmp_path: Path) -> None:
    class Broken:
        def __str__(self) -> str:
            raise OSError("no space left")

    files.write_table(tmp_path / "a.csv", [{"a": 1}])
    with pytest.raises(OSError, match="no space"):
        files.write_table(tmp_path / "a.csv", [{"a": 2}, {"a": Broken()}])
    assert (tmp_path / "a.csv").read_bytes() == b"a\r\n1\r\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_failures_before_an_interruption_are_there_until_the_table_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [Failure(number, "client 1", "lost", "gone") for number in (1, 3)]
    failure_list.add(tmp_path, failures)

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert failure_list.begin(tmp_path, 2) == (failures[0],)
    assert failure_list.begin(tmp_path, 3) == tuple(failures)
    assert failure_list.begin(tmp_path, 2) == (failures[0],)
    assert failure_list.begin(tmp_path, 3) == (failures[0],)
