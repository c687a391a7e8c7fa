"""How are curves of several runs drawn? As small SVG that takes its colours from the page, light or dark."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib import ticker

from jaxdp.reporting.markup import Html, join, tag

# Okabe and Ito's, which people of any colour vision tell apart, but for yellow, which white paper hides. Further runs are grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676")
Number = float | int
Point = tuple[Number, Number]
_WIDTH, _HEIGHT = 360, 214
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 350, 14, 188
_FEW = 25  # points that are drawn each
_SIGNS = {
    "resumed": "M-3.5-4.5L4 0L-3.5 4.5Z",
    "rollback": "M3.5-4.5L-4 0L3.5 4.5Z",
    "skipped": "M-3-3L3 3M-3 3L3-3",
    "stopped": "M-3.5-3.5H3.5V3.5H-3.5Z",
    "diverged": "M0-5L5 0L0 5L-5 0Z",
    "oom": "M-4-4L4 4M-4 4L4-4",
}
SIGN_NAMES = {
    "resumed": "resumed", "rollback": "rolled back", "skipped": "updates skipped", "stopped": "stopped", "diverged": "diverged",
    "oom": "out of memory",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Curve:
    """Attributes:
    color: number of its colour.
    band: lowest and highest value at each point, or nothing.
    """

    name: str
    color: int
    points: Sequence[Point]
    dashed: bool = False
    band: Sequence[Point] = ()


@dataclasses.dataclass(frozen=True)
class Sign:
    """Something that happened at a step: a key of `SIGN_NAMES`, what to say of it, and whose it is."""

    kind: str
    step: Number
    text: str
    color: int


@dataclasses.dataclass(frozen=True)
class Scale:
    """Takes values to places in a drawing."""

    low: Number
    high: Number
    start: Number
    end: Number
    log: bool = False

    def __call__(self, value: Number) -> str:
        low, high, at = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return f"{self.start + (at - low) / (high - low) * (self.end - self.start):.1f}".removesuffix(".0")

    def ticks(self, count: int = 5) -> list[Number]:
        if self.log:
            for parts in ((1.0, 2.0, 5.0), (1.0,)):
                found = self._inside(ticker.LogLocator(subs=parts, numticks=99).tick_values(self.low, self.high))
                if 2 <= len(found) <= count + 1:
                    return found
            if len(found) > 1:
                return found[:: -(-len(found) // count)]
        return self._inside(ticker.MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high))

    def _inside(self, values: Any) -> list[Number]:
        margin = 1e-9 * (self.high - self.low)
        return [float(value) for value in values if self.low - margin <= value <= self.high + margin]


def compact(value: Number) -> str:
    """Returns a number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def percent(value: Number) -> str:
    return f"{100 * value:.4g}%"


