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
LINE_STYLES = {"train": "-", "validation": ":", "test": "--"}
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
# Colors that stand for variables of the page's style sheet.
_TEXT, _NAME, _GRID, _RUN = "#000001", "#000002", "#000003", "#000004"
_VARIABLES = {
    _TEXT: "var(--soft)",
    _NAME: "var(--ink)",
    _GRID: "var(--line)",
    _RUN: "var(--k)",
}
_STYLE: Any = {
    "font.size": 11,
    "text.color": _TEXT,
    "text.usetex": False,
    "axes.labelcolor": _TEXT,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
    "path.simplify": True,
    "path.simplify_threshold": 1.0,  # pixels
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxdp",  # so that the same runs give the same page
}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 376, 218, 60, 10, 14, 30
_ROUND = [1, 2, 2.5, 5, 10]  # distances of ticks, apart from powers of ten
_DOTTED = 25  # points of an evaluated curve up to which each has a dot


def compact(value: Number) -> str:
    """Returns a number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def percent(value: Number) -> str:
    """Returns a fraction as a percentage of at most four digits."""
    return f"{100 * value:.4g}%"


@dataclasses.dataclass(frozen=True)
class XAxis:
    """What curves can be drawn over; the reader of the page chooses one.

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
        log: whether the axis is logarithmic if all values are positive.
        zero: whether the axis starts at 0 if no value is negative.
        form: writes a value.
        title: the caption of the figure by default.
        highest: end of the axis; by default, the highest value.
    """

    log: bool = False
    zero: bool = False
    form: Callable[[Number], str] = compact
    title: str = ""
    highest: Number | None = None

    def limits(self, values: Sequence[Number]) -> tuple[Number, Number]:
        """Returns the ends of the axis, which differ even if all values are equal."""
        low, high = min(values), max(values) if self.highest is None else self.highest
        if self.is_log(values):
            return (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)
        if self.zero and low >= 0:
            return 0, 1.04 * high or 1
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1
        return low - margin, high + margin

    def is_log(self, values: Sequence[Number]) -> bool:
        return self.log and min(values) > 0


@dataclasses.dataclass(frozen=True)
class Mark:
    """An event at a step of a run, or at a batch size; `kind` is a key of MARKERS."""

    kind: str
    step: Number
    text: str


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line through points.

    Attributes:
        color: index of the color of the run.
        to_x: positions of the points on each x axis, from their steps.
        bounds: lowest and highest value at each point, if they are known.
    """

    name: str
    color: int
    to_x: ToX
    steps: Sequence[Number]
    values: Sequence[Number]
    line_style: str = "-"
    bounds: tuple[Sequence[Number], Sequence[Number]] | None = None


