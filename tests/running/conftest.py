"""Runs that are interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from fedray import launch
from fedray.running import session


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command line that is interrupted after a round."""

    def run(argv: list[str], after: int) -> int:
        honest = session.progress_bar

        @contextlib.contextmanager
        def progress(plan, done):
            with honest(plan, done) as advance:
                count = done

                def watched(values):
                    nonlocal count
                    count += 1
                    advance(values)
                    if count == after:
                        raise KeyboardInterrupt

                yield watched

        with monkeypatch.context() as patched:
            patched.setattr(session, "progress_bar", progress)
            return launch.main(argv)

    return run
