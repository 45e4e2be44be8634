"""A sweep whose folder other machines of the cluster do not see: its trials are played where it is seen."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.machines import sight
from actors.machines.placement import Layout
from fedray.types import FedRayError
from tune import sweep

APART = Layout(((0, 1),), 1.0, 0.0)
INSIDE = Layout(((0, 1),), 1.0, 0.0, inside=True)


def tied(folder: Path, layout: Layout = APART) -> tuple[dict[str, float], list[str]]:
    said: list[str] = []
    request: Any = SimpleNamespace(folder=folder / "sweep")
    return sweep._tied(request, layout, said.append), said


def test_trials_may_go_anywhere_where_all_machines_see_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "blind", lambda folder: [])
    assert tied(tmp_path) == ({}, [])


@pytest.mark.parametrize(("layout", "rest"), [(APART, ", only their clients elsewhere"), (INSIDE, "")])
def test_trials_stay_where_their_folder_is(
    layout: Layout, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "blind", lambda folder: ["gpu-1", "gpu-2"])
    monkeypatch.setattr(sweep, "here", lambda: {"node:me": 0.001})
    found, (line,) = tied(tmp_path, layout)
    assert found == {"node:me": 0.001}
    assert line == (
        f"warning: gpu-1, gpu-2 do not see {tmp_path}: trials play on this machine{rest}; give --output a folder that "
        "all machines see"
    )


def test_a_machine_without_cpus_cannot_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "blind", lambda folder: ["gpu-1"])
    monkeypatch.setattr(sweep, "here", dict)
    with pytest.raises(FedRayError, match=r"--output .*gpu-1 does not see .*give a folder that all machines see"):
        tied(tmp_path)


def test_who_sees_the_mark_is_not_blind_and_no_mark_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machines only the answers are played: the one sees this disk, the second another, the third is gone."""
    nodes = [{"NodeID": name, "Alive": True, "NodeManagerHostname": name} for name in ("me", "a", "b", "c")]
    marks: list[Path] = []

    def ask(node: str, function: Any, path: str) -> str:
        marks.append(Path(path))
        return node

    monkeypatch.setattr(sight.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(sight.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "me"))
    monkeypatch.setattr(sight.ray, "wait", lambda refs, **_: (refs, []))
    monkeypatch.setattr(sight, "ask", ask)
    monkeypatch.setattr(sight, "_answer", lambda ref: ref == "a" and marks[0].exists())
    assert sight.blind(tmp_path) == ["b", "c"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_this_machine_sees_its_own_folder(tmp_path: Path) -> None:
    import ray

    me = ray.get_runtime_context().get_node_id()
    assert ray.get(sight.ask(me, os.path.exists, str(tmp_path))) is True
    assert ray.get(sight.ask(me, os.path.exists, str(tmp_path / "other"))) is False
    assert sight.blind(tmp_path) == []
