"""Writes the page of `python -m jaxdp.report`: what is on it, in which order.

The folder templates/ has its texts and its look.
"""

import datetime
import functools
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
from matplotlib.ticker import PercentFormatter

import jaxdp
from jaxdp.config import TrainConfig
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_text
from jaxdp.reporting.benchmarks import Record
from jaxdp.reporting.report_figures import (
    BASE,
    COLORS,
    MARKERS,
    Line,
    Panel,
    XAxis,
    compact,
    figure,
)
from jaxdp.reporting.report_runs import SPLITS, RunRecord
from jaxdp.rundir.write import check_file, replace_file

# Facts with a column in each table of runs; the settings behind them need no further column.
_FACTS = ("model", "dataset", "strategy", "devices", "batch_norm")
_SHOWN = (*_FACTS, "workers", "task", "steps")
_UNITS = (("hours", 3600, 3), ("minutes", 60, 10), ("seconds", 1, 0))  # from how many of them
_LINE_STYLES = {"train": "-", "validation": ":", "test": "--"}
_DOTTED = 25  # points of an evaluated curve up to which each has a dot
_PERCENT = PercentFormatter(1)
_CURVES = {  # of the training rows: caption, and form of the values
    "learning_rate": ("learning rate", compact),
    "examples_per_second": ("examples per second", compact),
    "input_wait_fraction": ("share of time waiting for input", _PERCENT),
    "staleness_mean": ("staleness of an update, mean", compact),
    "device_utilization": ("device utilization, mean", _PERCENT),
    "device_memory_bytes": ("device memory, mean, MiB", compact),
    "host_memory_bytes": ("host memory, mean, MiB", compact),
}


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file about folders of runs and of benchmarks; it needs no other file.

    Raises:
        ConfigError: if a folder has neither, or the file cannot be written.
    """
    runs: list[RunRecord] = []
    grids: dict[str, list[list[Record]]] = {}
    given = {resolved(folder): folder for folder in folders}
    common = os.path.commonpath([folder.parent for folder in given])
    for folder in given:
        name = str(folder.relative_to(common))
        files = ("config.yaml", "metrics.jsonl", "summary.json")
        is_run = any((folder / file).is_file() for file in files)
        if is_run:
            runs.append(RunRecord(folder, name))
        if (folder / "bench.jsonl").is_file():
            grids[name] = benchmarks.read_grids(folder / "bench.jsonl")
        elif not is_run:
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", given[folder], f"{what}; give folders of runs")
    page = _page(runs, grids, title)
    try:
        check_file("output", output, "report.html")
        output.parent.mkdir(parents=True, exist_ok=True)
        # Names of folders can have bytes that are not UTF-8.
        replace_file(resolved(output), page.encode(errors="replace"))
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written: {error.strerror}") from error


def _page(
    runs: Sequence[RunRecord], grids: dict[str, list[list[Record]]], title: str | None
) -> str:
    """Returns the page; its template escapes every value."""
    alike: dict[tuple[str, str], list[RunRecord]] = {}  # scores compare only on the same data
    facts: dict[str, dict[str, None]] = {name: {} for name in _FACTS}  # sets in order
    for run in runs:
        alike.setdefault((str(run.fact("dataset")), run.metric), []).append(run)
        for name, values in facts.items():
            values |= {str(run.fact(name)): None} if run.fact(name) is not None else {}
    _, differing = _compare_settings(runs)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdp.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= report_text.FILTERS
    return environment.get_template("page.html.jinja").render(
        title=title,
        runs=runs,
        facts={name: list(values) for name, values in facts.items()},
        differing=[name for name in facts if len(facts[name]) > 1] + differing,
        written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        version=jaxdp.__version__,
        sections=[_section(group) for group in alike.values()],
        grids=grids,
        benchmarks=benchmarks,
        defaults=TrainConfig().plain(),
        text=report_text,
        colors=COLORS,
        markers=MARKERS,
        splits=SPLITS,
    )


def _compare_settings(runs: Sequence[RunRecord]) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings that are the same in all runs, and the names of those that are not and
    have no column of their own.
    """
    known = [run.settings for run in runs if run.settings] or [{}]
    names = dict.fromkeys(itertools.chain(*known))
    first = {name: known[0].get(name) for name in names}
    shared = {
        name: value
        for name, value in first.items()
        if all(settings.get(name) == value for settings in known)
    }
    return shared, [name for name in names if name not in shared and name not in _SHOWN]


