"""What several files share: one local Ray, unpainted figures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.cluster import connect


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
