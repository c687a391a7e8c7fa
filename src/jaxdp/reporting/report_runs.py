"""Reads the folder of a run for the report, whether it is complete or damaged."""

import contextlib
import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdp import deprecation, tasks
from jaxdp.config import TrainConfig, settings_with
from jaxdp.parsing import is_finite, parse_yaml
from jaxdp.registry import ConfigError
from jaxdp.reporting.report_figures import BASE, Number
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import DamagedFile, Row, read_object, read_rows, read_text, rows_count

SPLITS = ("train", "validation", "test")
_ENDS = ("done", "stopped", "diverged")
_RESULTS: dict[str, Any] = {"metrics": {}, "best": {}, "steps": None, "examples_per_second": None}
# Fields of a summary that the page needs, with their values if they are missing.
_SUMMARY: dict[str, Any] = _RESULTS | {"seconds": {}, "versions": {}}


@dataclasses.dataclass(frozen=True)
class Mark:
    """An event at a step; `kind` is a key of MARKERS."""

    kind: str
    step: Number
    text: str


class RunRecord:
    """What the folder of a run says, whether it is complete or damaged.

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

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.color = 0
        self.problems: list[str] = []
        summary = deprecation.strategy_of_workers(self._read("summary.json", read_object, {}))
        self.dataset: dict[str, Any] = self._read("dataset.json", read_object, {})
        self.config_text, self.settings = self._read("config.yaml", _read_settings, ("", {}))
        self.rows = self._read_lines("metrics.jsonl")
        if (folder / "metrics.jsonl").is_file() and not self.rows:
            self.problems.append("metrics.jsonl holds no rows")
        has_history = (folder / "history.jsonl").exists()
        self.history = self._read_lines("history.jsonl") if has_history else []
        self.status: str = self.history[-1]["event"] if self.history else summary.get("status", "")
        if self.status not in _ENDS:
            is_running = RunDirectory(folder).is_being_written()
            self.status = "running" if is_running else "unfinished"
            summary |= _RESULTS
        known = {name: value for name, value in summary.items() if value is not None}
        self.summary = _SUMMARY | known
        task = self.dataset.get("task") or self.fact("task")
        self.metric, self.larger_is_better = "loss", False
        with contextlib.suppress(ConfigError):  # a task of another package, or none
            best_metric = tasks.create(str(task), num_classes=2).best_metric
            self.metric, self.larger_is_better = best_metric

    def _read(self, name: str, load: Callable[[pathlib.Path], Any], empty: Any) -> Any:
        try:
            (self.folder / name).stat()  # raises if there is no file
            return load(self.folder / name)
        except FileNotFoundError:
            self.problems.append(f"there is no {name}")
        except (OSError, ValueError):
            self.problems.append(f"{name} cannot be read")
        return empty

    def _read_lines(self, name: str) -> list[Row]:
        rows, lost = self._read(name, read_rows, ([], 0))
        if lost:
            self.problems.append(f"{rows_count(lost)} of {name} cannot be read")
        return rows

    def fact(self, name: str) -> Any:
        """Returns what the summary says, else the history, else the settings.

        The devices of a run with workers are its workers.
        """
        workers = self.fact("workers") if name == "devices" else None
        if workers is not None:
            return f"{workers} worker{'s' if workers != 1 else ''}"
        sources = (self.summary, *reversed(self.history), self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    @property
    def examples_per_second(self) -> Number | None:
        _, rates = self.series("train", "examples_per_second")
        return self.summary["examples_per_second"] or (statistics.median(rates) if rates else None)

    @functools.cached_property
    def steps(self) -> int:
        return self.summary["steps"] or self._last_step

    @functools.cached_property
    def _last_step(self) -> int:
        return max((int(row["step"]) for row in (*self.rows, *self.history)), default=0)

    @functools.cached_property
    def held_out(self) -> str:
        """The split by which runs are compared: validation, or test where there is none."""
        splits = {row["split"] for row in self.rows}
        return "validation" if "validation" in splits else "test"

    def series(self, split: str, name: str) -> tuple[list[Number], list[Number]]:
        """Returns the steps and values of the rows that have one.

        The value of a list with a number for each device is their mean.
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
        last = {row["split"]: row for row in self.rows}
        names = last.get(self.held_out, ("loss", self.metric))
        found = {
            split: {name: row[name] for name in names if name in row} for split, row in last.items()
        }
        found |= self.summary["metrics"]
        best = self.summary["best"]
        if best and best.get("step") != self.steps:
            found[f"best, step {best.get('step')}"] = best
        hidden = ("step", "epoch", "split")
        shown = {
            split: {name: value for name, value in found[split].items() if name not in hidden}
            for split in sorted(found, key=[*SPLITS, *found].index)
        }
        return {split: values for split, values in shown.items() if values}

    @functools.cached_property
    def clocks(self) -> dict[str, tuple[Any, Any]]:
        """By x axis, as far as the folder says it: steps, and positions, linear in between.

        Seconds are the time of the steps alone, without evaluation, saving and compilation.
        """
        end = max(self.steps, self._last_step, 1)
        clocks: dict[str, tuple[Any, Any]] = {BASE: ([0, end], [0, end])}
        if steps_per_epoch := self._steps_per_epoch():
            clocks["epoch"] = ([0, end], [0, end / steps_per_epoch])
        steps, paces = map(np.asarray, self.series("train", "step_seconds"))
        if len(steps):
            # Steps that a run repeats after it resumes count once.
            is_new = (steps > np.maximum.accumulate([0, *steps[:-1]])) & (paces > 0)
            ends = np.append(steps[is_new], end)
            seconds = np.diff(ends, prepend=0) * np.append(paces[is_new], paces[-1])
            clocks["time"] = ([0, *ends], [0, *np.cumsum(seconds)])
        return clocks

    def x(self, steps: Sequence[Number] | Number) -> dict[str, Any]:
        """Returns the positions of steps on each x axis that is known."""
        return {key: np.interp(steps, *clock) for key, clock in self.clocks.items()}

    def _steps_per_epoch(self) -> Number | None:
        examples, batch = self.dataset.get("examples", {}), self.fact("global_batch_size")
        if is_finite(batch) and examples.get("train", 0) >= batch > 0:
            return examples["train"] // batch  # the rest of an epoch is dropped
        epochs = self.summary.get("epochs", 0)
        return self.steps / epochs if epochs > 0 else None

    @functools.cached_property
    def processes(self) -> dict[Number, Number]:
        """With how many processes the run went on, by step, without what was trained again."""
        found: dict[Number, Number] = {}
        for event in self.history:
            if event["event"] in ("started", "resumed") and is_finite(event.get("processes")):
                found = {step: found[step] for step in found if step < event["step"]}
                found[event["step"]] = event["processes"]
        return found

    @functools.cached_property
    def marks(self) -> list[Mark]:
        """What happened to the run."""
        marks: list[Mark] = []
        for row in self.rows:
            if is_finite(skipped := row.get("skipped_updates")) and skipped:
                text = f"{skipped} updates skipped before step {row['step']}"
                if is_finite(overflows := row.get("overflows")) and overflows:
                    text += f", {overflows} of them overflows"
                marks.append(Mark("updates skipped", row["step"], text))
        before = None
        for index, event in enumerate(self.history):
            kind, step = event["event"], event["step"]
            reason = f": {event['reason']}" if "reason" in event else ""
            if kind in ("started", "resumed"):
                now = event.get("processes")
                text = f"{'resumed after' if step else 'started again at'} step {step}"
                if before and now and before != now:
                    text += f", on {now} processes instead of {before}"
                marks += [Mark("resumed", step, text)] * bool(index)
                before = now
            elif kind == "rollback":  # of versions before 0.3
                text = f"rolled back from step {step} to {event.get('to_step')}{reason}"
                marks.append(Mark("rolled back", step, text))
            elif kind in ("stopped", "diverged") and event is self.history[-1]:
                marks.append(Mark(kind, step, f"{kind} at step {step}{reason}"))
        if not self.history and self.status in ("stopped", "diverged"):
            marks.append(Mark(self.status, self.steps, f"{self.status} at step {self.steps}"))
        return marks


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
