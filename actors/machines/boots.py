"""How long machines took to start: a small file in the user's cache, from which later runs say what to expect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from fedray.config.decode import decode, fits
from fedray.federate.compiled import cache
from fedray.types import FedRayError

KEY = "machines"


def recall(cluster: str) -> dict[str, float]:
    """Seconds that the last machine of each type took in a cluster; of no type where nothing is known."""
    return _read().get(cluster, {})


def remember(cluster: str, seconds: Mapping[str, float]) -> None:
    """Note how long machines of some types took; nothing, never an exception, where the disk refuses."""
    known = _read()
    known[cluster] = known.get(cluster, {}) | dict(seconds)
    with contextlib.suppress(FedRayError):
        cache.write(KEY, json.dumps(known).encode())


def _read() -> dict[str, dict[str, float]]:
    with contextlib.suppress(FedRayError, ValueError):
        known = decode(cache.read(KEY) or b"{}")
        return known if fits(known, dict[str, dict[str, float]]) else {}
    return {}
