"""The uncertainty report as it leaves a client: ratios, sums and histograms of fixed size.

None of it is a prediction or an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from fedray.arrays import trees
from fedray.federate.uncertainty.adaptive import Tenths
from fedray.federate.uncertainty.conformal import Sets
from fedray.federate.uncertainty.ranking import Ranked
from fedray.federate.uncertainty.selective import Selective
from fedray.types import EvalStats

SAMPLE = 500  # examples of unknown classes, of another dataset, for calibration and for corruptions: at most so many
SCORES = ("confidence", "entropy", "mi")  # S, by which unknown examples are told from known ones


class Scaled(NamedTuple):
    """What calibration comes to at each of T temperatures."""

    calibration_nll: Tensor  # [K, T] Σ -log p_T(y) over calibration examples
    stats: EvalStats  # [K, T, ...] over scored examples
    tenths: Tenths  # [K, T, BINS] over scored examples


class Answers(NamedTuple):
    """What one kind of model of K clients comes to."""

    scored: Tensor  # [K] number of examples
    calibrated: Tensor  # [K] number of examples
    scaled: Scaled
    selective: Selective  # [K, ...]
    sets: Sets  # [K, R, ...]
    unknown: Ranked  # [K, S] scored examples against those of classes that the client does not hold
    far: Ranked  # [K, S] the same against examples of another dataset
    shift: EvalStats | None  # [K, 1 + kinds · severities]; None: it is not known how to corrupt such inputs


class Uncertainty(NamedTuple):
    """The uncertainty report of the clients that one process hosts, or of all."""

    ids: tuple[int, ...]  # K clients, ascending
    personal: Answers | None  # None: there are no such models
    global_: Answers | None


def together(parts: Iterable[Uncertainty]) -> Uncertainty:
    """The report on all clients, of those of the processes that host them, in client order."""
    asked = [part for part in parts if part.ids]
    ids = tuple(i for part in asked for i in part.ids)
    kinds = ([part.personal for part in asked], [part.global_ for part in asked])
    return Uncertainty(ids, *(None if None in each else trees.concatenate(each) for each in kinds))
