"""What all tests share: one local Ray per test process, unpainted figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors.machines.cluster import connect


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use Ray come first: those of a test process share one cluster, which then makes room for the rest.

    Tests that share a fixture of their module go to one process, which makes it once.
    """
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)
    for item in items:
        module = item.nodeid.partition("::")[0]
        found = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]  # nothing public tells scopes
        if any(fixtures[-1].scope != "function" and fixtures[-1].baseid == module for fixtures in found):
            item.add_marker(pytest.mark.xdist_group(module))


@pytest.fixture(scope="module")
def cluster() -> None:
    """The local Ray of this test process: started at its first use, and again after a test that had one of its own."""
    import ray

    if not ray.is_initialized():
        assert connect("local")


@pytest.fixture
def own_cluster() -> Iterator[Callable[..., None]]:
    """Start a local Ray with options of its own, such as num_gpus, in place of the shared one."""
    import ray

    def start(**options: Any) -> None:
        ray.init(address="local", include_dashboard=False, log_to_driver=False, **options)

    ray.shutdown()
    yield start
    ray.shutdown()


@pytest.fixture(autouse=True)
def only_tests_of_ray_have_a_cluster(request: pytest.FixtureRequest) -> None:
    """Stop the shared cluster before the first test that does not use it: some check that nothing starts one."""
    if request.node.get_closest_marker("ray") is None:
        _stop_ray()


@pytest.fixture(scope="session", autouse=True)
def no_cluster_is_left() -> Iterator[None]:
    yield
    _stop_ray()


def _stop_ray() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(autouse=True)
def only_slow_tests_compile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Quick tests, and processes that they start, find no C++ compiler and no packages: 20 seconds of CPU for each."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setenv("CXX", "no-compiler-in-quick-tests")
        monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path_factory.getbasetemp() / "no-packages"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in every process of a run: on small matrices threads only wait for each other."""
    from fedray.federate.device.cpu import numerics

    with numerics():
        yield


@pytest.fixture(scope="module")
def unpainted() -> Iterator[None]:
    """Figures are built but left empty files: painting those of a run takes seconds, and other tests look at them."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, path, **options: path.touch())
        yield
