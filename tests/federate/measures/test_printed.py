"""Numbers of tables."""

from __future__ import annotations

import math

import pytest

from fedray.federate import report
from fedray.federate.measures.tasks import REGRESSION, printed


@pytest.mark.parametrize(
    ("value", "digits", "unit", "spread", "text"),
    [
        (93.456, 2, False, 1.2345, "93.46 ± 1.23"),
        (-0.0004, 3, False, None, "0.000"),  # no number is minus nothing
        (-0.0004, 2, False, 0.1, "0.00 ± 0.10"),
        (-1.5, 3, False, None, "-1.500"),
        (6.871e-6, 4, True, None, "0.00000687"),  # in the unit of a target that is small
        (0.0, 4, True, None, "0.0000"),
        (70030922.9, 4, True, 1e6, "7.00e+07 ± 1.00e+06"),
        (math.nan, 2, False, math.nan, "not finite"),
        (math.inf, 3, False, None, "not finite"),
    ],
)
def test_a_number_has_the_digits_that_say_something(value, digits, unit, spread, text):
    assert printed(value, digits, unit, spread) == text


def test_the_table_of_a_run_shows_small_targets_as_the_comparison_does():
    (shown, *_) = REGRESSION.shown
    assert report._cells([{"rmse": 6.871e-6}, {"rmse": 2.5e7}, {"rmse": math.nan}, None], shown) == [
        "0.00000687",
        "2.50e+07",
        "not finite",
        "",
    ]
