"""A run that goes on for more rounds than it was begun with: whether its numbers allow it, and from what it starts.

They are to be those of a run that was begun with that many rounds. A run that was interrupted has a checkpoint; of a
finished one the result is the checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedray.arrays import tensor_files, trees
from fedray.config import override
from fedray.config.decode import decode, refuse_damage
from fedray.federate import rehearsal
from fedray.federate.compiled.unit import Noted
from fedray.federate.messages import File, Saved, Spotlight
from fedray.federate.plan import Plan
from fedray.federate.report import is_measured
from fedray.federate.rounds import SPOTLIGHT_ROUNDS, State
from fedray.federate.storage.checkpoint_files import Checkpoint, as_file, verify_clients
from fedray.running.files import METRICS, read_measures
from fedray.running.folder.notes import finished_rounds
from fedray.running.writer import PERSONAL, SELECTION
from fedray.types import first_line, require


def check(plan: Plan, before: int) -> None:
    """Raise FedRayError where a run that was begun with ``before`` rounds cannot go on to those of the plan."""
    remedy = f"start a new run without --resume, or leave the option out to end after {before}"
    reason = f"its {len(plan.novel)} newcomers are to adapt after round {before}"
    require(not plan.novel, "rounds", plan.cfg.rounds, reason, remedy)
    reason = _dependence(plan, before)
    require(not reason, "rounds", plan.cfg.rounds, reason, remedy)


def _dependence(plan: Plan, before: int) -> str:
    """Why the rounds so far had other numbers if there were ``before`` of them in all; empty where they had not.

    The initial states are compared bit by bit. Every function is tried in a round, and may not ask for the number of
    rounds.
    """
    shorter = plan._replace(cfg=override(plan.cfg, {"rounds": before}))
    known = Noted(plan.facts)
    try:
        same = _initial(plan) == _initial(shorter)
        rehearsal.play(plan, replace(plan.context, facts=known), strict=False)  # type: ignore[arg-type]
    except Exception as error:  # of many kinds: an author's
        unknown = "whether its numbers depend on the number of rounds is unknown"
        return f"{unknown}: a trial round fails ({first_line(error)})"
    if same and "rounds" not in known.known:
        return ""
    return f"the run began with {before}, and the algorithm computes with the number of rounds"


def _initial(plan: Plan) -> list[tuple[str, bytes]]:
    """The states before the first round, by their bits."""
    server = plan.initial_server()
    tree = trees.to_numpy((server, plan.algorithm.client_init(plan.context, server)))
    return [(name, leaf.tobytes()) for name, leaf in trees.named_leaves(tree)]


def from_result(folder: Path, plan: Plan) -> Checkpoint:
    """The federation at the end of a finished run; raises FedRayError where its files do not tell it."""
    with refuse_damage(f"{folder}: its result is no checkpoint", "start a new run with that many rounds"):
        rows = tuple(_rows(folder, plan))
        number = finished_rounds(folder)
        if len(rows) != number:
            raise ValueError(f"{METRICS} has {len(rows)} rounds of {number}")
        initial = plan.initial_server()
        server = tensor_files.unpack((folder / "global.safetensors").read_bytes(), initial)
        selection = plan.selection.init(len(plan.trainers))
        if trees.leaves(selection):
            selection = tensor_files.unpack((folder / SELECTION).read_bytes(), selection)
        state = State(number, server, selection, rows, tuple(_spotlights(folder)))
        clients = _clients(folder, plan, number)
        verify_clients(clients.folder, clients.files, plan.algorithm.client_init(plan.context, initial))
        return Checkpoint(state, clients)


def _rows(folder: Path, plan: Plan) -> Iterator[Mapping[str, float]]:
    """The measures of every round, without those that only the last round of a run has."""
    if not (folder / METRICS).read_bytes().endswith(b"\n"):
        raise ValueError(f"{METRICS} ends within a line")
    for number, row in enumerate(read_measures(folder), 1):
        if row["round"] != number:
            raise ValueError(f"{METRICS}: row {number} is of round {row['round']:g}")
        yield _usual(row | {"round": number}, plan)


def _usual(row: Mapping[str, float], plan: Plan) -> Mapping[str, float]:
    """The measures of a round without an evaluation that only a shorter run would have had."""
    if plan.cfg.evaluates(int(row["round"])) or row["round"] in SPOTLIGHT_ROUNDS:
        return row
    return {name: value for name, value in row.items() if not is_measured(name)}


def lengthened(begun: Checkpoint, plan: Plan) -> Checkpoint:
    """The checkpoint of an interrupted run, for one of more rounds."""
    rows = tuple(_usual(row, plan) for row in begun.state.rows)
    return begun._replace(state=begun.state._replace(rows=rows))


def _spotlights(folder: Path) -> Iterator[Spotlight]:
    """The data of the uncertainty figure, without those of the last round."""
    path = folder / "uncertainty.npz"
    if not path.exists():
        return
    with np.load(path, allow_pickle=False) as found:
        for number in SPOTLIGHT_ROUNDS:
            at = found["round"] == number
            if at.any():
                label, probs = (torch.tensor(found[name][at]) for name in ("label", "probs"))
                yield Spotlight(number, tuple(found["client"][at].tolist()), label, probs)


def _clients(folder: Path, plan: Plan, number: int) -> Saved:
    if (folder / PERSONAL).is_dir():
        files = decode((folder / PERSONAL / "files.json").read_bytes())
        return Saved(str(folder / PERSONAL), number, tuple(map(as_file, files)))
    path = folder / f"{PERSONAL}.safetensors"
    content = path.read_bytes()
    file = File(path.name, len(content), zlib.crc32(content), tuple(range(plan.clients)))
    return Saved(str(folder), number, (file,))
