"""What stands on the page of `python -m jaxdp.report`, and in which order?"""

import datetime
import json
import pathlib
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

import jaxdp
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks, report_runs
from jaxdp.reporting.markup import Html, details, table, tag
from jaxdp.reporting.report_details import anchor, article, chip, figure_text, settings_list, speed_text, status, time_text
from jaxdp.reporting.report_figures import COLORS, SIGN_NAMES, Curve, Sign, compact, panel, percent, sign_key, timeline
from jaxdp.reporting.report_runs import NOTHING, Run, fact_text, setting_text
from jaxdp.run_directory import replace_file

# What a table of runs always tells, so that the settings of these names need no further column.
_SHOWN = ("model", "dataset", "task", "strategy", "devices", "batch_norm", "steps")
_LONG = 16  # characters of a setting that may be broken


def write_report(folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None) -> None:
    """Writes one HTML file that needs no other, about folders of runs and of benchmarks.

    Raises:
        ConfigError: if one of the folders is neither, or the file cannot be written.
    """
    for folder in folders:
        if not report_runs.is_run(folder) and not (folder / "bench.jsonl").is_file():
            what = "holds neither a run nor a bench.jsonl" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", folder, f"{what}; give folders of runs")
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = dict(zip(folders, report_runs.names_of(folders), strict=True))
    runs = [report_runs.read(folder, name) for folder, name in names.items() if report_runs.is_run(folder)]
    grids = {name: folder / "bench.jsonl" for folder, name in names.items() if (folder / "bench.jsonl").is_file()}
    page = _page(runs, {name: benchmarks.read(str(path), "run_dir") for name, path in grids.items()}, title)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        replace_file(output, page)
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written: {error.strerror}") from error


def _page(runs: Sequence[Run], grids: dict[str, list[benchmarks.Record]], title: str | None) -> str:
    title = title or (_subject(runs) if runs else "Training throughput")
    colors = "".join(f".k{index} {{ --k: {color}; }}\n" for index, color in enumerate(COLORS)) + ".k7 { --k: #9aa0a6; }\n"
    # Whoever points at a run sees its curves alone.
    hover = "".join(f".runs:has(.k{index}:hover) .run:not(.k{index}) {{ opacity: .12; }}\n" for index in range(len(COLORS)))
    style = resources.files("jaxdp.reporting").joinpath("report.css").read_text()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(colors + hover + style)),
    )
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    sections = [_task_section(task, of_task, alone=len(by_task) == 1) for task, of_task in by_task.items()]
    sections += [_bench_section(name, records) for name, records in grids.items()]
    header = tag("header", tag("h1", title), *(tag("p", line, class_="soft") for line in _introduction(runs, grids)))
    return "<!doctype html>\n" + tag("html", head, tag("body", header, tag("main", *sections)), lang="en") + "\n"


def _subject(runs: Sequence[Run]) -> str:
    models, datasets = (_unique(fact_text(run, name) for run in runs) for name in ("model", "dataset"))
    return f"{_listed(models, 'models')} on {_listed(datasets, 'datasets')}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _listed(names: Sequence[str], plural: str = "settings", most: int = 4) -> str:
    if len(names) > most:
        return f"{len(names)} {plural}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _introduction(runs: Sequence[Run], grids: dict[str, Any]) -> list[str]:
    """Says what is compared, when this was written, and with which versions all was made."""
    what = []
    if runs:
        differing = _unique(name for name in ("model", "dataset", "strategy", "devices", "batch_norm") if _differs(runs, name))
        differing += [name for name in _differing(runs) if name not in _SHOWN]
        names = [name.replace("_", " ") for name in differing]
        how = f", which differ in {_listed(names, most=6)}" if names else ", with equal settings" if len(runs) > 1 else ""
        what.append(f"{_count(len(runs), 'run')} of {_subject(runs)}{how}")
    if grids:
        what.append(_count(len(grids), "benchmark"))
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, []).append(version)
    texts = [f"{name} {' or '.join(_unique(found))}" for name, found in versions.items()]
    made = f"Runs made with {', '.join(texts)}." if texts else ""
    return [
        f"{'; '.join(what)}.",
        f"Written {now} by jaxdp {jaxdp.__version__}, Python {platform.python_version()}. {made}",
    ]


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _differs(runs: Sequence[Run], name: str) -> bool:
    return len({json.dumps(run.about(name), default=str) for run in runs}) > 1


def _differing(runs: Sequence[Run]) -> list[str]:
    """Returns the settings that are not the same in all runs."""
    known = [run.settings for run in runs if run.settings]
    names = _unique(name for settings in known for name in settings)
    return [name for name in names if len({json.dumps(settings.get(name), default=str) for settings in known}) > 1]


