"""Figures as SVG. The one module that imports matplotlib: import it only to draw."""

import io
import math
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import LogLocator

from service.cli.figures.figure import DrawnCurve, Figure, FigureKind, Panel

# Okabe and Ito's colours, told apart by all common kinds of colour blindness.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MARKS: Final = ("o", "s", "^", "D", "v")
_DASHES: Final = {FigureKind.LIMIT: "--", FigureKind.DOCUMENT: "-.", FigureKind.CONJECTURE: ":"}
_GREY: Final = "#444444"
_MARKED: Final = 8  # points of a curve, about
_FEW: Final = 3  # curves whose marks need not make room for each other
_NARROW: Final = 3.5  # decades of an axis that is told in ones, twos and fives
_WIDTH, _HEIGHT, _ALONE = 4.3, 4.0, 5.6  # inches: of a panel, and of a panel that has no others
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "dpledger",  # equal figures have equal bytes
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.fontsize": 8.0,
}


def draw(figure: Figure, *, kind: str = "svg") -> bytes:
    """A figure as a picture; the same bytes each time.

    Args:
        figure: what to draw.
        kind: "svg", or "png" to look at.
    """
    count = len(figure.panels)
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever this machine prefers
        mpl.rcParams.update(_SETTINGS)
        sheet = Sheet(figsize=(max(_WIDTH * count, _ALONE), _HEIGHT), layout="constrained")
        sheet.suptitle(figure.title, fontsize=11)
        for place, panel in enumerate(figure.panels, start=1):
            _draw_panel(sheet.add_subplot(1, count, place), panel)
        picture = io.BytesIO()
        # Neither the date nor the version belongs to the picture.
        metadata = {"Date": None, "Creator": None} if kind == "svg" else None
        sheet.savefig(picture, format=kind, metadata=metadata, dpi=110)
    return picture.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_name)
    axes.set_ylabel(panel.y_name)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log", nonpositive="mask")
    for place, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, place, len(panel.curves))
    axes.minorticks_off()
    if panel.log_x:
        _label(axes.xaxis)
    if panel.log_y:
        _label(axes.yaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False)


def _draw_curve(axes: Axes, curve: DrawnCurve, place: int, count: int) -> None:
    """One of `count` curves; where some coincide, lines and marks of each are still seen."""
    apart = max(1, len(curve.points) // _MARKED, count if count > _FEW else 1)
    marked = len(curve.points) > 2 and curve.kind is not FigureKind.LIMIT
    axes.plot(
        [x for x, _ in curve.points],
        [y for _, y in curve.points],
        label=curve.label,
        color=_GREY if curve.kind is FigureKind.LIMIT else COLOURS[place % len(COLOURS)],
        linestyle=_DASHES.get(curve.kind, "-"),
        linewidth=1.3 + 0.7 * (count - 1 - place),
        marker=_MARKS[place % len(_MARKS)] if marked else "",
        markersize=4.5,
        markevery=(place % apart, apart),
    )


def _label(axis: Axis) -> None:
    """Label a logarithmic axis."""
    low, high = axis.get_view_interval()
    if math.log10(high / low) < _NARROW:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(_tick)


def _tick(value: float, _place: float) -> str:
    if 0.01 <= value <= 1000:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    return f"{value / 10.0**exponent:.0f}e{exponent}"
