"""Writes the page of `python -m jaxdp.report`: says what stands on it and in which order.

Templates/ says how it looks.
"""

import dataclasses
import datetime
import itertools
import json
import pathlib
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

import jaxdp
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_axes, report_benchmarks, report_details, report_runs
from jaxdp.reporting.report_details import metric_text, speed_text, time_text
from jaxdp.reporting.report_figures import (
    COLORS,
    SHAPES,
    STROKES,
    Axis,
    Clock,
    Curve,
    Mark,
    compact,
    panel,
    percent,
    timeline,
)
from jaxdp.reporting.report_runs import NOTHING, Run, fact_text, setting_text
from jaxdp.reporting.templates import render
from jaxdp.rundir.write import check_file, replace_file

# What a table of runs always tells, so that the settings of these names need no further column.
_FACTS = ("model", "dataset", "strategy", "devices", "batch_norm")
# The column of devices has the workers.
_SHOWN = (*_FACTS, "workers", "task", "steps")


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file that needs no other, about folders of runs and of benchmarks.

    Raises:
        ConfigError: if one of the folders is neither, or the file cannot be written.
    """
    for folder in folders:
        if not report_runs.is_run(folder) and not (folder / "bench.jsonl").is_file():
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", folder, f"{what}; give folders of runs")
    folders = list(dict.fromkeys(resolved(folder) for folder in folders))
    names = dict(zip(folders, report_runs.names_of(folders), strict=True))
    runs = [
        report_runs.read(folder, name)
        for folder, name in names.items()
        if report_runs.is_run(folder)
    ]
    grids = {
        name: folder / "bench.jsonl"
        for folder, name in names.items()
        if (folder / "bench.jsonl").is_file()
    }
    page = _page(runs, {name: benchmarks.read(str(path)) for name, path in grids.items()}, title)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        check_file("output", output, "report.html")
        # Names of folders need be no UTF-8.
        replace_file(resolved(output), page.encode(errors="replace"))
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written: {error.strerror}") from error


def _page(runs: Sequence[Run], grids: dict[str, list[benchmarks.Record]], title: str | None) -> str:
    alike: dict[tuple[str, str], list[Run]] = {}  # scores compare only on the same data
    for run in runs:
        alike.setdefault((fact_text(run, "dataset"), run.metric), []).append(run)
    return render(
        "page.html.jinja",
        title=title or (_subject(runs) if runs else "Training throughput"),
        introduction=_introduction(runs, len(grids)),
        sections=[
            _section(_heading(*what) if len(alike) > 1 else "Runs", found)
            for what, found in alike.items()
        ],
        benchmarks=[(name, report_benchmarks.grids(records)) for name, records in grids.items()],
        details=report_details,
        colors=COLORS,
        shapes=SHAPES,
    )


def _subject(runs: Sequence[Run]) -> str:
    def names(fact: str) -> str:
        return _listed(
            _unique(text for run in runs if (text := fact_text(run, fact)) != NOTHING), f"{fact}s"
        )

    return f"{names('model')} on {names('dataset')}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _listed(names: Sequence[str], plural: str = "settings", most: int = 4) -> str:
    if not names:
        return f"unknown {plural}"
    if len(names) > most:
        return f"{len(names)} {plural}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _introduction(runs: Sequence[Run], benchmarks: int) -> list[str]:
    """Says what is compared, when this was written, and with which versions all was made."""
    what = []
    if runs:
        differing = [name for name in _FACTS if len({fact_text(run, name) for run in runs}) > 1]
        differing += [name for name in _differing(runs) if name not in _SHOWN]
        names = [name.replace("_", " ") for name in differing]
        how = (
            f", which differ in {_listed(names, most=6)}"
            if names
            else ", with equal settings"
            if len(runs) > 1
            else ""
        )
        what.append(f"{_count(len(runs), 'run')} of {_subject(runs)}{how}")
    if benchmarks:
        what.append(_count(benchmarks, "benchmark"))
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, []).append(version)
    texts = [f"{name} {' or '.join(_unique(found))}" for name, found in versions.items()]
    made = f" Runs made with {', '.join(texts)}." if texts else ""
    return [
        f"{'; '.join(what)}.",
        f"Written {now} by jaxdp {jaxdp.__version__}, Python {platform.python_version()}.{made}",
    ]


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _differing(runs: Sequence[Run]) -> list[str]:
    """Returns the settings that are not the same in all runs."""
    known = [run.settings for run in runs if run.settings]
    names = _unique(name for settings in known for name in settings)
    return [
        name
        for name in names
        if len({json.dumps(settings.get(name), default=str) for settings in known}) > 1
    ]


def _heading(dataset: str, metric: str) -> str:
    return (
        f"Runs on {'an unknown dataset' if dataset == NOTHING else dataset}, by"
        f" {metric.replace('_', ' ')}"
    )


def _section(heading: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns what is shown of the runs of one dataset that are compared by one metric, the best
    first.
    """
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    runs = [
        dataclasses.replace(run, color=min(index, len(COLORS))) for index, run in enumerate(runs)
    ]
    differing, settings = _differing(runs), next((run.settings for run in runs if run.settings), {})
    shared = {name: value for name, value in settings.items() if name not in differing}
    axes = report_axes.of_runs(runs)
    clocks = {
        run.name: {axis.key: axis.clocks[run.name] for axis in axes if run.name in axis.clocks}
        for run in runs
    }
    marks = [[_mark(run, mark, clocks[run.name]) for mark in run.marks] for run in runs]
    evaluated = {run.held_out for run in runs}
    kinds = {mark.kind for own in marks for mark in own}
    columns = _columns(
        runs[0].metric, evaluated, [name for name in differing if name not in _SHOWN]
    )
    return {
        "heading": heading,
        "runs": runs,
        "columns": [(title, kind) for title, kind, _ in columns],
        "rows": [
            (run, {"class": f"k{run.color} {run.status}"}, [text(run) for *_, text in columns])
            for run in runs
        ],
        "shared": report_details.settings_texts(shared),
        "names": {run.name: run.color for run in runs},
        "strokes": {
            split: STROKES[split]
            for split in STROKES
            if split != "validation" or split in evaluated
        },
        "marks": [kind for kind in SHAPES if kind in kinds],
        "figures": _evaluated(runs, marks, axes, clocks),
        "axes": [
            (axis, [run.name for run in runs if run.name not in axis.clocks]) for axis in axes
        ],
    }


