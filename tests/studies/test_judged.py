"""What an interval says of a claim: whether it is settled to a point, and whether the advantage is as printed."""

from __future__ import annotations

import pytest

from fedray.compare.groups import Estimate
from fedray.studies.results.judgement import Ordering
from fedray.studies.results.sections import Judged
from fedray.studies.results.table import Claim


def judged(low: float, high: float, metric: str = "personal/accuracy", paper: float | None = None) -> Judged:
    claim = Claim(metric, better="a", worse="b", source="a paper")
    return Judged(claim, Ordering(Estimate((low + high) / 2, (high - low) / 2, 3), low, high), None, paper)


@pytest.mark.parametrize(
    ("low", "high", "alike"),
    [
        (-0.005, 0.005, True),
        (-0.01, 0.01, True),
        (-0.02, 0.005, False),  # it may be worse by more than a point
        (-0.005, 0.02, False),  # it may be better by more than a point
        (0.001, 0.005, False),  # it holds
        (-0.005, -0.001, False),  # it is refuted
    ],
)
def test_only_an_open_claim_whose_whole_interval_is_within_a_point_is_settled_to_it(
    low: float, high: float, alike: bool
) -> None:
    assert judged(low, high).alike is alike


def test_nats_are_no_points() -> None:
    assert not judged(-0.005, 0.005, "personal/nll").alike


@pytest.mark.parametrize(
    ("paper", "size"),
    [
        (None, ""),
        (0.001, "more than printed"),
        (0.01, ""),
        (0.02, ""),  # between the mean and the upper end
        (0.025, ""),
        (0.03, "less than printed"),
        (-0.01, "more than printed"),
    ],
)
def test_a_printed_advantage_is_compared_with_the_ends_of_the_interval(paper: float | None, size: str) -> None:
    assert judged(0.005, 0.025, paper=paper).size == size
