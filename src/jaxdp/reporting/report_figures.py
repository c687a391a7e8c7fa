"""Draws the report's figures with Matplotlib, as SVG in the fonts and colors of the page."""

import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib import ticker
from matplotlib.figure import Figure

from jaxdp.reporting import fonts

# The palette of Okabe and Ito, distinct for all color vision, without yellow, which is illegible
# on white. Further runs are grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676")
MARKERS = {  # of Matplotlib, and the character of the same shape in the page's legend
    "resumed": (">", "▶"),
    "rolled back": ("<", "◀"),
    "updates skipped": ("x", "×"),
    "stopped": ("s", "■"),
    "diverged": ("D", "◆"),
}
BASE = "base"  # key of the x axis that a figure shows first
Number = float | int
Panel = tuple[str, list[Markup]]  # caption, and a drawing over each x axis
_RUN = "#000001"  # stands for the variable with the color of a run
_STYLE: Any = {
    "font.size": 11,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelpad": 2,
    "grid.color": "#88888840",  # for a light and a dark page
    "grid.linewidth": 1,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "path.simplify_threshold": 1.0,  # pixels
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxdp",  # the same runs give the same page
}
_WIDTH = 376
_HEIGHT = 218
_PANEL = (60 / _WIDTH, 30 / _HEIGHT, 306 / _WIDTH, 174 / _HEIGHT)  # left, bottom, width, height


def compact(value: Number, _: object = None) -> str:
    """Returns a number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


@dataclasses.dataclass(frozen=True)
class XAxis:
    """What curves can be drawn over; the reader of the page chooses one.

    Attributes:
        key: base, epoch or time.
        name: among the choices.
        title: below the axis.
        unit: seconds in a unit of time, 1 for all else.
        end: of the axis, in its unit.
    """

    key: str
    name: str
    title: str
    unit: Number
    end: Number


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve or a mark of a run.

    Attributes:
        text: for readers who point at the line.
        color: index of the color of the run.
        x: positions on each x axis that is known for the run, by its key.
        y: values; for a mark, shares of the panel's height.
        look: properties of Matplotlib's Line2D.
    """

    text: str
    color: int
    x: Mapping[str, Any]
    y: Sequence[Number]
    look: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def figure(
    caption: str,
    curves: Sequence[Line],
    marks: Sequence[Line],
    x_axes: Sequence[XAxis],
    *,
    log: bool = False,
    zero: bool = False,
    form: Callable[[Number, object], str] | ticker.Formatter = compact,
) -> list[Panel]:
    """Draws curves and marks over each x axis; returns nothing if there are no values.

    Args:
        log: whether the y axis is logarithmic if all values are positive.
        zero: whether the y axis starts at 0 if no value is negative.
        form: writes a value.
    """
    values = [value for curve in curves for value in curve.y]
    if not values:
        return []
    log = log and min(values) > 0
    lines = [*curves, *marks]
    drawings: list[Markup] = []
    for x_axis in x_axes:
        with matplotlib.rc_context(_STYLE):
            canvas, axes = _panel()
            for index, line in enumerate(lines):
                if x_axis.key in line.x:
                    look = {**line.look, "gid": f"line-{index}", "color": _RUN, "clip_on": False}
                    if index >= len(curves):
                        look["transform"] = axes.get_xaxis_transform()
                    axes.plot(line.x[x_axis.key] / x_axis.unit, line.y, **look)
            axes.set(xlabel=x_axis.title, xlim=(0, x_axis.end), ylabel=fonts.drawn(caption))
            axes.margins(y=0 if log else 0.04)
            if log:
                digits = [1, 2, 5] if max(values) < 1000 * min(values) else [1]
                axes.set_yscale("log")
                axes.minorticks_off()
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=digits, numticks=7))
            elif zero and min(values) >= 0:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(compact)
            axes.yaxis.set_major_formatter(form)
            label = f"{caption}: {', '.join(dict.fromkeys(curve.text for curve in curves))}"
            drawings.append(_svg(canvas, lines, x_axis.key, label))
    return [(caption + ", logarithmic" * log, drawings)]


def _panel() -> tuple[Figure, Any]:
    """Returns a figure and its axes, which have a grid and no frame."""
    canvas = Figure((_WIDTH / 72, _HEIGHT / 72))  # a point of Matplotlib is a unit of the SVG
    axes: Any = canvas.add_axes(_PANEL)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=5)
    axes.yaxis.set_label_coords(-0.15, 0.5)
    axes.grid(clip_on=False)  # the identifiers of clip paths would be those of all drawings
    return canvas, axes


def _svg(canvas: Figure, lines: Sequence[Line], key: str, label: str) -> Markup:
    """Returns a drawing whose lines have the colors of their runs, and texts to point at.

    Args:
        key: of the x axis.
        label: what a screen reader says.
    """

    def group(found: re.Match[str]) -> str:
        if found[1] is None:
            return "<g>"
        line = lines[int(found[1])]
        return f'<g class="run k{line.color}"><title>{escape(line.text)}</title>'

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    canvas.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    content = buffer.getvalue().partition("<svg")[2].partition(">")[2]
    head = Markup('<svg class="over {}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    body = re.sub(r'<g id="(?:line-(\d+)|[^"]*)">', group, content).replace(_RUN, "var(--k)")
    return head.format(key, _WIDTH, _HEIGHT, label) + Markup(body)