def thin(points: Sequence[Point]) -> list[Point]:
    """Keeps the lowest and the highest of each stretch of more points than can be told apart."""
    size = -(-len(points) // _WIDTH)
    if size <= 2:
        return list(points)
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return [point for stretch in stretches for point in sorted({min(stretch, key=_value), max(stretch, key=_value)})]


def _value(point: Point) -> Number:
    return point[1]


def panel(
    title: str, curves: Sequence[Curve], signs: Sequence[Sign] = (), *, last_step: Number, log: bool = False, zero: bool = False,
    text: Callable[[Number], str] = compact, sizes: Sequence[Number] = (), x_title: str = "step",
    highest: Number | None = None,
) -> Html:  # fmt: skip
    """Draws curves over steps, or nothing where there are none.

    Args:
        log: whether values may be shown by their logarithm.
        zero: whether the values' axis begins at 0.
        text: of a value.
        sizes: values of the other axis, if it is no axis of steps but one of powers.
        highest: a value that the axis has room for, whatever the curves.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return Html()
    values = [value for curve in curves for _, value in curve.points] + [
        end for curve in curves for ends in curve.band for end in ends
    ]
    values += [] if highest is None else [highest]
    log = log and min(values) > 0
    low, high = _range(values, log=log, zero=zero)
    y = Scale(low, high, _BOTTOM, _TOP, log)
    x = Scale(0, max(last_step, 1), _LEFT, _RIGHT)
    if sizes:
        x = Scale(sizes[0] / 1.3, sizes[-1] * 1.3, _LEFT, _RIGHT, log=True)
    drawn = [
        _grid(x, sizes or x.ticks(6), _BOTTOM),
        *(_horizontal(y(tick), text(tick)) for tick in y.ticks()),
        tag("text", x_title, class_="soft", x=(_LEFT + _RIGHT) / 2, y=_HEIGHT - 1, text_anchor="middle") if sizes else "",
        *(_draw_curve(curve, x, y) for curve in curves),
        *(_draw_sign(sign, x(sign.step), _TOP - 6, _BOTTOM) for sign in signs),
    ]
    return _figure(title + (", logarithmic" if log else ""), drawn, _HEIGHT, ", ".join(dict.fromkeys(c.name for c in curves)))


def timeline(tracks: Sequence[tuple[str, int, Number]], signs: Sequence[Sequence[Sign]]) -> Html:
    """Draws what happened to each run.

    Args:
        tracks: name, colour and last step of each run.
        signs: of each.
    """
    bottom = _TOP + 30 * len(tracks)
    x = Scale(0, max(1.0, *(steps for *_, steps in tracks)), 8, _RIGHT)
    drawn = [_grid(x, x.ticks(6), bottom)]
    for index, ((name, color, steps), own) in enumerate(zip(tracks, signs, strict=True)):
        y = _TOP + 30 * index + 21
        bar = tag("path", class_="bar", d=f"M{x(0)} {y}H{x(steps)}")
        label = tag("text", name if len(name) <= 48 else name[:47] + "…", x=8, y=y - 9)
        drawn += [label, tag("g", bar, class_=f"run k{color}"), *(_draw_sign(sign, x(sign.step), y) for sign in own)]
    return _figure("what happened, by step", drawn, bottom + 26, ", ".join(name for name, *_ in tracks))


def sign_key(kind: str) -> Html:
    """Returns a sign and what it stands for."""
    sign = tag("path", class_="sign", d=_SIGNS[kind])
    return tag("span", tag("svg", sign, viewBox="-7 -7 14 14", class_="key", aria_hidden="true"), SIGN_NAMES[kind])


def _range(values: Sequence[Number], *, log: bool, zero: bool) -> Point:
    low, high = min(values), max(values)
    if log:
        return (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)
    if zero and low >= 0:
        return 0.0, 1.04 * high or 1.0
    margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _figure(title: str, drawn: Iterable[object], height: Number, of_what: str) -> Html:
    drawing = tag("svg", join(*drawn), viewBox=f"0 0 {_WIDTH} {height:g}", role="img", aria_label=f"{title}: {of_what}")
    return tag("figure", tag("figcaption", title), drawing)


def _grid(x: Scale, ticks: Sequence[Number], bottom: Number) -> Html:
    lines = tag("path", class_="grid", d="".join(f"M{x(tick)} {_TOP}V{bottom:g}" for tick in ticks))
    texts = [tag("text", compact(tick), class_="soft", x=x(tick), y=f"{bottom + 14:g}", text_anchor="middle") for tick in ticks]
    return join(lines, *texts)


def _horizontal(y: str, text: str) -> Html:
    line = tag("path", class_="grid", d=f"M{_LEFT} {y}H{_RIGHT}")
    return join(line, tag("text", text, class_="soft", x=_LEFT - 5, y=y, dy="0.35em", text_anchor="end"))


def _draw_curve(curve: Curve, x: Scale, y: Scale) -> Html:
    places = [f"{x(step)} {y(value)}" for step, value in thin(curve.points)]
    parts = [tag("title", curve.name)]
    if curve.band:
        ends = zip((step for step, _ in curve.points), curve.band, strict=True)
        parts.append(tag("path", class_="band", d="".join(f"M{x(step)} {y(low)}V{y(high)}" for step, (low, high) in ends)))
    if len(places) > 1:
        parts.append(tag("path", class_="line dashed" if curve.dashed else "line", d="M" + "L".join(places)))
    if len(places) == 1 or (curve.dashed and len(places) <= _FEW) or curve.band:
        parts.append(tag("path", class_="dots", d="".join(f"M{place}h0" for place in places)))
    return tag("g", *parts, class_=f"run k{curve.color}")


def _draw_sign(sign: Sign, x: str, y: Number, bottom: Number | None = None) -> Html:
    """Args:
    bottom: down to where a line shows the step, if one shall.
    """
    ruled = bottom is not None and sign.kind != "skipped"  # there may be many of those
    rule = tag("path", class_="rule", d=f"M{x} {y:g}V{bottom:g}") if ruled else ""
    path = tag("path", class_="sign", d=_SIGNS[sign.kind], transform=f"translate({x} {y:g})")
    return tag("g", tag("title", sign.text), rule, path, class_=f"run k{sign.color}")
