"""A federation in mid-run as a folder: everything that the rounds to come depend on.

    state.json             the round, and the measures of the rounds so far
    server.safetensors     the server's state
    clients.safetensors    every client's private state, stacked [N, ...]
    selection.safetensors  the state of the selection policy
"""  # fmt: skip

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedray import trees
from fedray.federation import State
from fedray.plan import Plan
from fedray.result import load_tree, save_tree
from fedray.types import FedRayError


class Checkpoint(NamedTuple):
    """A federation between two rounds."""

    state: State
    clients: Any  # private states, stacked [N, ...]
    rows: list[dict[str, float]]  # measures of the rounds so far


def save(folder: Path, state: State, clients: Any, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a federation into an existing folder; the caller makes it visible at once or not at all."""
    save_tree(folder / "server.safetensors", state.server)
    save_tree(folder / "clients.safetensors", clients)
    save_tree(folder / "selection.safetensors", state.selection)
    (folder / "state.json").write_text(json.dumps({"round": state.round, "rows": list(rows)}) + "\n")


def load(folder: Path, plan: Plan) -> Checkpoint:
    """The federation of a folder of :func:`save`.

    Raises FedRayError where a file is missing or damaged, or does not fit the plan's network or clients.
    """
    server = plan.initial_server()
    client = plan.algorithm.client_init(plan.cfg.algorithm, plan.model, server)
    try:
        written = json.loads((folder / "state.json").read_text())
        round, rows = int(written["round"]), list(written["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedRayError(f"{folder / 'state.json'} cannot be read ({error}); use an earlier checkpoint") from None
    selection = load_tree(folder / "selection.safetensors", plan.selection.init(plan.clients))
    state = State(round, load_tree(folder / "server.safetensors", server), selection)
    clients = load_tree(folder / "clients.safetensors", trees.stack([client] * plan.clients))
    return Checkpoint(state, clients, rows)
