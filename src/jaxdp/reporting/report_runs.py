"""Reads the folder of a run for the report, whether it is complete or damaged."""

import contextlib
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdp import tasks
from jaxdp.config import OF_ONE_COMMAND, TrainConfig
from jaxdp.parsing import is_finite, parse_yaml
from jaxdp.registry import ConfigError
from jaxdp.reporting.report_figures import BASE, Mark, Number, ToX, Track
from jaxdp.run_directory import Row, RunDirectory
from jaxdp.run_files import DamagedFile, read_object, read_rows, read_text, rows_count

_ENDS = ("done", "stopped", "diverged")
# Fields of a summary that the page reads further, with their types; another type is no value.
_TYPES: dict[str, Any] = {
    "metrics": dict,
    "best": dict,
    "seconds": dict,
    "versions": dict,
    "steps": int,
    "examples_per_second": int | float,
}
_RESULTS = ("metrics", "best", "steps", "examples_per_second")


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What the folder of a run says.

    Attributes:
        config_text: config.yaml.
        settings: those of config.yaml, and defaults for the rest; empty without the file.
        summary: summary.json; without results if the run went on after they were written.
        description: dataset.json.
        status: done, stopped, diverged, running or unfinished.
        problems: what is missing or cannot be read.
        metric: of the task, by which runs are ranked.
        color: index of the run's color on the page.
    """

    name: str
    directory: RunDirectory
    config_text: str
    settings: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]
    history: list[Row]
    description: dict[str, Any]
    status: str
    problems: list[str]
    metric: str
    larger_is_better: bool
    color: int = 0

    def about(self, name: str) -> Any:
        """Returns a fact from the summary, else from the history, else from the settings."""
        sources = (self.summary, *reversed(self.history), self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    @property
    def strategy(self) -> str | None:
        """Who computed: a strategy for devices, or for workers."""
        exchange = self.about("exchange")  # of runs of 0.2
        return self.about("strategy") if exchange in (None, "allreduce") else exchange

    @property
    def devices(self) -> Any:
        """The number of devices or, in a run with workers, their number as text."""
        workers = self.about("workers")
        if workers is None:
            return self.about("devices")
        return f"{workers} worker{'s' if workers != 1 else ''}"

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
        return self.summary.get("examples_per_second", statistics.median(rates) if rates else None)

    @functools.cached_property
    def steps(self) -> int:
        seen = (int(row["step"]) for row in (*self.rows, *self.history))
        return self.summary.get("steps") or max(seen, default=0)

    @functools.cached_property
    def held_out(self) -> str:
        """The split by which runs are compared: validation, or test where there is none."""
        splits = {row.get("split") for row in self.rows}
        return "validation" if "validation" in splits else "test"

    def series(self, split: str, name: str) -> tuple[list[float], list[float]]:
        """Returns the steps and values of the rows that have one.

        Of a list with a value for each device, the value is the mean.
        """
        steps: list[float] = []
        means: list[float] = []
        for row in self.rows:
            found: Any = row.get(name)
            values: list[Any] = found if isinstance(found, list) else [found]
            if row.get("split") == split and values and all(map(is_finite, values)):
                steps.append(float(row["step"]))
                means.append(sum(map(float, values)) / len(values))
        return steps, means

    @property
    def score(self) -> Number | None:
        """The metric by which the run is ranked: its best on validation data, or its last on test
        data, which choose nothing.
        """
        best = self.summary.get("best", {}).get(self.metric)
        if is_finite(best):
            return best
        _, values = self.series(self.held_out, self.metric)
        if self.held_out == "test":
            return values[-1] if values else None
        return (max if self.larger_is_better else min)(values, default=None)

    def metrics(self, split: str) -> dict[str, Any]:
        """Returns the metrics of a split at the end, or so far."""
        found = self.summary.get("metrics", {}).get(split)
        if isinstance(found, dict):
            return found
        rows = [row for row in self.rows if row.get("split") == split]
        evaluated = [row for row in self.rows if row.get("split") == self.held_out]
        names = evaluated[-1] if evaluated else ("loss", self.metric)
        return {
            name: rows[-1][name]
            for name in names
            if rows and name in rows[-1] and name not in ("step", "epoch", "split")
        }

    @functools.cached_property
    def to_x(self) -> ToX:
        """How steps become epochs and seconds, as far as the folder says it.

        Seconds are the time of the steps alone, without evaluation, saving and compilation.
        """
        found: dict[str, Callable[[Any], Any]] = {BASE: lambda steps: np.asarray(steps, float)}
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
        examples, batch = self.description.get("examples"), self.about("global_batch_size")
        train = examples.get("train") if isinstance(examples, dict) else None
        if is_finite(train) and is_finite(batch) and train >= batch > 0:
            return train // batch  # the rest of an epoch is dropped
        steps, epochs = self.summary.get("steps"), self.summary.get("epochs")
        return steps / epochs if steps and is_finite(epochs) and epochs > 0 else None

    @functools.cached_property
    def track(self) -> Track:
        """What happened to the run."""
        marks = self._skipped() + self._events()
        if not self.history and self.status in ("stopped", "diverged"):
            marks.append(Mark(self.status, self.steps, f"{self.status} at step {self.steps}"))
        return Track(self.name, self.color, self.to_x, self.steps, marks)

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
            kind, step, processes = event["event"], event["step"], event.get("processes")
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


def is_run(folder: pathlib.Path) -> bool:
    """Whether a folder holds the settings, metrics or summary of a run."""
    run = RunDirectory(folder)
    return any(path.is_file() for path in (run.config_file, run.metrics_file, run.summary_file))


def names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns the shortest ends of paths that differ from each other."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read(folder: pathlib.Path, name: str) -> RunRecord:
    """Reads what a folder has, and notes what is missing."""
    directory, reader = RunDirectory(folder), _Reader()
    summary = reader.read(directory.summary_file, _read_unchecked, {})
    summary = {
        field: value
        for field, value in summary.items()
        if isinstance(value, _TYPES.get(field, object))
    }
    description = reader.read(directory.dataset_file, _read_unchecked, {})
    config_text, settings = reader.read(directory.config_file, _read_settings, ("", {}))
    rows = reader.rows(directory.metrics_file)
    if directory.metrics_file.is_file() and not rows:
        reader.problems.append("metrics.jsonl holds no rows")
    history = reader.rows(directory.history_file) if directory.history_file.exists() else []
    history = [event for event in history if isinstance(event.get("event"), str)]
    status = history[-1]["event"] if history else summary.get("status")
    if status not in _ENDS:
        status = "running" if directory.is_being_written() else "unfinished"
        summary = {field: summary[field] for field in summary if field not in _RESULTS}
    task = summary.get("task") or description.get("task") or settings.get("task") or ""
    metric, larger_is_better = "loss", False
    with contextlib.suppress(ConfigError):  # a task of another package, or none
        metric, larger_is_better = tasks.create(str(task), num_classes=2).best_metric
    return RunRecord(
        name,
        directory,
        config_text,
        settings,
        rows,
        summary,
        history,
        description,
        status,
        reader.problems,
        metric,
        larger_is_better,
    )


class _Reader:
    """Reads files as far as they can be read, and collects the problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, path: pathlib.Path, load: Callable[[pathlib.Path], Any], empty: Any) -> Any:
        """Returns what a file holds, or `empty`."""
        try:
            path.stat()  # raises if there is no file
            return load(path)
        except FileNotFoundError:
            self.problems.append(f"there is no {path.name}")
        except (OSError, ValueError):
            self.problems.append(f"{path.name} cannot be read")
        return empty

    def rows(self, path: pathlib.Path) -> list[Row]:
        """Returns the rows of a file that have a step."""
        rows, lost = self.read(path, lambda path: read_rows(path, checked=False), ([], 0))
        if lost:
            self.problems.append(f"{rows_count(lost)} of {path.name} cannot be read")
        return [row for row in rows if is_finite(row.get("step"))]


def _read_unchecked(path: pathlib.Path) -> dict[str, Any]:
    return read_object(path, checked=False)


def _read_settings(path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a config.yaml and its settings, those of other versions included."""
    text = read_text(path)
    content = parse_yaml(text)
    if not isinstance(content, dict):
        raise DamagedFile(path, "it holds no settings")
    settings = TrainConfig().plain() | {str(name): value for name, value in content.items()}
    return text, {name: value for name, value in settings.items() if name not in OF_ONE_COMMAND}
