"""The cache of packages: whole or not at all, and nothing in it that somebody else could have put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedray.federate.compiled import cache
from fedray.types import FedRayError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def test_what_is_written_is_read_and_nobody_else_may_look(place: Path) -> None:
    assert cache.read("a") is None
    cache.write("a", b"code")
    cache.write("b", b"")
    assert (cache.read("a"), cache.read("b"), cache.read("c")) == (b"code", b"", None)
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "a").stat().st_mode & 0o777 == 0o600


def test_the_default_folder_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDRAY_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "fedray"


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-1], lambda code: code[:40], lambda code: code[:-1] + b"X", bytes]
)
def test_a_damaged_package_counts_as_none(place: Path, damage) -> None:
    cache.write("a", b"some code that is long enough")
    (place / "a").write_bytes(damage((place / "a").read_bytes()) if damage is not bytes else b"")
    assert cache.read("a") is None
    cache.write("a", b"new")
    assert cache.read("a") == b"new"


def test_a_write_that_fails_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache.write("a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(FedRayError, match=r"cannot be written \(No space left"):
            cache.write("a", b"new")
    assert cache.read("a") == b"old"
    assert [path.name for path in place.iterdir()] == ["a"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_is_refused(place: Path, mode: int) -> None:
    cache.write("a", b"code")
    place.chmod(mode)
    for act in (lambda: cache.read("a"), lambda: cache.write("a", b"x"), cache.folder):
        with pytest.raises(FedRayError, match=r"others may write there.*chmod go-w.*FEDRAY_CACHE"):
            act()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_refused(place: Path, mode: int) -> None:
    cache.write("a", b"code")
    (place / "a").chmod(mode)
    with pytest.raises(FedRayError, match="others may write there"):
        cache.read("a")


def test_a_folder_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("a", b"code")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(FedRayError, match="belongs to another user"):
        cache.read("a")


def test_a_file_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("a", b"code")
    honest = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda file: os.stat_result((*honest(file)[:4], os.geteuid() + 1, *honest(file)[5:]))
    )
    with pytest.raises(FedRayError, match="belongs to another user"):
        cache.read("a")


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    cache.write("a", b"code")
    (place / "a").rename(tmp_path / "elsewhere")
    (place / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedRayError, match="cannot be read"):
        cache.read("a")


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(FedRayError, match=r"FEDRAY_CACHE=.*cannot be used"):
        cache.folder()