def _task_section(task: str, runs: list[Run], *, alone: bool) -> Html:
    metric, larger = runs[0].metric, runs[0].larger_is_better
    runs = sorted(runs, key=lambda run: (run.best is None, 0 if run.best is None else -run.best if larger else run.best))
    colors = [min(index, len(COLORS)) for index in range(len(runs))]
    heading = "Runs" if alone else task.capitalize() or "Runs of an unknown task"
    differing, settings = _differing(runs), next((run.settings for run in runs if run.settings), {})
    shared = {name: value for name, value in settings.items() if name not in differing}
    parts: list[object] = [tag("h2", heading), _runs_table(runs, colors, metric)]
    if shared:
        parts.append(details(_count(len(shared), "setting") + " that all share" * (len(runs) > 1), settings_list(shared)))
    parts += [_curves(runs, colors, metric), *(article(run, color) for run, color in zip(runs, colors, strict=True))]
    return tag("section", *parts, class_="runs")


def _runs_table(runs: Sequence[Run], colors: Sequence[int], metric: str) -> Html:
    further = [name for name in _differing(runs) if name not in _SHOWN]
    columns: dict[str, Callable[[Run], object]] = {
        f"best {metric}": lambda run: figure_text(metric, run.best),
        "test loss": lambda run: figure_text("loss", run.figures("test").get("loss")),
        "status": status,
        **{name.replace("_", " "): lambda run, name=name: setting_text(run.settings[name]) if name in run.settings else NOTHING
           for name in further},
        "examples/s": lambda run: speed_text(run.examples_per_second),
        "time": time_text,
        "steps": lambda run: f"{run.steps:,}",
        "model": lambda run: fact_text(run, "model"),
        "dataset": lambda run: fact_text(run, "dataset"),
        "strategy": lambda run: fact_text(run, "strategy"),
        "devices": lambda run: fact_text(run, "devices"),
        "batch norm": lambda run: fact_text(run, "batch_norm"),
    }  # fmt: skip
    numeric = (f"best {metric}", "test loss", "examples/s", "time", "steps", "devices")
    kinds = ["number" if name in numeric else "text" if name.replace(" ", "_") in further else None for name in columns]
    head = [tag("th", "run", scope="col")]
    head += [tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)]
    rows = []
    for run, color in zip(runs, colors, strict=True):
        name = tag("th", chip(color), tag("a", run.name, href=f"#{anchor(run)}"), scope="row")
        texts = [text(run) for text in columns.values()]
        long = ["text long" if kind == "text" and len(str(text)) > _LONG else kind for text, kind in zip(texts, kinds, strict=True)]
        cells = [tag("td", text, class_=kind) for text, kind in zip(texts, long, strict=True)]
        rows.append(tag("tr", name, *cells, class_=f"k{color}"))
    return table(head, rows)


def _curves(runs: Sequence[Run], colors: Sequence[int], metric: str) -> Html:
    last_step = max(run.steps for run in runs)
    signs = [[Sign(mark.kind, mark.step, f"{run.name}: {mark.text}", color) for mark in run.marks]
             for run, color in zip(runs, colors, strict=True)]  # fmt: skip
    all_signs = [sign for own in signs for sign in own]

    def curves(name: str, unit: int, *splits: str) -> list[Curve]:
        found = []
        for run, color in reversed(list(zip(runs, colors, strict=True))):  # the best one last, above the others
            for split in splits:
                points = [(step, value / unit) for step, value in run.points(split, name)]
                found.append(Curve(f"{run.name}, {split}", color, points, split == "test"))
        return found

    def draw(title: str, name: str, *splits: str, unit: int = 1, **look: Any) -> Html:
        return panel(title, curves(name, unit, *(splits or ("train",))), all_signs, last_step=last_step, **look)

    figures = [
        draw("loss", "loss", "train", "test", log=True),
        draw(metric, metric, "train", "test", text=percent if "accuracy" in metric else compact) if metric != "loss" else "",
        draw("learning rate", "learning_rate", zero=True),
        draw("examples per second", "examples_per_second", zero=True),
        draw("share of time waiting for input", "input_wait_fraction", zero=True, text=percent),
        draw("device utilization, mean", "device_utilization", zero=True, text=percent),
        draw("memory of a device, mean, MiB", "device_memory_bytes", zero=True, unit=2**20),
        draw("memory of a host process, mean, MiB", "host_memory_bytes", zero=True, unit=2**20),
    ]
    if all_signs:
        figures.append(timeline([(run.name, color, run.steps) for run, color in zip(runs, colors, strict=True)], signs))
    if not any(figures):
        return Html()
    keys: list[object] = [tag("span", chip(color), run.name, class_=f"k{color}") for run, color in zip(runs, colors, strict=True)]
    for text, kind in (("train", "line"), ("test", "line dashed")):
        stroke = tag("svg", tag("path", d="M0 5H20", class_=kind), viewBox="0 0 20 10", class_="stroke", aria_hidden="true")
        keys.append(tag("span", stroke, text))
    keys += [sign_key(kind) for kind in SIGN_NAMES if any(sign.kind == kind for sign in all_signs)]
    return tag("div", tag("div", *keys, class_="key-list"), tag("div", *figures, class_="panels"))


