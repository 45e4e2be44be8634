"""How clients on Ray are told to train: packages are for CPUs."""

from __future__ import annotations

import pytest

from actors import federation
from actors.machines.placement import Layout
from fedray.config import Execution


def test_a_package_is_made_for_cpus_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(federation, "obtain", lambda plan: made.append(plan) or "package")
    run = object.__new__(federation.RayFederation)
    run._execution, run._package, run.plan = Execution(backend="compiled"), None, "plan"  # type: ignore[assignment]
    run.layout = Layout(((0,),), 1.0, 0.5)
    assert run._backend() == "compiled"  # PyTorch's own compiler, in the actor
    assert made == []
    run.layout = Layout(((0,),), 1.0, 0.0)
    assert [run._backend(), run._backend()] == ["package", "package"]
    assert made == ["plan"]
