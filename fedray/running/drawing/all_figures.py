"""Every figure of a run, of the rooms that draw them."""

from __future__ import annotations

from pathlib import Path

from fedray.running.drawing import client_figures, figures, uncertainty_figures
from fedray.running.drawing.figure_style import Builders, save_all

ROOMS = (figures, client_figures, uncertainty_figures)


def builders(folder: Path) -> Builders:
    """What draws each figure of a run's folder, by its name."""
    return {name: build for room in ROOMS for name, build in room.builders(folder).items()}


def draw_all(folder: Path, also: str = "png") -> list[Path]:
    """Write every figure that has data to figures/<name>.png below the folder, and in another format beside it."""
    return save_all(folder, builders(folder), also)