@dataclasses.dataclass(frozen=True)
class Track:
    """What happened to a run: its marks, and for the timeline its last step."""

    name: str
    color: int
    to_x: ToX
    last_step: Number
    marks: Sequence[Mark]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure: its caption, and a drawing over each x axis."""

    caption: str
    drawings: Sequence[Markup]


class _Drawing:
    """One SVG. Each artist belongs to a run, and shows a text when a reader points at it."""

    def __init__(self, x_axis: XAxis, height: int = _HEIGHT, left: int = _LEFT) -> None:
        self._x_axis, self._height = x_axis, height
        self._items: list[tuple[str, int]] = []
        figure = Figure((_WIDTH / 72, height / 72))  # a point of Matplotlib is a unit of the SVG
        self.axes: Any = figure.add_axes(
            (
                left / _WIDTH,
                _BOTTOM / height,
                (_WIDTH - left - _RIGHT) / _WIDTH,
                (height - _TOP - _BOTTOM) / height,
            )
        )
        self.axes.spines[:].set_visible(False)
        self.axes.tick_params(length=0, pad=5)
        self.axes.grid(color=_GRID, linewidth=1)
        self.axes.set_axisbelow(True)
        self.axes.set_xlabel(x_axis.title, labelpad=2)
        if x_axis.sizes:
            self.axes.set_xscale("log")
            self.axes.set_xlim(x_axis.sizes[0] / 1.3, x_axis.sizes[-1] * 1.3)
            self.axes.set_xticks(x_axis.sizes, [str(size) for size in x_axis.sizes])
            self.axes.xaxis.set_minor_locator(ticker.NullLocator())
        else:
            self.axes.set_xlim(0, x_axis.last)
            self.axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=_ROUND))
            self.axes.xaxis.set_major_formatter(lambda value, _: compact(value))

    def set_y_axis(self, y_axis: YAxis, caption: str, values: Sequence[Number]) -> None:
        low, high = y_axis.limits(values)
        locator = ticker.MaxNLocator(5, steps=_ROUND)
        if y_axis.is_log(values):
            self.axes.set_yscale("log")
            self.axes.yaxis.set_minor_locator(ticker.NullLocator())
            locator = ticker.LogLocator(subs=[1, 2, 5] if high < 1000 * low else [1], numticks=7)
        self.axes.yaxis.set_major_locator(locator)
        self.axes.yaxis.set_major_formatter(lambda value, _: y_axis.form(value))
        self.axes.set_ylim(low, high)
        self.axes.set_ylabel(fonts.drawn(y_axis.title or caption.replace(", mean", "")))
        page = self.axes.figure.transFigure
        self.axes.yaxis.set_label_coords(16 / _WIDTH, 0.5, transform=page)

    def x(self, to_x: ToX, steps: Any) -> Any:
        """Returns positions on the x axis, None where it is unknown for a run."""
        convert = to_x.get(self._x_axis.key)
        return None if convert is None else convert(steps) / self._x_axis.unit

    def item(self, text: str, color: int) -> dict[str, Any]:
        """Returns the properties of an artist of a run."""
        self._items.append((text, color))
        return {"gid": f"item-{len(self._items) - 1}", "color": _RUN, "clip_on": False}

    def add_curve(self, curve: Curve) -> None:
        x = self.x(curve.to_x, curve.steps)
        if x is None:
            return
        evaluated = curve.line_style != "-" and len(x) <= _DOTTED
        item = self.item(curve.name, curve.color)
        if curve.bounds is not None:
            self.axes.vlines(x, *curve.bounds, linewidth=7, alpha=0.25, **item)
        self.axes.plot(
            x,
            curve.values,
            linestyle=curve.line_style,
            linewidth=1 if curve.color == len(COLORS) else 1.8,
            marker="o" if evaluated or curve.bounds is not None or len(x) == 1 else None,
            markersize=5,
            markeredgewidth=0,
            **item,
        )

    def add_mark(self, track: Track, mark: Mark, heights: Sequence[Number], **look: Any) -> None:
        """Draws the sign of a mark at the last of the heights, with a rule from the first."""
        x = self.x(track.to_x, mark.step)
        if x is not None:
            self.axes.plot(
                [x] * len(heights),
                heights,
                linestyle=(0, (2, 3)),
                linewidth=1,
                marker=MARKERS[mark.kind][0],
                markevery=[-1],
                markersize=8,
                **self.item(f"{track.name}: {mark.text}", track.color),
                **look,
            )

    def svg(self, label: str) -> Markup:
        """Returns the drawing as an element of the page; `label` is what a screen reader says."""
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self.axes.figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
        body = buffer.getvalue().split("<svg", 1)[1].split(">", 1)[1]
        body = re.sub(
            r'<!--.*?-->|<defs>\s*<style.*?</defs>| clip-path="[^"]*"', "", body, flags=re.S
        )
        shorter = re.compile(r"(\.\d)\d+|\n")  # a tenth of a pixel is enough
        body = re.sub(r' d="[^"]+"', lambda found: shorter.sub(r"\1", found[0]), body)
        body = re.sub(r'<g id="(?:item-(\d+)|[^"]*)">', self._group, body)
        body = re.sub("@([0-9]+)@", lambda found: str(escape(self._items[int(found[1])][0])), body)
        for color, variable in _VARIABLES.items():
            body = body.replace(color, variable)
        head = Markup('<svg class="over {}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
        return head.format(self._x_axis.key, _WIDTH, self._height, label) + Markup(body)

    def _group(self, found: re.Match[str]) -> str:
        if found[1] is None:
            return "<g>"
        text, color = self._items[int(found[1])]
        return f'<g class="run k{color}"><title>{escape(text)}</title>'


@matplotlib.rc_context(_STYLE)
def panel(
    caption: str,
    curves: Sequence[Curve],
    tracks: Sequence[Track],
    x_axes: Sequence[XAxis],
    y_axis: YAxis,
) -> list[Panel]:
    """Draws curves and marks over each x axis; returns nothing if no curve has points."""
    curves = [curve for curve in curves if curve.values]
    if not curves:
        return []
    values = [value for curve in curves for value in curve.values]
    title = caption + ", logarithmic" * y_axis.is_log(values)
    label = f"{title}: {', '.join(dict.fromkeys(curve.name for curve in curves))}"
    drawings = []
    for x_axis in x_axes:
        drawing = _Drawing(x_axis)
        drawing.set_y_axis(y_axis, caption, values)
        for curve in curves:
            drawing.add_curve(curve)
        above = {"transform": drawing.axes.get_xaxis_transform()}
        for track in tracks:
            for mark in track.marks:  # there may be many skipped updates, too many for rules
                heights = [1.04] if mark.kind == "updates skipped" else [0, 1.04]
                drawing.add_mark(track, mark, heights, **above)
        drawings.append(drawing.svg(label))
    return [Panel(title, drawings)]


@matplotlib.rc_context(_STYLE)
def timeline(tracks: Sequence[Track], x_axes: Sequence[XAxis]) -> Panel:
    """Draws what happened to each run."""
    label = f"what happened, by step: {', '.join(track.name for track in tracks)}"
    drawings = []
    for x_axis in x_axes:
        drawing = _Drawing(x_axis, 30 * len(tracks) + _TOP + _BOTTOM, left=8)
        drawing.axes.set_ylim(30 * len(tracks), 0)
        drawing.axes.set_yticks([])
        for index, track in enumerate(tracks):
            height = 30 * index + 21
            name = track.name if len(track.name) <= 48 else track.name[:47] + "…"
            item = drawing.item(name, track.color)
            place = item["gid"].replace("item-", "@") + "@"  # names need no font of Matplotlib
            drawing.axes.text(0, height - 9, place, gid=item["gid"], color=_NAME)
            last = drawing.x(track.to_x, track.last_step)
            if last is not None:
                drawing.axes.plot([0, last], [height] * 2, linewidth=5, alpha=0.35, **item)
            for mark in track.marks:
                drawing.add_mark(track, mark, [height])
        drawings.append(drawing.svg(label))
    return Panel("what happened", drawings)
