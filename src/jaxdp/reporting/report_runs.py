"""Reads the folder of a run for the report, whether it is complete or damaged."""

import contextlib
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp import deprecation, tasks
from jaxdp.config import TrainConfig, settings_with
from jaxdp.parsing import is_finite, parse_yaml
from jaxdp.registry import ConfigError
from jaxdp.reporting.report_figures import BASE, Number, ToX
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import DamagedFile, Row, read_object, read_rows, read_text, rows_count

SPLITS = ("train", "validation", "test")
_ENDS = ("done", "stopped", "diverged")
# Fields of a summary that the page needs: their types, and values if they are missing.
_FIELDS: dict[str, tuple[Any, Any]] = {
    "metrics": (dict, {}),
    "best": (dict, {}),
    "steps": (int, None),
    "examples_per_second": (Number, None),
    "seconds": (dict, {}),
    "versions": (dict, {}),
}
_RESULTS = ("metrics", "best", "steps", "examples_per_second")


@dataclasses.dataclass(frozen=True)
class Mark:
    """An event at a step; `kind` is a key of MARKERS."""

    kind: str
    step: Number
    text: str


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What the folder of a run says.

    Attributes:
        config_text: config.yaml.
        settings: those of config.yaml, and defaults for the rest; empty without the file.
        summary: summary.json; without results if the run went on after they were written.
        dataset: dataset.json.
        status: done, stopped, diverged, running or unfinished.
        problems: what is missing or cannot be read.
        metric: of the task, by which runs are ranked.
        color: index of the run's color on the page.
    """

    name: str
    folder: pathlib.Path
    config_text: str
    settings: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]
    history: list[Row]
    dataset: dict[str, Any]
    status: str
    problems: list[str]
    metric: str
    larger_is_better: bool
    color: int = 0

    def about(self, name: str) -> Any:
        """Returns what the summary says, else the history, else the settings."""
        sources = (self.summary, *reversed(self.history), self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    def fact(self, name: str) -> Any:
        """Returns what `about` does, except for who computed in a run with workers."""
        workers = self.about("workers")
        if name == "devices" and workers is not None:
            return f"{workers} worker{'s' if workers != 1 else ''}"
        return self.about(name)

    @property
    def widths(self) -> list[tuple[Number, Number]]:
        """After which steps the run started, with how many processes, in the order of time."""
        return [
            (event["step"], event["processes"])
            for event in self.history
            if event["event"] in ("started", "resumed") and is_finite(event.get("processes"))
        ]

    @property
    def examples_per_second(self) -> Number | None:
        _, rates = self.series("train", "examples_per_second")
        median = statistics.median(rates) if rates else None
        return self.summary["examples_per_second"] or median

    @functools.cached_property
    def steps(self) -> int:
        seen = (int(row["step"]) for row in (*self.rows, *self.history))
        return self.summary["steps"] or max(seen, default=0)

    @functools.cached_property
    def held_out(self) -> str:
        """The split by which runs are compared: validation, or test where there is none."""
        splits = {row.get("split") for row in self.rows}
        return "validation" if "validation" in splits else "test"

    def series(self, split: str, name: str) -> tuple[list[float], list[float]]:
        """Returns the steps and values of the rows that have one.

        Of a list with a value for each device, the value is the mean.
        """
        points: list[tuple[float, float]] = []
        for row in self.rows:
            found: Any = row.get(name)
            values: list[Any] = found if isinstance(found, list) else [found]
            if row.get("split") == split and values and all(map(is_finite, values)):
                points.append((float(row["step"]), sum(map(float, values)) / len(values)))
        return [step for step, _ in points], [value for _, value in points]

    @property
    def score(self) -> Number | None:
        """The metric by which the run is ranked: its best on validation data, or its last on test
        data, which choose nothing.
        """
        best = self.summary["best"].get(self.metric)
        if is_finite(best):
            return best
        _, values = self.series(self.held_out, self.metric)
        if self.held_out == "test":
            return values[-1] if values else None
        return (max if self.larger_is_better else min)(values, default=None)

    @functools.cached_property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics by split at the end, or so far, and those of another step that was the best."""
        evaluated = [row for row in self.rows if row.get("split") == self.held_out]
        names = evaluated[-1] if evaluated else ("loss", self.metric)
        found: dict[str, dict[str, Any]] = {}
        for split in SPLITS:
            rows = [row for row in self.rows if row.get("split") == split]
            last = {name: rows[-1][name] for name in names if rows and name in rows[-1]}
            kept = self.summary["metrics"].get(split)
            found[split] = kept if isinstance(kept, dict) else last
        best = self.summary["best"]
        if best and best.get("step") != self.steps:
            found[f"best, step {best.get('step')}"] = best
        hidden = ("step", "epoch", "split")
        shown = {
            split: {name: value for name, value in values.items() if name not in hidden}
            for split, values in found.items()
        }
        return {split: values for split, values in shown.items() if values}

    @functools.cached_property
    def to_x(self) -> ToX:
        """How steps become epochs and seconds, as far as the folder says it.

        Seconds are the time of the steps alone, without evaluation, saving and compilation.
        """
        found: dict[str, Callable[[Any], Any]] = {BASE: np.asarray}
        if steps_per_epoch := self._steps_per_epoch():
            found["epoch"] = lambda steps: np.asarray(steps) / steps_per_epoch
        known, seconds = [0.0], [0.0]
        for step, each in zip(*self.series("train", "step_seconds"), strict=True):
            if step > known[-1] and each > 0:
                seconds.append(seconds[-1] + (step - known[-1]) * each)
                known.append(step)
        if len(known) > 1:
            pace = (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
            found["time"] = lambda steps: (
                np.interp(steps, known, seconds)
                + np.maximum(np.asarray(steps) - known[-1], 0) * pace
            )
        return found

    def _steps_per_epoch(self) -> Number | None:
        examples, batch = self.dataset.get("examples"), self.about("global_batch_size")
        train = examples.get("train") if isinstance(examples, dict) else None
        if is_finite(train) and is_finite(batch) and train >= batch > 0:
            return train // batch  # the rest of an epoch is dropped
        steps, epochs = self.summary["steps"], self.summary.get("epochs")
        return steps / epochs if steps and is_finite(epochs) and epochs > 0 else None

    @functools.cached_property
    def marks(self) -> list[Mark]:
        """What happened to the run."""
        marks = self._skipped() + self._events()
        if not self.history and self.status in ("stopped", "diverged"):
            marks.append(Mark(self.status, self.steps, f"{self.status} at step {self.steps}"))
        return marks

    def _skipped(self) -> list[Mark]:
        marks: list[Mark] = []
        for row in self.rows:
            if is_finite(skipped := row.get("skipped_updates")) and skipped:
                text = f"{skipped} updates skipped before step {row['step']}"
                if is_finite(overflows := row.get("overflows")) and overflows:
                    text += f", {overflows} of them overflows"
                marks.append(Mark("updates skipped", row["step"], text))
        return marks

    def _events(self) -> list[Mark]:
        marks: list[Mark] = []
        before = None
        for index, event in enumerate(self.history):
            kind, step = event["event"], event["step"]
            processes = event.get("processes")
            reason = f": {event['reason']}" if "reason" in event else ""
            if kind in ("started", "resumed"):
                if index:
                    text = f"{'resumed after' if step else 'started again at'} step {step}"
                    if before and processes and before != processes:
                        text += f", on {processes} processes instead of {before}"
                    marks.append(Mark("resumed", step, text))
                before = processes
            elif kind == "rollback":
                text = f"rolled back from step {step} to {event.get('to_step')}{reason}"
                marks.append(Mark("rolled back", step, text))
            elif kind in ("stopped", "diverged") and index + 1 == len(self.history):
                marks.append(Mark(kind, step, f"{kind} at step {step}{reason}"))
        return marks


def read(folder: pathlib.Path, name: str) -> RunRecord:
    """Reads what a folder has, and notes what is missing."""
    problems: list[str] = []

    def read_file(name: str, load: Callable[[pathlib.Path], Any], empty: Any) -> Any:
        try:
            (folder / name).stat()  # raises if there is no file
            return load(folder / name)
        except FileNotFoundError:
            problems.append(f"there is no {name}")
        except (OSError, ValueError):
            problems.append(f"{name} cannot be read")
        return empty

    def rows_of(name: str) -> list[Row]:
        rows, lost = read_file(name, functools.partial(read_rows, checked=False), ([], 0))
        if lost:
            problems.append(f"{rows_count(lost)} of {name} cannot be read")
        return [row for row in rows if is_finite(row.get("step"))]

    anything = functools.partial(read_object, checked=False)
    summary, dataset = (read_file(name, anything, {}) for name in ("summary.json", "dataset.json"))
    summary = deprecation.strategy_of_workers(summary)
    config_text, settings = read_file("config.yaml", _read_settings, ("", {}))
    rows = rows_of("metrics.jsonl")
    if (folder / "metrics.jsonl").is_file() and not rows:
        problems.append("metrics.jsonl holds no rows")
    history = rows_of("history.jsonl") if (folder / "history.jsonl").exists() else []
    history = [event for event in history if isinstance(event.get("event"), str)]
    status = history[-1]["event"] if history else summary.get("status")
    if status not in _ENDS:
        status = "running" if RunDirectory(folder).is_being_written() else "unfinished"
        summary = {field: summary[field] for field in summary if field not in _RESULTS}
    for field, (kind, empty) in _FIELDS.items():
        if not isinstance(summary.get(field), kind):
            summary[field] = empty
    task = summary.get("task") or dataset.get("task") or settings.get("task") or ""
    metric, larger_is_better = _ranking(str(task))
    return RunRecord(
        name,
        folder,
        config_text,
        settings,
        rows,
        summary,
        history,
        dataset,
        status,
        problems,
        metric,
        larger_is_better,
    )


def _ranking(task: str) -> tuple[str, bool]:
    """Returns the metric by which runs of a task are ranked, and whether larger is better."""
    with contextlib.suppress(ConfigError):  # a task of another package, or none
        return tasks.create(task, num_classes=2).best_metric
    return "loss", False


def _read_settings(path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a config.yaml and its settings, those of other versions included."""
    text = read_text(path)
    content = parse_yaml(text)
    if not isinstance(content, dict):
        raise DamagedFile(path, "it holds no settings")
    stored = {str(name): value for name, value in content.items()}
    settings = TrainConfig().plain() | deprecation.drop_removed(stored)
    of_command = settings_with(TrainConfig, saved=False)
    return text, {name: value for name, value in settings.items() if name not in of_command}