def _section(runs: list[RunRecord]) -> dict[str, Any]:
    """Returns what is shown of runs on one dataset, compared by one metric, the best first."""
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    for index, run in enumerate(runs):
        run.color = min(index, len(COLORS))
    shared, differing = _compare_settings(runs)
    x_axes = _x_axes(runs)
    return {
        "runs": runs,
        "differing": differing,
        "shared": shared,
        "figures": _figures(runs, x_axes),
        "axes": x_axes,
    }


def _x_axes(runs: Sequence[RunRecord]) -> list[XAxis]:
    """Returns the x axes that are known for at least one run."""
    ends: dict[str, float] = {}
    for run in runs:
        for key, end in run.x(run.steps).items():
            ends[key] = max(ends.get(key, 0.0), float(end))
    seconds = ends.get("time", 0.0)
    unit, size = next(each for each in _UNITS if seconds >= each[1] * each[2])[:2]
    names = {
        BASE: ("steps", "step", 1),
        "epoch": ("epochs", "epoch", 1),
        "time": (f"{unit} of training", f"training time, {unit}", size),
    }
    return [XAxis(key, *names[key], ends[key] / names[key][2] or 1) for key in names if key in ends]


def _figures(runs: Sequence[RunRecord], x_axes: Sequence[XAxis]) -> list[Panel]:
    """Draws the curves of runs, the best run last, above the others, with marks for events."""
    runs = runs[::-1]
    metric = runs[0].metric
    marks = [mark for run in runs for mark in _marks(run)]
    draw = functools.partial(figure, marks=marks, x_axes=x_axes)
    figures = draw("loss", _curves(runs, "loss", SPLITS), log=True)
    if metric != "loss":
        form = _PERCENT if "accuracy" in metric else compact
        figures += draw(metric, _curves(runs, metric, SPLITS), form=form)
    for name, (caption, form) in _CURVES.items():
        figures += draw(caption, _curves(runs, name, ["train"]), zero=True, form=form)
    if any(len(set(run.processes.values())) > 1 for run in runs):
        figures += draw("processes", [_stairs(run) for run in runs if run.processes], zero=True)
    return figures


def _stairs(run: RunRecord) -> Line:
    """Returns the numbers of processes of a run."""
    counts = [*run.processes.values()]
    x = run.x([*run.processes, run.steps])
    look = {"drawstyle": "steps-post"}
    return Line(f"{run.name}, processes", run.color, x, [*counts, counts[-1]], look)


def _curves(runs: Sequence[RunRecord], name: str, splits: Sequence[str]) -> list[Line]:
    """Returns a curve for each run and split."""
    unit = 2**20 if name.endswith("_bytes") else 1
    curves = []
    for run, split in itertools.product(runs, splits):
        steps, values = run.series(split, name)
        dotted = len(values) == 1 or (split != "train" and len(values) <= _DOTTED)
        look = {
            "linestyle": _LINE_STYLES[split],
            "linewidth": 1 if run.color == len(COLORS) else 1.8,  # the grey ones are many
            "marker": "o" if dotted else None,
        }
        scaled = [value / unit for value in values]
        curves.append(Line(f"{run.name}, {split}", run.color, run.x(steps), scaled, look))
    return curves


def _marks(run: RunRecord) -> list[Line]:
    """Returns the marks of a run, above the panel, with a rule from its lower edge."""
    marks = []
    for mark in run.marks:
        look = {
            "marker": MARKERS[mark.kind][0],
            "markersize": 8,
            "markevery": [-1],
            "linestyle": (0, (2, 3)),
            "linewidth": 1,
        }
        # There may be many skipped updates, too many for rules.
        heights = [1.04] if mark.kind == "updates skipped" else [0, 1.04]
        x = run.x([mark.step] * len(heights))
        marks.append(Line(f"{run.name}: {mark.text}", run.color, x, heights, look))
    return marks
