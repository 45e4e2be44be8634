"""The figures of a sweep show the trials that count, and name the values of every setting."""

from __future__ import annotations

import pytest

from fedray.types import Choice
from tune import results
from tune.options import Sweep
from tune.results import TrialResult

SPACE = {"algorithm.average": Choice(("rho", "sigma", "moments")), "algorithm.keep": Choice((True, False))}


def rgb_to_grey(colour):
    """Relative luminance of sRGB, 1 for white."""
    linear = [(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4) for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def trial(number, average, keep, score, outcome="finished"):
    settings = {"algorithm.average": average, "algorithm.keep": keep}
    return TrialResult(f"x_{number}", settings, 0, 3, score, outcome)


TRIALS = [trial(0, "rho", True, 0.5), trial(1, "sigma", False, 0.7), trial(2, "moments", True, 0.9)]


@pytest.mark.parametrize("outcome", ["failed: NaN", "unfinished"])
def test_a_trial_without_a_rank_is_in_no_figure(outcome, tmp_path, monkeypatch):
    """Not in one of the two figures alone, and not as the best of them."""
    drawn = {}
    for name in ("_versus", "_parallel"):
        monkeypatch.setattr(results, name, lambda table, *_, name=name: drawn.update({name: table}))
    results.draw([*TRIALS, trial(3, "rho", True, 0.99, outcome)], SPACE, Sweep(mode="max"), tmp_path)
    assert drawn == {"_versus": TRIALS, "_parallel": TRIALS}
    assert results.draw([trial(3, "rho", True, 0.99, outcome)], SPACE, Sweep(mode="max"), tmp_path) == []


def test_every_value_of_a_setting_of_words_stands_at_its_axis():
    (ax,) = results._parallel(TRIALS, SPACE, "m", "max").axes
    texts = [note.get_text() for note in ax.texts]
    assert set(texts) == {"moments", "rho", "sigma", "False", "True", "0.500", "0.900"}


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_trial_is_drawn_darkest(mode):
    """On white paper, and in grey, it would otherwise be the faintest line."""
    (ax,) = results._parallel(TRIALS, SPACE, "m", mode).axes
    light = [rgb_to_grey(line.get_color()) for line in ax.lines[: len(TRIALS)]]
    assert light == sorted(light, reverse=mode == "max")
    assert min(light) < 0.1


def test_one_value_stands_once_where_its_line_is():
    (ax,) = results._parallel(TRIALS[:1], SPACE, "m", "max").axes
    assert [note.get_text() for note in ax.texts if note.get_text()] == ["rho", "True", "0.500"]
    assert all(note.xy[1] == 0.5 for note in ax.texts if note.get_text())


def test_yes_and_no_are_words_on_their_axis():
    ax = results._versus(TRIALS, SPACE, "m").axes[1]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["False", "True"]
