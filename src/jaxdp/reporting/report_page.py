"""Writes the page of `python -m jaxdp.report`: what is on it, in which order.

The folder templates/ has its texts and its look.
"""

import dataclasses
import datetime
import itertools
import json
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

import jinja2
from matplotlib.ticker import PercentFormatter

import jaxdp
from jaxdp.config import TrainConfig
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_text
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
_LINE_STYLES = {"train": "-", "validation": ":", "test": "--"}
_DOTTED = 25  # points of an evaluated curve up to which each has a dot
_CURVES = (  # caption, name in the rows, form
    ("learning rate", "learning_rate", compact),
    ("examples per second", "examples_per_second", compact),
    ("share of time waiting for input", "input_wait_fraction", PercentFormatter(1)),
    ("staleness of an update, mean", "staleness_mean", compact),
    ("device utilization, mean", "device_utilization", PercentFormatter(1)),
    ("device memory, mean, MiB", "device_memory_bytes", compact),
    ("host memory, mean, MiB", "host_memory_bytes", compact),
)


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file about folders of runs and of benchmarks; it needs no other file.

    Raises:
        ConfigError: if a folder has neither, or the file cannot be written.
    """
    runs: list[RunRecord] = []
    grids: dict[str, list[dict[str, Any]]] = {}
    given = {resolved(folder): folder for folder in folders}
    for folder, name in zip(given, _names_of([*given]), strict=True):
        files = ("config.yaml", "metrics.jsonl", "summary.json")
        is_run = any((folder / file).is_file() for file in files)
        if is_run:
            runs.append(RunRecord(folder, name))
        if (folder / "bench.jsonl").is_file():
            grids[name] = benchmarks.grids(folder / "bench.jsonl")
        elif not is_run:
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", given[folder], f"{what}; give folders of runs")
    page = _page(runs, grids, title)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        check_file("output", output, "report.html")
        # Names of folders can have bytes that are not UTF-8.
        replace_file(resolved(output), page.encode(errors="replace"))
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written: {error.strerror}") from error


def _names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns the shortest ends of paths that differ from each other."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _page(
    runs: Sequence[RunRecord], grids: dict[str, list[dict[str, Any]]], title: str | None
) -> str:
    """Returns the page; its template escapes every value."""
    alike: dict[tuple[str, str], list[RunRecord]] = {}  # scores compare only on the same data
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        alike.setdefault((str(run.fact("dataset")), run.metric), []).append(run)
        for name, version in run.summary["versions"].items():
            versions.setdefault(name, {})[str(version)] = None
    facts = {
        fact: list(dict.fromkeys(str(run.fact(fact)) for run in runs if run.fact(fact) is not None))
        for fact in _FACTS
    }
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
        facts=facts,
        differing=[name for name in facts if len(facts[name]) > 1] + _differing(runs),
        written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        versions=[f"jaxdp {jaxdp.__version__}", f"Python {platform.python_version()}"],
        versions_of_runs=versions,
        sections=[_section(group) for group in alike.values()],
        benchmarks=grids,
        defaults=TrainConfig().plain(),
        text=report_text,
        colors=COLORS,
        markers=MARKERS,
        splits=SPLITS,
    )


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    """Returns the settings that are not the same in all runs, and have no column of their own."""
    known = [run.settings for run in runs if run.settings]
    return [
        name
        for name in dict.fromkeys(itertools.chain(*known))
        if len({json.dumps(settings.get(name), default=str) for settings in known}) > 1
        and name not in _SHOWN
    ]


def _section(runs: list[RunRecord]) -> dict[str, Any]:
    """Returns what is shown of runs on one dataset, compared by one metric, the best first."""
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    for index, run in enumerate(runs):
        run.color = min(index, len(COLORS))
    known = [run.settings for run in runs if run.settings]
    x_axes = _x_axes(runs)
    return {
        "runs": runs,
        "differing": _differing(runs),
        "shared": {
            name: value
            for name, value in (known or [{}])[0].items()
            if all(settings.get(name) == value for settings in known)
        },
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
    unit, size = ("seconds", 1) if seconds < 600 else ("minutes", 60)
    if seconds >= 3 * 3600:
        unit, size = "hours", 3600
    axes = [
        XAxis(BASE, "steps", "step"),
        XAxis("epoch", "epochs", "epoch"),
        XAxis("time", f"{unit} of training", f"training time, {unit}", size),
    ]
    return [
        dataclasses.replace(axis, end=ends[axis.key] / axis.unit or 1.0)
        for axis in axes
        if axis.key in ends
    ]


def _figures(runs: Sequence[RunRecord], x_axes: Sequence[XAxis]) -> list[Panel]:
    """Draws the curves of runs, the best run last, above the others, with marks for events."""
    runs = runs[::-1]
    metric = runs[0].metric
    marks = [mark for run in runs for mark in _marks(run)]
    figures = figure("loss", _curves(runs, "loss", SPLITS), marks, x_axes, log=True)
    if metric != "loss":
        form = PercentFormatter(1) if "accuracy" in metric else compact
        figures += figure(metric, _curves(runs, metric, SPLITS), marks, x_axes, form=form)
    for caption, name, form in _CURVES:
        curves = _curves(runs, name, ["train"])
        figures += figure(caption, curves, marks, x_axes, zero=True, form=form)
    if any(len(set(run.processes.values())) > 1 for run in runs):
        curves = []
        for run in runs:
            steps, counts = [*run.processes, run.steps], [*run.processes.values()]
            look = {"drawstyle": "steps-post"}
            if counts:
                x, text = run.x(steps), f"{run.name}, processes"
                curves.append(Line(text, run.color, x, [*counts, counts[-1]], look))
        figures += figure("processes", curves, marks, x_axes, zero=True)
    return figures


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
