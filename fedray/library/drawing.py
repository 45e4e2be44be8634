"""Figures as objects that a notebook shows by itself, whether or not it uses pyplot."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

from fedray.running.drawing.figure_style import STYLE, Builders
from fedray.types import FedRayError, suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI, WIDEST = 80, 760  # of a figure in a notebook, in pixels: outputs are kept in the notebook's file


def having_data(builders: Builders) -> tuple[str, ...]:
    """The names of the figures that show something."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return tuple(name for name, build in builders.items() if build() is not None)


def drawn(builders: Builders, name: str) -> Figure:
    """The figure of a name; raises FedRayError for an unknown one, and for one that has no data."""
    import matplotlib

    if name not in builders:
        near = suggestion(name, builders)
        raise FedRayError(f"figure {name!r}: there is none of that name; {near}choose from {', '.join(builders)}")
    with matplotlib.rc_context(STYLE):
        figure = builders[name]()
        if figure is None:
            raise FedRayError(
                f"figure {name!r}: nothing was measured that it could show; some figures are of runs with "
                "`uncertainty=True`, `loss_deviation=True`, newcomers or real targets"
            )
        figure.draw_without_rendering()  # some parts are made, in the style of that moment, when they are drawn
    # IPython shows figures only where pyplot has told it how.
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010
    return figure


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    dpi = min(DPI, WIDEST / figure.get_figwidth())
    figure.savefig(out, format="png", dpi=dpi, pil_kwargs={"optimize": True})
    return out.getvalue()
