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

import jaxdp
from jaxdp.config import TrainConfig
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_benchmarks, report_runs, report_text
from jaxdp.reporting.report_figures import (
    BASE,
    COLORS,
    MARKERS,
    Line,
    Number,
    Panel,
    XAxis,
    YAxis,
    compact,
    figure,
    percent,
)
from jaxdp.reporting.report_runs import SPLITS, RunRecord
from jaxdp.rundir.write import check_file, replace_file

# Facts with a column in each table of runs; the settings behind them need no further column.
_FACTS = ("model", "dataset", "strategy", "devices", "batch_norm")
_SHOWN = (*_FACTS, "workers", "task", "steps")
_UNITS = ((3 * 3600, 3600.0, "hours"), (600, 60.0, "minutes"), (0, 1.0, "seconds"))
_LINE_STYLES = {"train": "-", "validation": ":", "test": "--"}
_DOTTED = 25  # points of an evaluated curve up to which each has a dot
_CURVES = (  # caption, name in the rows, form
    ("learning rate", "learning_rate", compact),
    ("examples per second", "examples_per_second", compact),
    ("share of time waiting for input", "input_wait_fraction", percent),
    ("staleness of an update, mean", "staleness_mean", compact),
    ("device utilization, mean", "device_utilization", percent),
    ("memory of a device, mean, MiB", "device_memory_bytes", compact),
    ("memory of a host process, mean, MiB", "host_memory_bytes", compact),
)


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file about folders of runs and of benchmarks; it needs no other file.

    Raises:
        ConfigError: if a folder has neither, or the file cannot be written.
    """
    for folder in folders:
        if not _is_run(folder) and not (folder / "bench.jsonl").is_file():
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", folder, f"{what}; give folders of runs")
    folders = list(dict.fromkeys(map(resolved, folders)))
    runs: list[RunRecord] = []
    grids: dict[str, list[dict[str, Any]]] = {}
    for folder, name in zip(folders, _names_of(folders), strict=True):
        if _is_run(folder):
            runs.append(report_runs.read(folder, name))
        if (folder / "bench.jsonl").is_file():
            grids[name] = report_benchmarks.grids(benchmarks.read(str(folder / "bench.jsonl")))
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


def _is_run(folder: pathlib.Path) -> bool:
    """Whether a folder holds the settings, metrics or summary of a run."""
    names = ("config.yaml", "metrics.jsonl", "summary.json")
    return any((folder / name).is_file() for name in names)


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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdp.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= report_text.FILTERS
    names = {
        fact: list(dict.fromkeys(str(run.fact(fact)) for run in runs if run.fact(fact) is not None))
        for fact in ("model", "dataset")
    }
    differing = [name for name in _FACTS if len({str(run.fact(name)) for run in runs}) > 1]
    return environment.get_template("page.html.jinja").render(
        title=title,
        runs=runs,
        names=names,
        differing=differing + _differing(runs),
        written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        versions=[f"jaxdp {jaxdp.__version__}", f"Python {platform.python_version()}"],
        versions_of_runs=versions,
        sections=[_section(found) for found in alike.values()],
        benchmarks=grids,
        facts=_FACTS,
        defaults=TrainConfig().plain(),
        text=report_text,
        colors=COLORS,
        markers=MARKERS,
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


def _section(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns what is shown of runs on one dataset, compared by one metric, the best first."""
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    runs = [
        dataclasses.replace(run, color=min(index, len(COLORS))) for index, run in enumerate(runs)
    ]
    settings = next((run.settings for run in runs if run.settings), {})
    x_axes = _x_axes(runs)
    evaluated = {run.held_out for run in runs}
    kinds = {mark.kind for run in runs for mark in run.marks}
    return {
        "runs": runs,
        "names": {run.name: run.color for run in runs},
        "dataset": runs[0].fact("dataset"),
        "metric": runs[0].metric,
        "splits": [split for split in SPLITS if split in {"train", "test"} | evaluated],
        "differing": _differing(runs),
        "shared": {
            name: value
            for name, value in settings.items()
            if all(run.settings.get(name) == value for run in runs if run.settings)
        },
        "marks": [kind for kind in MARKERS if kind in kinds],
        "figures": _figures(runs, x_axes),
        "axes": [(axis, [run.name for run in runs if axis.key not in run.to_x]) for axis in x_axes],
    }


