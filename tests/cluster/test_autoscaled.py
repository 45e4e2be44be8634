"""The cases of tests/cluster/autoscaled.py, on one head: machines that the autoscaler starts for a run, or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.autoscaled import CASES, Cloud

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_machines_come_and_go_with_the_runs_that_ask_for_them(cloud: Cloud, case: Callable[[Cloud], None]) -> None:
    cloud.clear()
    case(cloud)
