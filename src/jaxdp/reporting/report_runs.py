"""Reads the folder of a run for the report, whether it is complete or damaged."""

import contextlib
import functools
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

from jaxdp import tasks
from jaxdp.config import TrainConfig, deprecation, settings_with
from jaxdp.errors import ConfigError
from jaxdp.rundir import lock
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row, read_object, read_rows, rows_count
from jaxdp.text.flags import for_command
from jaxdp.text.parsing import is_finite

SPLITS = ("train", "validation", "test")
_ENDS = ("done", "stopped", "diverged")
_POSITION = ("step", "epoch", "split")  # fields of a row that are not metrics
Number = float | int


class ReportedRun:
    """The contents of a run's folder, whether it is complete or damaged.

    Attributes:
        settings: of training; empty if they cannot be read.
        summary: summary.json; empty if the run continued after it was written.
        dataset: dataset.json.
        status: done, stopped, diverged, running or unfinished.
        problems: what is missing or cannot be read.
        metric: of the task, by which runs are ranked.
        color: index of the run's color on the page.
    """

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.color = 0
        self.problems: list[str] = []
        summary = deprecation.strategy_of_workers(self._read("summary.json", read_object, {}))
        self.dataset: dict[str, Any] = self._read("dataset.json", read_object, {})
        self.settings: dict[str, Any] = self._read("config.yaml", _read_settings, {})
        self.rows = self._read_lines("metrics.jsonl")
        if not self.rows:
            self.problems.append("metrics.jsonl holds no rows")
        self.history = self._read_lines("history.jsonl")
        last = self.history[-1]["event"] if self.history else "saved"
        self.status: str = summary.get("status", "") if last == "saved" else last
        if self.status not in _ENDS:
            is_running = lock.is_held(folder / lock.NAME)
            self.status = "running" if is_running else "unfinished"
            summary = {}
        self.summary = {name: value for name, value in summary.items() if value is not None}
        task = self.dataset.get("task") or self.fact("task")
        self.metric, self.larger_is_better = "loss", False
        with contextlib.suppress(ConfigError):  # a task of another package, or none
            self.metric, self.larger_is_better = tasks.create(str(task), num_classes=2).best_metric

    def _read(self, name: str, load: Callable[[pathlib.Path], Any], empty: Any) -> Any:
        try:
            return load(self.folder / name)
        except ConfigError as error:
            self.problems.append(for_command(error.remedy))
            return empty

    def _read_lines(self, name: str) -> list[Row]:
        rows, lost = self._read(name, read_rows, ([], []))
        if lost:
            self.problems.append(f"{rows_count(len(lost))} of {name} cannot be read")
        return rows

    def fact(self, name: str) -> Any:
        """Returns the value from the summary, or else from the history or the settings."""
        sources = (self.summary, *reversed(self.history), self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    @property
    def devices(self) -> Any:
        """The number of devices, or of workers with one CPU core each."""
        workers = self.fact("workers")
        return self.fact("devices") if workers is None else f"{workers} workers"

    @property
    def steps(self) -> int:
        return self.summary.get("steps") or max((row["step"] for row in self.rows), default=0)

    @functools.cached_property
    def held_out(self) -> str:
        """The split by which runs are compared: validation, or test without validation data."""
        return "validation" if "validation" in {row["split"] for row in self.rows} else "test"

    def series(self, split: str, name: str) -> tuple[list[Number], list[Number]]:
        """Returns the steps and values of the rows that have a value.

        The value of a list with a number for each device is its mean.
        """
        steps: list[Number] = []
        values: list[Number] = []
        for row in self.rows:
            value: Any = row.get(name)
            numbers: list[Any] = value if isinstance(value, list) else [value]
            if row["split"] == split and numbers and all(map(is_finite, numbers)):
                steps.append(row["step"])
                values.append(statistics.fmean(numbers))
        return steps, values

    @property
    def score(self) -> Number | None:
        """The metric by which the run is ranked: the best value on validation data, or the last
        value on test data, which never determine a choice.
        """
        best = self.summary.get("best", {}).get(self.metric)
        if is_finite(best):
            return best
        _, values = self.series(self.held_out, self.metric)
        if self.held_out == "test":
            return values[-1] if values else None
        return (max if self.larger_is_better else min)(values, default=None)

    @functools.cached_property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics by split at the end, or so far, and metrics of the best step if it is another
        step.
        """
        found = {row["split"]: row for row in self.rows} | self.summary.get("metrics", {})
        best = self.summary.get("best", {})
        if best and best.get("step") != self.steps:
            found[f"best, step {best.get('step')}"] = best
        evaluated = found.get(self.held_out, ("loss", self.metric))
        names = [name for name in evaluated if name not in _POSITION]
        return {
            split: {name: found[split][name] for name in names if name in found[split]}
            for split in sorted(found, key=[*SPLITS, *found].index)
        }

    @functools.cached_property
    def classes(self) -> dict[str, dict[str, Any]]:
        """The metrics of single classes, by class and by title, e.g. `iou, test`."""
        found: dict[str, dict[str, Any]] = {}
        for split, metrics in self.metrics.items():
            for name, value in metrics.items():
                kind, slash, class_name = name.partition("/")
                if slash:
                    found.setdefault(class_name, {})[f"{kind}, {split}"] = value
        return found

    @property
    def marks(self) -> list[tuple[int, str]]:
        """The steps at which the run resumed or diverged, with their labels."""
        return [
            (event["step"], f"{event['event']} at step {event['step']}")
            for event in self.history
            if event["event"] in ("resumed", "diverged")
        ]


def _read_settings(path: pathlib.Path) -> dict[str, Any]:
    settings = RunDirectory(path.parent).load_config().as_given().plain()
    return {name: settings[name] for name in settings_with(TrainConfig, saved=True)}
