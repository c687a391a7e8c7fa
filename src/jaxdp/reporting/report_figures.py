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
    "out of memory": ("x", "×"),
}
BASE = "base"  # key of the x axis that a figure shows first
Number = float | int
ToX = Mapping[str, Callable[[Any], Any]]  # by key of an x axis: from steps to positions on it
Panel = tuple[str, list[Markup]]  # caption, and a drawing over each x axis
# Colors that stand for variables of the page's style sheet.
_TEXT = "#000001"
_NAME = "#000002"
_GRID = "#000003"
_RUN = "#000004"
_VARIABLES = {_TEXT: "soft", _NAME: "ink", _GRID: "line", _RUN: "k"}
_STYLE: Any = {
    "font.size": 11,
    "text.usetex": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": _TEXT,
    "axes.labelpad": 2,
    "grid.color": _GRID,
    "grid.linewidth": 1,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "path.simplify": True,
    "path.simplify_threshold": 1.0,  # pixels
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxdp",  # the same runs give the same page
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
}
_WIDTH = 376
_HEIGHT = 218
_LEFT = 60  # margins of the panel
_RIGHT = 10
_TOP = 14
_BOTTOM = 30
_ROW = 30  # height of a run in a timeline
_ROUND = [1, 2, 2.5, 5, 10]  # distances of ticks, apart from powers of ten


def compact(value: Number, _: object = None) -> str:
    """Returns a number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def percent(value: Number, _: object = None) -> str:
    """Returns a fraction as a percentage of at most four digits."""
    return f"{100 * value:.4g}%"


@dataclasses.dataclass(frozen=True)
class XAxis:
    """What lines can be drawn over; the reader of the page chooses one.

    Attributes:
        key: base, epoch or time.
        name: among the choices.
        title: below the axis.
        unit: seconds in a unit of time, 1 for all else.
        sizes: batch sizes, the ticks of a logarithmic axis.
    """

    key: str
    name: str
    title: str
    last: float = 1.0
    unit: float = 1.0
    sizes: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class YAxis:
    """How values are drawn.

    Attributes:
        title: the caption of the figure by default.
        log: whether the axis is logarithmic if all values are positive.
        zero: whether the axis starts at 0 if no value is negative.
        form: writes a value.
        highest: end of the axis; by default, the highest value.
        rows: of a timeline; its values are pixels below the top.
    """

    title: str = ""
    log: bool = False
    zero: bool = False
    form: Callable[[Number, object], str] = compact
    highest: Number | None = None
    rows: int = 0


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve, bar or mark of a run.

    Attributes:
        text: for readers who point at the line.
        color: index of the color of the run.
        to_x: positions on each x axis that is known for the run, from steps.
        look: properties of Matplotlib's Line2D.
        label: name above the line.
        is_mark: whether the values are parts of the panel's height.
    """

    text: str
    color: int
    to_x: ToX
    steps: Sequence[Number]
    values: Sequence[Number]
    look: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""
    is_mark: bool = False


def figure(
    caption: str, lines: Sequence[Line], x_axes: Sequence[XAxis], y_axis: YAxis
) -> list[Panel]:
    """Draws lines over each x axis; returns nothing if there are no values."""
    values = [value for line in lines if not line.is_mark for value in line.values]
    if not values:
        return []
    if y_axis.log and min(values) > 0:
        caption += ", logarithmic"
    else:
        y_axis = dataclasses.replace(y_axis, log=False)
    names = dict.fromkeys(line.text for line in lines if not line.is_mark)
    label = f"{caption}: {', '.join(names)}"
    with matplotlib.rc_context(_STYLE):
        return [(caption, [_svg(label, lines, x_axis, y_axis, values) for x_axis in x_axes])]


