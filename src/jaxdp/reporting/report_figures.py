"""Draws curves of several runs as small SVG figures in the colors of the page, light or dark."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib import ticker

from jaxdp.reporting.templates import render

# The palette of Okabe and Ito, distinct for all color vision, without yellow, which white paper
# hides. Further runs are grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676")
STROKES = {"train": "", "validation": "dotted", "test": "dashed"}  # classes of lines
SHAPES = {
    "resumed": "M-3.5-4.5L4 0L-3.5 4.5Z",
    "rolled back": "M3.5-4.5L-4 0L3.5 4.5Z",
    "updates skipped": "M-3-3L3 3M-3 3L3-3",
    "stopped": "M-3.5-3.5H3.5V3.5H-3.5Z",
    "diverged": "M0-5L5 0L0 5L-5 0Z",
    "out of memory": "M-4-4L4 4M-4 4L4-4",
}
BASE = "base"  # key of the axis that curves are given for, in most figures steps
Number = float | int
Point = tuple[Number, Number]
Clock = Callable[[Number], Number]  # from a step to what an axis tells instead of it
_WIDTH = 376
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 366, 14, 188


@dataclasses.dataclass(frozen=True)
class Axis:
    """Something other than steps over which all curves of a section can be drawn.

    The page's reader chooses.
    """

    key: str  # epoch or time
    name: str  # among the choices
    title: str  # beneath the axis
    last: Number


@dataclasses.dataclass(frozen=True)
class _Placed:
    """What is at steps, and where that is on other axes."""

    # By key of the axis.
    clocks: Mapping[str, Clock] = dataclasses.field(default_factory=dict, kw_only=True)

    def on(self, axis: str, step: Number) -> Number | None:
        """Returns where a step is on an axis, None where that is not known."""
        if axis == BASE:
            return step
        return self.clocks[axis](step) if axis in self.clocks else None


@dataclasses.dataclass(frozen=True)
class Mark(_Placed):
    """Something that happened at a step."""

    kind: str  # a key of SHAPES
    step: Number
    text: str
    color: int = 0  # index of the color of the run that it happened to


@dataclasses.dataclass(frozen=True)
class Curve(_Placed):
    """A line through points."""

    name: str
    color: int
    points: Sequence[Point]
    stroke: str = ""  # a value of STROKES
    band: Sequence[Point] = ()  # lowest and highest value at each point, or nothing


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
class Scale:
    """An axis from the value `low` at the coordinate `start` to `high` at `end`.

    Called with a value, it returns the coordinate.
    """

    low: Number
    high: Number
    start: Number
    end: Number
    log: bool = False
    title: str = ""
    text: Callable[[Number], str] = compact  # how values are written at the ticks
    chosen: Sequence[Number] = ()  # values of the ticks, by default round ones

    def __call__(self, value: Number) -> str:
        low, high, at = (
            math.log(each) if self.log else each for each in (self.low, self.high, value)
        )
        return (
            f"{self.start + (at - low) / (high - low) * (self.end - self.start):.1f}".removesuffix(
                ".0"
            )
        )

    def ticks(self, count: int = 5) -> Sequence[Number]:
        if self.chosen:
            return self.chosen
        if self.log:
            for parts in ((1.0, 2.0, 5.0), (1.0,)):
                found = self._inside(
                    ticker.LogLocator(subs=parts, numticks=99).tick_values(self.low, self.high)
                )
                if 2 <= len(found) <= count + 1:
                    return found
            if len(found) > 1:
                return found[:: -(-len(found) // count)]
        return self._inside(
            ticker.MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        )

    def _inside(self, values: Any) -> list[Number]:
        margin = 1e-9 * (self.high - self.low)
        return [
            float(value) for value in values if self.low - margin <= value <= self.high + margin
        ]


def thin(points: Sequence[Point]) -> list[Point]:
    """Returns the lowest and the highest of each stretch of points, where there are more than can
    be told apart.
    """
    size = -(-len(points) // _WIDTH)
    if size <= 2:
        return list(points)
    value = operator.itemgetter(1)
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return [
        point
        for stretch in stretches
        for point in sorted({min(stretch, key=value), max(stretch, key=value)})
    ]


def panel(
    title: str,
    curves: Sequence[Curve],
    marks: Sequence[Mark] = (),
    *,
    last_step: Number,
    log: bool = False,
    zero: bool = False,
    text: Callable[[Number], str] = compact,
    others: Sequence[Axis] = (),
) -> Markup:
    """Draws curves over steps and whatever else is to choose from.

    Returns nothing where no curve has points.

    Args:
        log: whether the axis of positive values is logarithmic.
        zero: whether the axis of nonnegative values begins at 0.
        text: how values are written.
        others: axes beside that of the steps.
    """
    values = [value for curve in curves for _, value in curve.points]
    if not values:
        return Markup()
    low, high = min(values), max(values)
    log = log and low > 0
    if log:
        low, high = (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)
    elif zero and low >= 0:
        low, high = 0, 1.04 * high or 1.0
    else:
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - margin, high + margin
    y = Scale(low, high, _BOTTOM, _TOP, log, title.replace(", mean", ""), text)
    return _figure(
        title + ", logarithmic" * log,
        _scales(last_step, others, _LEFT),
        y=y,
        curves=curves,
        marks=marks,
    )


def panel_of_sizes(
    title: str,
    curves: Sequence[Curve],
    marks: Sequence[Mark],
    *,
    sizes: Sequence[int],
    highest: Number,
) -> Markup:
    """Draws curves over global batch sizes, from 0 to the highest value.

    Returns nothing where no curve has points.
    """
    x = Scale(
        sizes[0] / 1.3,
        sizes[-1] * 1.3,
        _LEFT,
        _RIGHT,
        log=True,
        title="global batch size",
        text=str,
        chosen=sizes,
    )
    y = Scale(0, 1.04 * highest or 1.0, _BOTTOM, _TOP, title="images per second")
    return _figure(title, {BASE: x}, y=y, curves=curves, marks=marks)


def timeline(
    tracks: Sequence[Curve], marks: Sequence[Sequence[Mark]], others: Sequence[Axis] = ()
) -> Markup:
    """Draws what happened to each run.

    Args:
        tracks: of each run its name and color, and its last step as the only point.
        marks: of each run.
        others: axes beside that of the steps.
    """
    scales = _scales(max(track.points[0][0] for track in tracks), others, 8)
    return _figure(
        "what happened, by step", scales, tracks=tracks, marks=marks, bottom=_TOP + 30 * len(tracks)
    )


def _scales(last_step: Number, others: Sequence[Axis], left: int) -> dict[str, Scale]:
    scales = {BASE: Scale(0, max(last_step, 1), left, _RIGHT, title="step")}
    return scales | {
        axis.key: Scale(0, axis.last, left, _RIGHT, title=axis.title) for axis in others
    }


def _figure(
    title: str,
    scales: Mapping[str, Scale],
    *,
    curves: Sequence[Curve] = (),
    tracks: Sequence[Curve] = (),
    **values: object,
) -> Markup:
    curves = [curve for curve in curves if curve.points]
    if not curves and not tracks:
        return Markup()
    names = dict.fromkeys(curve.name for curve in (*curves, *tracks))
    defaults = {
        "width": _WIDTH,
        "top": _TOP,
        "bottom": _BOTTOM,
        "shapes": SHAPES,
        "thin": thin,
        "y_start": _LEFT,
        "y_end": _RIGHT,
    }
    return render(
        "figure.svg.jinja",
        title=title,
        names=names,
        scales=scales,
        curves=curves,
        tracks=tracks,
        **(defaults | values),
    )
