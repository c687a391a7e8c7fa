"""Draws the report's figures with Matplotlib, as SVG in the fonts and colors of the page."""

import io
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from jaxdp.reporting.fonts import Figure, matplotlib, ticker
from jaxdp.reporting.report_runs import SPLITS, Number, ReportedRun

# The palette of Okabe and Ito, distinct for all color vision, without yellow, which is illegible
# on white. Further runs are grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676")
_CAPTIONS = {  # of figures of the training rows
    "learning_rate": "learning rate",
    "examples_per_second": "examples per second",
    "input_wait_fraction": "share of time waiting for input",
    "staleness_mean": "staleness of an update, mean",
    "device_memory_bytes": "device memory, mean, bytes",
    "host_memory_bytes": "host memory, mean, bytes",
}
_LINE_STYLES = {"train": "-", "validation": ":", "test": "--"}
_DOTTED = 25  # points of an evaluated curve up to which each has a dot
_RUN = "#000001"  # replaced by the variable with the color of a run
_STYLE: Any = matplotlib.rc_params_from_file(
    pathlib.Path(__file__).with_name("report.mplstyle"), use_default_template=False
)
_WIDTH = 376
_HEIGHT = 218
_PANEL = (60 / _WIDTH, 30 / _HEIGHT, 306 / _WIDTH, 174 / _HEIGHT)  # left, bottom, width, height


def compact(value: Number, _: object = None) -> str:
    """Returns a number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def figures(runs: Sequence[ReportedRun]) -> list[tuple[str, Markup]]:
    """Returns captions, and a drawing over the steps, for all metrics of the runs."""
    metric = runs[0].metric
    captions = {"loss": "loss", metric: metric.replace("_", " ")} | _CAPTIONS
    drawn = []
    for name, caption in captions.items():
        splits = ["train"] if name in _CAPTIONS else SPLITS
        # The best run is drawn last, above the others.
        curves = [
            (run, split, *run.series(split, name))
            for run, split in itertools.product(reversed(runs), splits)
        ]
        curves = [curve for curve in curves if curve[2]]
        if curves:
            drawn.append((caption, _draw(name, caption, curves)))
    return drawn


def _draw(name: str, caption: str, curves: Sequence[tuple[Any, ...]]) -> Markup:
    """Returns curves of (run, split, steps, values), with marks for events."""
    texts: list[Markup] = []  # titles of elements, for readers who point at them

    def look(run: ReportedRun, text: str) -> dict[str, Any]:
        title = Markup('<g class="run k{}"><title>{}: {}</title>')
        texts.append(title.format(run.color, run.name, text))
        return {"gid": f"line-{len(texts) - 1}", "color": _RUN, "clip_on": False}

    with matplotlib.rc_context(_STYLE):
        canvas = Figure((_WIDTH / 72, _HEIGHT / 72))  # a point of Matplotlib is a unit of the SVG
        axes: Any = canvas.add_axes(_PANEL, frameon=False)
        for run, split, steps, values in curves:
            dotted = len(values) <= (1 if split == "train" else _DOTTED)
            style = {"linestyle": _LINE_STYLES[split], "marker": "o" if dotted else None}
            axes.plot(steps, values, **style, **look(run, split))
        for run in dict.fromkeys(run for run, *_ in curves):
            for step, text in run.marks:
                style = {"linestyle": ":", "linewidth": 1}
                style |= {"marker": "v", "markersize": 6, "markevery": [-1]}
                axes.axvline(step, **style, **look(run, text))
        axes.set(xlabel="step", xlim=(0, max(run.steps for run, *_ in curves) or 1))
        axes.tick_params(length=0, pad=5)
        axes.grid(
            clip_on=False
        )  # because identifiers of clip paths would be the same in all drawings
        axes.xaxis.set_major_formatter(compact)
        drawn = [value for *_, values in curves for value in values]
        if name == "loss" and min(drawn) > 0:
            digits = [1, 2, 5] if max(drawn) < 1000 * min(drawn) else [1]
            axes.set_yscale("log")
            axes.minorticks_off()
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=digits, numticks=7))
        elif name in _CAPTIONS:
            axes.set_ylim(bottom=min(0, *drawn))
        share = name.endswith(("accuracy", "fraction", "utilization"))
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1) if share else compact)
        return _svg(canvas, texts, caption)


def _svg(canvas: Figure, texts: Sequence[Markup], caption: str) -> Markup:
    """Returns a drawing with lines in the colors of their runs, and texts to point at."""

    def group(found: re.Match[str]) -> str:
        return "<g>" if found[1] is None else texts[int(found[1])]

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    canvas.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    content = buffer.getvalue().partition("<svg")[2].partition(">")[2]
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    head += f' aria-label="{escape(caption)}">'
    body = re.sub(r'<g id="(?:line-(\d+)|[^"]*)">', group, content)
    return Markup(head + body.replace(_RUN, "var(--k)"))