def _svg(
    label: str, lines: Sequence[Line], x_axis: XAxis, y_axis: YAxis, values: Sequence[Number]
) -> Markup:
    """Returns a drawing; `label` is what a screen reader says."""
    height = _ROW * y_axis.rows + _TOP + _BOTTOM if y_axis.rows else _HEIGHT
    canvas = Figure((_WIDTH / 72, height / 72))  # a point of Matplotlib is a unit of the SVG
    left, bottom = 8 if y_axis.rows else _LEFT, _BOTTOM / height
    width = 1 - (left + _RIGHT) / _WIDTH
    axes: Any = canvas.add_axes((left / _WIDTH, bottom, width, 1 - _TOP / height - bottom))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=5)
    _set_x_axis(axes, x_axis)
    _set_y_axis(axes, y_axis, values)
    for index, line in enumerate(lines):
        if x_axis.key in line.to_x:
            look = dict(line.look)
            if line.is_mark:
                look["transform"] = axes.get_xaxis_transform()
            x = line.to_x[x_axis.key](line.steps) / x_axis.unit
            axes.plot(x, line.values, gid=f"line-{index}", color=_RUN, clip_on=False, **look)
        if line.label:  # names need no font of Matplotlib
            axes.text(0, line.values[0] - 9, f"@{index}@", color=_NAME)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    canvas.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    head = Markup('<svg class="over {}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return head.format(x_axis.key, _WIDTH, height, label) + _body(buffer.getvalue(), lines)


def _set_x_axis(axes: Any, x_axis: XAxis) -> None:
    axes.set_xlabel(x_axis.title)
    axes.set_xlim(0, x_axis.last)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=_ROUND))
    axes.xaxis.set_major_formatter(compact)
    if x_axis.sizes:
        axes.set_xscale("log")
        axes.set_xlim(x_axis.sizes[0] / 1.3, x_axis.sizes[-1] * 1.3)
        axes.set_xticks(x_axis.sizes, map(str, x_axis.sizes))
        axes.minorticks_off()


def _set_y_axis(axes: Any, y_axis: YAxis, values: Sequence[Number]) -> None:
    """Sets ends of the axis that differ even if all values are equal."""
    low, high = min(values), max(values) if y_axis.highest is None else y_axis.highest
    axes.set_ylabel(fonts.drawn(y_axis.title))
    axes.yaxis.set_label_coords(16 / _WIDTH, 0.5, transform=axes.figure.transFigure)
    if y_axis.rows:
        axes.set_yticks([])
        axes.set_ylim(_ROW * y_axis.rows, 0)
        return
    locator = ticker.MaxNLocator(5, steps=_ROUND)
    if y_axis.log:
        axes.set_yscale("log")
        axes.minorticks_off()
        locator = ticker.LogLocator(subs=[1, 2, 5] if high < 1000 * low else [1], numticks=7)
        low, high = (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)
    elif y_axis.zero and low >= 0:
        low, high = 0, 1.04 * high or 1
    else:
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1
        low, high = low - margin, high + margin
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(y_axis.form)


def _body(svg: str, lines: Sequence[Line]) -> Markup:
    """Returns what is inside the SVG of Matplotlib, with the texts and colors of the lines."""

    def group(found: re.Match[str]) -> str:
        if found[1] is None:
            return "<g>"
        line = lines[int(found[1])]
        return f'<g class="run k{line.color}"><title>{escape(line.text)}</title>'

    body = svg.split("<svg", 1)[1].split(">", 1)[1]
    body = re.sub(r'<!--.*?-->|<defs>\s*<style.*?</defs>| clip-path="[^"]*"', "", body, flags=re.S)
    shorter = re.compile(r"(\.\d)\d+|\n")  # a tenth of a pixel is enough
    body = re.sub(r' d="[^"]+"', lambda found: shorter.sub(r"\1", found[0]), body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    body = re.sub(r'<g id="(?:line-(\d+)|[^"]*)">', group, body)
    return Markup(re.sub("@([0-9]+)@", lambda found: escape(lines[int(found[1])].label), body))
