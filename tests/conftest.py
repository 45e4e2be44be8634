"""What several files share: one local Ray, unpainted figures; and which tests share a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.cluster import connect


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that start Ray go to one process, one after the other, and what else a file holds to one, too."""
    for item in items:
        group = "ray" if item.get_closest_marker("ray") else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


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