def _x_axes(runs: Sequence[RunRecord]) -> list[XAxis]:
    """Returns the x axes that are known for at least one run."""
    last: dict[str, float] = {}
    for run in runs:
        for key, convert in run.to_x.items():
            last[key] = max(last.get(key, 0.0), float(convert(run.steps)))
    size, unit = next(found[1:] for found in _UNITS if last.get("time", 0.0) >= found[0])
    axes = [
        XAxis(BASE, "steps", "step", last[BASE] or 1.0),
        XAxis("epoch", "epochs", "epoch", last.get("epoch") or 1.0),
        XAxis(
            "time",
            f"{unit} of training",
            f"training time, {unit}",
            last.get("time", 0.0) / size or 1.0,
            size,
        ),
    ]
    return [axis for axis in axes if axis.key in last]


def _figures(runs: Sequence[RunRecord], x_axes: Sequence[XAxis]) -> list[Panel]:
    """Draws the curves and events of runs."""
    metric, marks = runs[0].metric, [line for run in runs for line in _marks(run)]
    lines = _curves(runs, "loss", SPLITS) + marks
    figures = figure("loss", lines, x_axes, YAxis("loss", log=True))
    if metric != "loss":
        form = percent if "accuracy" in metric else compact
        lines = _curves(runs, metric, SPLITS) + marks
        figures += figure(metric, lines, x_axes, YAxis(metric, form=form))
    for caption, name, form in _CURVES:
        y_axis = YAxis(caption.replace(", mean", ""), zero=True, form=form)
        figures += figure(caption, _curves(runs, name, ["train"]) + marks, x_axes, y_axis)
    if any(len({count for _, count in run.widths}) > 1 for run in runs):
        lines = [
            Line(f"{run.name}, processes", run.color, run.to_x, *_stairs(run))
            for run in reversed(runs)
        ]
        figures += figure("processes", lines + marks, x_axes, YAxis("processes", zero=True))
    if marks:
        figures += figure("what happened, by step", _timeline(runs), x_axes, YAxis(rows=len(runs)))
    return figures


def _curves(runs: Sequence[RunRecord], name: str, splits: Sequence[str]) -> list[Line]:
    """Returns a curve for each run and split, the best run last, above the others."""
    unit = 2**20 if name.endswith("_bytes") else 1
    curves = []
    for run in reversed(runs):
        for split in splits:
            steps, values = run.series(split, name)
            dotted = len(values) == 1 or (split != "train" and len(values) <= _DOTTED)
            look = {
                "linestyle": _LINE_STYLES[split],
                "linewidth": 1 if run.color == len(COLORS) else 1.8,  # the grey ones are many
                "marker": "o" if dotted else None,
            }
            scaled = [value / unit for value in values]
            label = f"{run.name}, {split}"
            curves.append(Line(label, run.color, run.to_x, steps, scaled, look))
    return curves


def _marks(run: RunRecord, heights: Sequence[Number] = (0, 1.04)) -> list[Line]:
    """Returns the marks of a run, at the last of the heights, with a rule from the first."""
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
        values = heights[-1:] if mark.kind == "updates skipped" else heights
        text, steps = f"{run.name}: {mark.text}", [mark.step] * len(values)
        in_panel = len(heights) > 1
        marks.append(Line(text, run.color, run.to_x, steps, values, look, is_mark=in_panel))
    return marks


def _timeline(runs: Sequence[RunRecord]) -> list[Line]:
    """Returns a bar and the marks of each run."""
    lines = []
    for index, run in enumerate(runs):
        height = 30 * index + 21
        name = run.name if len(run.name) <= 48 else run.name[:47] + "…"
        look = {"linewidth": 5, "alpha": 0.35}
        steps, heights = [0, run.steps], [height, height]
        lines.append(Line(run.name, run.color, run.to_x, steps, heights, look, label=name))
        lines += _marks(run, [height])
    return lines


def _stairs(run: RunRecord) -> tuple[list[Number], list[Number]]:
    """Returns steps and numbers of processes, with both numbers where they change.

    Steps that were lost and trained again appear once.
    """
    steps: list[Number] = []
    counts: list[Number] = []
    for (step, count), (end, _) in itertools.pairwise([*run.widths, (run.steps, 0)]):
        if end > step:
            steps += [step, end]
            counts += [count, count]
    return steps, counts
