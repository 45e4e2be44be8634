"""The token of local clusters is its user's alone, and shown to a cluster of `ray start` on the same machine."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import AuthenticationError

from actors.machines import cluster
from fedray.types import FedRayError


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".ray" / "auth_token"


def test_nobody_else_reads_it(token: Path) -> None:
    cluster._keep_token()
    made = token.read_text()
    assert len(made) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.chmod(0o644)  # as Ray makes it
    cluster._keep_token()
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == (made, 0o600)


def test_a_token_elsewhere_is_the_users_own_business(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/elsewhere")
    cluster._keep_token()
    assert not token.exists()


def test_none_is_made_where_ray_is_told_to_ask_for_none(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster._keep_token()
    assert not token.exists()


def test_the_cluster_of_another_user_is_not_joined_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be shown the token: whoever may write the note could collect it."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.9.9.9:6379")
    assert cluster._running() == "10.9.9.9:6379"
    monkeypatch.setattr(cluster.os, "geteuid", lambda: 12345)
    assert cluster._running() == "local"


@pytest.mark.parametrize("given", [None, "10.0.0.1:6379"])
def test_a_cluster_that_wants_a_token_is_not_passed_by(
    given: str | None, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that nobody named: the run would play on this machine alone, beside it."""
    shown: list[bool] = []

    def refuse(*_: Any, **__: Any) -> None:
        raise AuthenticationError("Authentication token is missing or incorrect")

    monkeypatch.setattr(cluster, "_running", lambda: "127.0.0.1:6379")
    monkeypatch.setattr(cluster, "_knock", lambda address: None)
    monkeypatch.setattr(cluster, "_init", refuse)
    monkeypatch.setattr(cluster, "_show_token", lambda: shown.append(True))
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(FedRayError, match=r"asks for its token.*RAY_AUTH_MODE=token") as caught:
        cluster.connect(given)
    assert ("--address local" in str(caught.value)) is (given is None)
    assert shown == ([] if given else [True])