def _bench_section(name: str, records: list[benchmarks.Record]) -> Html:
    """Shows of each cell the last time that it was measured, and what was measured alike together."""
    latest = {(benchmarks.key(record), record["dataset"], str(record.get("settings"))): record for record in records}
    alike: dict[Any, list[benchmarks.Record]] = {}
    for record in latest.values():
        alike.setdefault((record["model"], record["dataset"], record["precision"], str(record.get("settings"))), []).append(record)
    return tag("section", tag("h2", f"Training throughput: {name}"), *(_grid(grid) for grid in alike.values()))


def _grid(records: list[benchmarks.Record]) -> Html:
    named = {"strategy": "strategy", "devices": "devices", "global_batch_size": "batch"}
    records.sort(key=lambda record: tuple(record[name] for name in named))
    columns = benchmarks.columns(records, [])
    titles = [*named.values(), *(title.replace("-\n", "").replace("\n", " ").strip() for title in columns)]
    texts = [[str(record[name]) for record in records] for name in named] + list(columns.values())
    kinds = [None] + ["number"] * (len(titles) - 1)
    head = [tag("th", title, scope="col", class_=kind) for title, kind in zip(titles, kinds, strict=True)]
    rows = []
    for index, record in enumerate(records):
        cells = [tag("td", text[index], class_=kind) for text, kind in zip(texts[1:], kinds[1:], strict=True)]
        failed = None if record["status"] == "ok" else "bad"
        rows.append(tag("tr", tag("th", texts[0][index], scope="row"), *cells, class_=failed, title=record.get("reason")))
    settings = records[0].get("settings") or {}
    return tag(
        "div",
        tag("p", f"{benchmarks.heading(records)}; {benchmarks.where(records)}"),
        tag("p", "Settings: " + ", ".join(f"{name} {setting_text(value)}" for name, value in settings.items())) if settings else "",
        _grid_figure(records),
        table(head, rows),
        tag("p", "Times are milliseconds of a step; memory is planned, of one device.", class_="soft"),
    )


def _grid_figure(records: Sequence[benchmarks.Record]) -> Html:
    """Draws throughput over the batch, a panel for each number of devices, with equal axes."""
    strategies = _unique(record["strategy"] for record in records)
    colors = {name: COLORS.index(benchmarks.COLORS[name]) if benchmarks.COLORS.get(name) in COLORS else 6 for name in strategies}
    sizes = sorted({record["global_batch_size"] for record in records})
    highest = max((record["images_per_second"]["max"] for record in records if benchmarks.rate(record) is not None), default=None)
    panels, lost = [], False
    for devices in sorted({record["devices"] for record in records}):
        curves, signs = [], []
        for strategy in strategies:
            here = [record for record in records if (record["devices"], record["strategy"]) == (devices, strategy)]
            done = [record for record in here if benchmarks.rate(record) is not None]
            found = [record["images_per_second"] for record in done]
            points = [(record["global_batch_size"], each["median"]) for record, each in zip(done, found, strict=True)]
            curves.append(Curve(strategy, colors[strategy], points, band=[(each["min"], each["max"]) for each in found]))
            failed = [record for record in here if record["status"] == "oom"]
            signs += [
                Sign("oom", record["global_batch_size"], f"{strategy}, batch {record['global_batch_size']}: out of memory",
                     colors[strategy])
                for record in failed
            ]  # fmt: skip
        lost = lost or bool(signs)
        title = f"images per second on {_count(devices, 'device')}"
        axes: Any = {"sizes": sizes, "x_title": "global batch size", "highest": highest}
        panels.append(panel(title, curves, signs, last_step=1, zero=True, **axes))
    keys = [tag("span", chip(colors[name]), name, class_=f"k{colors[name]}") for name in strategies]
    keys += [sign_key("oom")] if lost else []
    return tag("div", tag("div", *keys, class_="key-list"), tag("div", *panels, class_="panels"), class_="runs")
