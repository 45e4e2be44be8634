"""What several files share: one local Ray, unpainted figures; and which tests share a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from actors.cluster import connect

# Ray's workers would wait for the tests of the other process; read by Ray where it starts.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files with tests that start Ray go to one process, one after the other; of the others each stays whole."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # its own marks for groups are lost on pytest 9.2
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.partition("::")[0]
            return "ray" if "pytest.mark.ray" in (config.rootpath / name).read_text(encoding="utf-8") else name

    return ByFile(config, log)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    assert connect("local")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def unpainted() -> Iterator[None]:
    """Figures are built but left empty files: painting those of a run takes seconds, and other tests look at them."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, path, **options: path.touch())
        yield
