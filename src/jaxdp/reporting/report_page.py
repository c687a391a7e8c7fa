"""Writes the page of `python -m jaxdp.report`: what is on it, in which order.

The folder templates/ has its look.
"""

import dataclasses
import datetime
import functools
import itertools
import json
import pathlib
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

import jaxdp
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_benchmarks, report_runs, report_tables
from jaxdp.reporting.report_figures import (
    BASE,
    COLORS,
    LINE_STYLES,
    MARKERS,
    Curve,
    Number,
    Panel,
    XAxis,
    YAxis,
    compact,
    panel,
    percent,
    timeline,
)
from jaxdp.reporting.report_runs import RunRecord
from jaxdp.reporting.report_tables import (
    NOTHING,
    fact_text,
    metric_text,
    setting_text,
    speed_text,
    time_text,
)
from jaxdp.run_directory import check_file, replace_file

# Facts with a column in each table of runs; the settings behind them need no further column.
_FACTS = ("model", "dataset", "strategy", "devices", "batch_norm")
_SHOWN = (*_FACTS, "exchange", "workers", "task", "steps")
_UNITS = ((3 * 3600, 3600.0, "hours"), (600, 60.0, "minutes"), (0, 1.0, "seconds"))
_FRACTION = YAxis(zero=True, form=percent)
_CURVES = (  # caption, name in the rows
    ("learning rate", "learning_rate", YAxis(zero=True)),
    ("examples per second", "examples_per_second", YAxis(zero=True)),
    ("share of time waiting for input", "input_wait_fraction", _FRACTION),
    ("staleness of an update, mean", "staleness_mean", YAxis(zero=True)),
    ("device utilization, mean", "device_utilization", _FRACTION),
    ("memory of a device, mean, MiB", "device_memory_bytes", YAxis(zero=True)),
    ("memory of a host process, mean, MiB", "host_memory_bytes", YAxis(zero=True)),
)


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file about folders of runs and of benchmarks; it needs no other file.

    Raises:
        ConfigError: if a folder has neither, or the file cannot be written.
    """
    for folder in folders:
        if not report_runs.is_run(folder) and not (folder / "bench.jsonl").is_file():
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", folder, f"{what}; give folders of runs")
    folders = list(dict.fromkeys(map(resolved, folders)))
    runs: list[RunRecord] = []
    grids: dict[str, list[benchmarks.Record]] = {}
    for folder, name in zip(folders, report_runs.names_of(folders), strict=True):
        if report_runs.is_run(folder):
            runs.append(report_runs.read(folder, name))
        if (folder / "bench.jsonl").is_file():
            grids[name] = benchmarks.read(str(folder / "bench.jsonl"))
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


def _page(
    runs: Sequence[RunRecord], grids: dict[str, list[benchmarks.Record]], title: str | None
) -> str:
    """Returns the page; its templates escape every value."""
    alike: dict[tuple[str, str], list[RunRecord]] = {}  # scores compare only on the same data
    for run in runs:
        alike.setdefault((fact_text(run, "dataset"), run.metric), []).append(run)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdp.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.jinja").render(
        title=title or (_subject(runs) if runs else "Training throughput"),
        introduction=_introduction(runs, len(grids)),
        sections=[
            _section(_heading(*what) if len(alike) > 1 else "Runs", found)
            for what, found in alike.items()
        ],
        benchmarks=[(name, report_benchmarks.grids(records)) for name, records in grids.items()],
        tables=report_tables,
        colors=COLORS,
        markers=MARKERS,
    )


def _heading(dataset: str, metric: str) -> str:
    dataset = "an unknown dataset" if dataset == NOTHING else dataset
    return f"Runs on {dataset}, by {metric.replace('_', ' ')}"


def _subject(runs: Sequence[RunRecord]) -> str:
    """Returns the models and datasets of runs."""
    models, datasets = (
        dict.fromkeys(text for run in runs if (text := fact_text(run, fact)) != NOTHING)
        for fact in ("model", "dataset")
    )
    return f"{_listed(list(models), 'models')} on {_listed(list(datasets), 'datasets')}"


def _listed(names: Sequence[str], plural: str, most: int = 4) -> str:
    if len(names) > most or not names:
        return f"{len(names) or 'unknown'} {plural}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _introduction(runs: Sequence[RunRecord], benchmarks: int) -> list[str]:
    """Returns what is compared, and when and with which versions it was made."""
    parts = []
    if runs:
        names = [name for name in _FACTS if len({fact_text(run, name) for run in runs}) > 1]
        names += [name for name in _differing(runs) if name not in _SHOWN]
        names = [name.replace("_", " ") for name in names]
        how = ", with equal settings" * (len(runs) > 1)
        if names:
            how = f", which differ in {_listed(names, 'settings', most=6)}"
        parts.append(f"{_count(len(runs), 'run')} of {_subject(runs)}{how}")
    if benchmarks:
        parts.append(_count(benchmarks, "benchmark"))
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.summary.get("versions", {}).items():
            versions.setdefault(name, {})[str(version)] = None
    made = ", ".join(f"{name} {' or '.join(found)}" for name, found in versions.items())
    return [
        f"{'; '.join(parts)}.",
        f"Written {now} by jaxdp {jaxdp.__version__}, Python {platform.python_version()}."
        + f" Runs made with {made}." * bool(made),
    ]


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    """Returns the settings that are not the same in all runs."""
    known = [run.settings for run in runs if run.settings]
    return [
        name
        for name in dict.fromkeys(itertools.chain(*known))
        if len({json.dumps(settings.get(name), default=str) for settings in known}) > 1
    ]


def _section(heading: str, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns what is shown of runs on one dataset, compared by one metric, the best first."""
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    runs = [
        dataclasses.replace(run, color=min(index, len(COLORS))) for index, run in enumerate(runs)
    ]
    differing = _differing(runs)
    settings = next((run.settings for run in runs if run.settings), {})
    shared = {name: value for name, value in settings.items() if name not in differing}
    evaluated = {run.held_out for run in runs}
    kinds = {mark.kind for run in runs for mark in run.track.marks}
    columns = _columns(
        runs[0].metric, evaluated, [name for name in differing if name not in _SHOWN]
    )
    x_axes = _x_axes(runs)
    return {
        "heading": heading,
        "runs": runs,
        "columns": [(title, kind) for title, kind, _ in columns],
        "rows": [
            (run, {"class": f"k{run.color} {run.status}"}, [text(run) for *_, text in columns])
            for run in runs
        ],
        "shared": report_tables.settings(shared),
        "names": {run.name: run.color for run in runs},
        "splits": [split for split in LINE_STYLES if split in {"train", "test"} | evaluated],
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
    titles = {
        BASE: ("steps", "step", 1.0),
        "epoch": ("epochs", "epoch", 1.0),
        "time": (f"{unit} of training", f"training time, {unit}", size),
    }
    return [
        XAxis(key, name, title, last[key] / size or 1.0, size)
        for key, (name, title, size) in titles.items()
        if key in last
    ]


def _columns(
    metric: str, splits: set[str], settings: Sequence[str]
) -> list[tuple[str, str, Callable[[RunRecord], str]]]:
    """Returns title, kind and text of the columns of a table of runs.

    Args:
        metric: the metric of the task.
        splits: the splits by which the runs are compared; only validation data have a best state.
        settings: the settings in which the runs differ.
    """

    def setting(run: RunRecord, name: str) -> str:
        return setting_text(run.settings[name]) if name in run.settings else NOTHING

    def score(run: RunRecord) -> str:
        on_test = len(splits) > 1 and run.held_out == "test" and run.score is not None
        return metric_text(metric, run.score) + " (test)" * on_test

    title = f"best validation {metric}" if "validation" in splits else f"test {metric}"
    columns: list[tuple[str, str, Callable[[RunRecord], str]]] = [
        (title, "number", score),
        ("test loss", "number", lambda run: metric_text("loss", run.metrics("test").get("loss"))),
        ("status", "status", lambda run: run.status),
    ]
    if title == "test loss":
        del columns[1]
    columns += [
        (name.replace("_", " "), "text", functools.partial(setting, name=name)) for name in settings
    ]
    columns += [
        ("examples/s", "number", lambda run: speed_text(run.examples_per_second)),
        ("time", "number", time_text),
        ("steps", "number", lambda run: f"{run.steps:,}"),
    ]
    columns += [
        (
            name.replace("_", " "),
            "number" if name == "devices" else "",
            functools.partial(fact_text, name=name),
        )
        for name in _FACTS
    ]
    return columns


def _figures(runs: Sequence[RunRecord], x_axes: Sequence[XAxis]) -> list[Panel]:
    """Draws the curves and events of runs."""
    tracks = [run.track for run in runs]

    metric, splits = runs[0].metric, list(LINE_STYLES)
    captions = [("loss", "loss", YAxis(log=True), splits)]
    if metric != "loss":
        form = percent if "accuracy" in metric else compact
        captions.append((metric, metric, YAxis(form=form), splits))
    captions += [(*curve, ["train"]) for curve in _CURVES]
    figures: list[Panel] = []
    for caption, name, y_axis, splits in captions:
        figures += panel(caption, _curves(runs, name, splits), tracks, x_axes, y_axis)
    if any(len({count for _, count in run.widths}) > 1 for run in runs):
        stairs = [
            Curve(f"{run.name}, processes", run.color, run.to_x, *_stairs(run))
            for run in reversed(runs)
        ]
        figures += panel("processes", stairs, tracks, x_axes, YAxis(zero=True))
    if any(track.marks for track in tracks):
        figures.append(timeline(tracks, x_axes))
    return figures


def _curves(runs: Sequence[RunRecord], name: str, splits: Sequence[str]) -> list[Curve]:
    """Returns a curve for each run and split, the best run last, above the others."""
    unit = 2**20 if name.endswith("_bytes") else 1
    curves = []
    for run in reversed(runs):
        for split in splits:
            steps, values = run.series(split, name)
            scaled = [value / unit for value in values]
            label, style = f"{run.name}, {split}", LINE_STYLES[split]
            curves.append(Curve(label, run.color, run.to_x, steps, scaled, style))
    return curves


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
