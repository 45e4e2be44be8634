"""What all figures share: style, colours, and small helpers for reading, placing and saving."""

from __future__ import annotations

import csv
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.data.readers import Names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which suits any colour vision; without its yellow, which is too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# A model has the same colour in every figure of a run. Line styles and markers keep models apart in black and white.
COLOURS = {"personal": PALETTE[0], "global": PALETTE[1], "novel": PALETTE[2]}
LINES: dict[str, tuple[Any, str]] = {"personal": ("-", "o"), "global": ("--", "s"), "novel": ("-.", "^")}
GREY = "#8C8C8C"
NAME_MAX = 14  # letters
WRAPPED_MAX = 34  # letters of a line of a long name
LINE = 0.17  # inches between two lines of a legend
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.parse_math": False,  # names of classes and clients may hold $
}

Rows = Sequence[Mapping[str, Any]]  # of a CSV file
Builders = Mapping[str, Callable[[], "Figure | None"]]  # by the name of a figure; None: it has no data


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches, that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(folder: Path, name: str, build: Callable[[], Figure | None], also: str = "png") -> Path | None:
    """Draw a figure in the common style and write it to figures/<name> below a folder; None if nothing is drawn.

    ``also`` is a second format: pdf or svg.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = build()
        if figure is None:
            return None
        path = folder / "figures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for form in {path.suffix, f".{also}"}:
            figure.savefig(path.with_suffix(form), dpi=200)
    return path


def save_all(folder: Path, builders: Builders, also: str = "png") -> list[Path]:
    """Write every figure that has data as :func:`save` does."""
    paths = [save(folder, f"{name}.png", build, also) for name, build in builders.items()]
    return [path for path in paths if path]


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; empty if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_names(folder: Path) -> Names:
    """What the data of a run call its classes and clients, from its config.json; nothing of older runs."""
    path = folder / "config.json"
    found = json.loads(path.read_text()).get("data", {}).get("names", {}) if path.exists() else {}
    return Names(**{kind: tuple(names) for kind, names in found.items()})


def titled(names: Sequence[str], client: int) -> str:
    """A client's name, or its number."""
    return shortened(names[client]) if names else f"Client {client}"


def shortened(name: str) -> str:
    """A name that fits beside an axis, with its end, by which similar names differ."""
    half = NAME_MAX // 2
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - half]}…{name[-half + 1 :]}"


def wrapped(name: str, width: int = WRAPPED_MAX) -> str:
    """A long name in lines of so many letters."""
    return "\n".join(textwrap.wrap(name, width))


def lines_of(names: Iterable[str]) -> int:
    """How many lines the longest of some names takes."""
    return max((name.count("\n") + 1 for name in names), default=1)


def legend_height(names: Sequence[str], ncols: int) -> float:
    """Inches that a legend of so many columns takes, which are filled one after the other."""
    rows = math.ceil(len(names) / ncols)
    return LINE * max(
        (sum(name.count("\n") + 1 for name in names[k : k + rows]) for k in range(0, len(names), rows or 1)), default=0
    )


def column(rows: Rows, name: str) -> np.ndarray:
    """A column as numbers; NaN for empty fields."""
    return np.array([float("nan") if row[name] in ("", None) else float(row[name]) for row in rows])


def calibration_error(rows: Rows) -> float:
    """ECE = Σ_b n_b |accuracy_b - confidence_b| / Σ_b n_b, of filled confidence bins as in calibration.csv."""
    count = column(rows, "count")
    gaps = np.abs(column(rows, "accuracy") - column(rows, "confidence"))
    return float((count * gaps).sum() / count.sum())


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of the positions 0 ... count - 1, evenly spaced, with the first and the last."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def jitter(count: int) -> np.ndarray:
    """Offsets between -1 and 1 that keep points with equal values from hiding each other; always the same."""
    return np.sin(2.4 * np.arange(count))


def clip_percent_axis(ax: Any) -> None:
    """Limits of a vertical axis in % that name no share below 0 or above 100 %; markers there stay whole."""
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, -0.8), min(high, 100.8))


def add_legend(figure: Figure, axes: Iterable[Any], **look: Any) -> None:
    """One legend of all that some panels show, below them."""
    shown: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", **look)


def plot_diagonal(ax: Any, linewidth: float, **look: Any) -> None:
    """The line on which a calibrated model lies, in %."""
    ax.plot([0, 100], [0, 100], "--", color="black", linewidth=linewidth, **look)