def _mark(run: Run, mark: Mark, clocks: dict[str, Clock]) -> Mark:
    return dataclasses.replace(
        mark, text=f"{run.name}: {mark.text}", color=run.color, clocks=clocks
    )


def _columns(
    metric: str, splits: set[str], settings: Sequence[str]
) -> list[tuple[str, str, Callable[[Run], str]]]:
    """Returns title, kind and texts of the columns of a table of runs.

    Args:
        metric: the task's.
        splits: by which the runs are compared; only validation data know a best state.
        settings: those that tell the runs apart.
    """

    def of_setting(name: str) -> Callable[[Run], str]:
        return lambda run: setting_text(run.settings[name]) if name in run.settings else NOTHING

    def of_fact(name: str) -> Callable[[Run], str]:
        return lambda run: fact_text(run, name)

    def score(run: Run) -> str:
        text = metric_text(metric, run.score)
        return (
            f"{text} (test)"
            if len(splits) > 1 and run.held_out == "test" and run.score is not None
            else text
        )

    test_loss = (
        "test loss",
        "number",
        lambda run: metric_text("loss", run.metrics("test").get("loss")),
    )
    title = f"best validation {metric}" if "validation" in splits else f"test {metric}"
    return [
        (title, "number", score),
        *([test_loss] if title != test_loss[0] else []),
        ("status", "status", lambda run: run.status),
        *((name.replace("_", " "), "text", of_setting(name)) for name in settings),
        ("examples/s", "number", lambda run: speed_text(run.examples_per_second)),
        ("time", "number", time_text),
        ("steps", "number", lambda run: f"{run.steps:,}"),
        *(
            (name.replace("_", " "), "number" if name == "devices" else "", of_fact(name))
            for name in _FACTS
        ),
    ]


def _evaluated(
    runs: Sequence[Run],
    marks: Sequence[Sequence[Mark]],
    axes: Sequence[Axis],
    clocks: dict[str, dict[str, Clock]],
) -> list[Markup]:
    """Draws the curves and events of runs.

    Args:
        marks: of each run.
        axes: beside that of the steps.
        clocks: of each run, by key of the axis.
    """
    metric, last_step = runs[0].metric, max(run.steps for run in runs)
    all_marks = [mark for own in marks for mark in own]

    def draw(
        title: str, name: str, *, splits: Iterable[str] = ("train",), unit: int = 1, **look: Any
    ) -> Markup:
        curves = []
        for run in reversed(runs):  # the best one last, above the others
            for split in splits:
                points = [(step, value / unit) for step, value in run.points(split, name)]
                curves.append(
                    Curve(
                        f"{run.name}, {split}",
                        run.color,
                        points,
                        STROKES[split],
                        clocks=clocks[run.name],
                    )
                )
        return panel(title, curves, all_marks, last_step=last_step, others=axes, **look)

    figures = [
        draw("loss", "loss", splits=STROKES, log=True),
        (
            draw(metric, metric, splits=STROKES, text=percent if "accuracy" in metric else compact)
            if metric != "loss"
            else Markup()
        ),
        draw("learning rate", "learning_rate", zero=True),
        draw("examples per second", "examples_per_second", zero=True),
        draw("share of time waiting for input", "input_wait_fraction", zero=True, text=percent),
        draw("staleness of an update, mean", "staleness_mean", zero=True),
        draw("device utilization, mean", "device_utilization", zero=True, text=percent),
        draw("memory of a device, mean, MiB", "device_memory_bytes", zero=True, unit=2**20),
        draw("memory of a host process, mean, MiB", "host_memory_bytes", zero=True, unit=2**20),
    ]
    if any(len({count for _, count in run.widths}) > 1 for run in runs):
        widths = [
            Curve(f"{run.name}, processes", run.color, _stairs(run), clocks=clocks[run.name])
            for run in reversed(runs)
        ]
        figures.append(
            panel("processes", widths, all_marks, last_step=last_step, others=axes, zero=True)
        )
    if all_marks:
        tracks = [
            Curve(run.name, run.color, [(run.steps, 0)], clocks=clocks[run.name]) for run in runs
        ]
        figures.append(timeline(tracks, marks, axes))
    return [figure for figure in figures if figure]


def _stairs(run: Run) -> list[tuple[float, float]]:
    """Returns steps with the number of processes, twice where it changes.

    Steps that were lost and done again are told once.
    """
    found: list[tuple[float, float]] = []
    for (step, count), (end, _) in itertools.pairwise([*run.widths, (float(run.steps), 0.0)]):
        if end > step:
            found += [(step, count), (end, count)]
    return found
