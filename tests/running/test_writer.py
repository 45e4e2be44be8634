"""The folder of a result: how it gets there, whatever is there, and whether it lasts."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.running import finished, writer
from fedray.running.folder import naming
from fedray.running.writer import Writer
from fedray.types import FedRayError


def test_a_result_may_go_to_where_a_volume_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files cannot be moved onto another volume: they are collected on it."""
    place = tmp_path / "volume"
    place.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == place)
    result = Writer(place)
    assert result.folder.parent == place
    (place / "theirs").touch()
    with pytest.raises(FedRayError, match="already holds something"):
        Writer(place)
    (place / "theirs").unlink()
    result = Writer(place)  # in the place of one whose process was killed
    result.json("summary.json", {})
    result.commit()
    assert [path.name for path in place.iterdir()] == ["summary.json"]


def test_a_result_goes_to_where_a_link_leads(tmp_path: Path) -> None:
    """Its files are collected on that volume, and what was linked there is replaced."""
    place = tmp_path / "volume/run"
    (place / "elsewhere").mkdir(parents=True)
    (place / "figures").symlink_to("elsewhere")
    (tmp_path / "x").symlink_to(place)
    with pytest.raises(FedRayError, match="already holds something"):
        Writer(tmp_path / "x")
    result = Writer(tmp_path / "x", resumed=True)
    assert result.folder.parent == place.parent
    result.json("figures/list.json", {})
    assert result.commit() == tmp_path / "x"
    assert sorted(path.name for path in place.iterdir()) == ["elsewhere", "figures"]
    assert [path.name for path in (place / "figures").iterdir()] == ["list.json"]
    assert [path.name for path in place.parent.iterdir()] == ["run"]


def test_names_in_any_language_are_written_under_every_locale(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from fedray.federate.messages import Failure
from fedray.running import failure_list
from fedray.running.writer import Writer

folder = Path(sys.argv[1])
for _ in range(2):
    failure_list.add(folder, [Failure(1, "Jos\\xe9", "lost", "")])
assert len(failure_list.begin(folder, 1)) == 2
result = Writer(folder / "x")
result.stream("clients.csv", iter([{"name": "Jos\\xe9"}]))
result.commit()
"""
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=plain, check=True)
    assert (tmp_path / "x/clients.csv").read_text(encoding="utf-8").splitlines() == ["name", "José"]


def test_every_file_is_on_the_disk_before_it_is_part_of_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoints are removed right after it."""
    synced: list[Path] = []
    monkeypatch.setattr(writer, "to_disk", synced.append)
    result = Writer(tmp_path / "x")
    for name in ("summary.json", "config.json", "personal/files.json"):
        result.json(name, {})
    result.commit()
    assert synced[-1] == tmp_path / "x"
    assert {path.name for path in synced[:-1]} == {"summary.json", "config.json", "personal", "files.json"}
    assert not result.folder.exists()


def test_a_file_system_that_cannot_sync_a_folder_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result = Writer(tmp_path / "x")
    result.json("personal/files.json", {})
    result.commit()
    assert (tmp_path / "x/personal/files.json").exists()


def test_a_place_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert naming.place("", "~/runs/x", "x") == tmp_path / "runs/x"
    with pytest.raises(FedRayError, match=f"{tmp_path}/runs/x/config.json"):
        finished.load("~/runs/x")


def test_a_folder_whose_name_is_no_text_is_refused() -> None:
    """As in the locale C, which cannot read é: the files of a result name their folder."""
    with pytest.raises(FedRayError, match=r"^'/x/\\udcc3\\udca9': the name of this folder .* set LC_ALL=C\.UTF-8"):
        naming.place("", "/x/\udcc3\udca9", "x")
