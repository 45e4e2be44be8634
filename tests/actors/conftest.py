"""One local Ray for all tests of this folder, with logical GPUs: placement is real, CUDA is not."""

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
