"""What does the folder of a run tell, whole or broken?"""

import contextlib
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import yaml

from jaxdp import tasks
from jaxdp.config import OF_ONE_COMMAND, TrainConfig
from jaxdp.registry import ConfigError, shown
from jaxdp.run_directory import Row, RunDirectory, read_lines

NOTHING = "–"  # where a figure is missing
_ENDS = ("done", "stopped", "diverged")


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something that befell a run: resumed, rollback, skipped, stopped or diverged."""

    kind: str
    step: float | int
    text: str


@dataclasses.dataclass(frozen=True)
class Run:
    """Attributes:
    settings: of config.yaml, and the defaults of those that it leaves out; empty without the file.
    summary: what summary.json has, perhaps nothing.
    status: done, stopped, diverged, running or unfinished.
    problems: what is missing or cannot be read.
    """

    name: str
    directory: RunDirectory
    config_text: str
    settings: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]
    history: list[Row]
    status: str
    problems: list[str]
    task: str
    metric: str
    larger_is_better: bool

    def get(self, *names: str) -> Any:
        """Returns what the summary has under these names, one inside the other, None where it has nothing."""
        value: Any = self.summary
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def about(self, name: str) -> Any:
        """Returns what the summary says, or where it says nothing, the history, or the settings."""
        sources = (self.summary, self.history[-1] if self.history else {}, self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    @property
    def versions(self) -> dict[str, str]:
        found = self.get("versions")
        return {name: str(version) for name, version in found.items()} if isinstance(found, dict) else {}

    @property
    def examples_per_second(self) -> float | None:
        found = number(self.get("examples_per_second"))
        rates = [rate for _, rate in self.points("train", "examples_per_second")]
        return statistics.median(rates) if rates and (found is None or self.is_open) else found

    @property
    def steps(self) -> int:
        seen = [int(row["step"]) for row in (*self.rows, *self.history)]
        return max(seen, default=0) if self.is_open else int(number(self.get("steps")) or max(seen, default=0))

    @property
    def is_open(self) -> bool:
        """Whether it goes on, or was killed, after its summary was written."""
        return self.status in ("running", "unfinished")

    def points(self, split: str, name: str) -> list[tuple[float, float]]:
        """Returns (step, value) of the rows that have it; of one value for each device, their mean."""
        found: list[tuple[float, float]] = []
        for row in self.rows:
            values = row.get(name)
            numbers = [number(value) for value in (values if isinstance(values, list) else [values])]
            if row.get("split") == split and numbers and None not in numbers:
                found.append((float(row["step"]), sum(filter(None, numbers)) / len(numbers)))
        return found

    @property
    def best(self) -> float | None:
        """The best figure of the task's metric: of the checkpoints, or else of the evaluations so far."""
        of_checkpoint = number(self.get("best", self.metric))
        if of_checkpoint is not None and not self.is_open:
            return of_checkpoint
        values = [value for _, value in self.points("test", self.metric)]
        return (max if self.larger_is_better else min)(values, default=None)

    def figures(self, split: str) -> dict[str, Any]:
        """Returns the figures of a split at the end, or so far."""
        found = self.get("metrics", split)
        if isinstance(found, dict) and not self.is_open:
            return found
        rows = [row for row in self.rows if row.get("split") == split]
        test = [row for row in self.rows if row.get("split") == "test"]
        names = [name for name in (test[-1] if test else ("loss", self.metric)) if name not in ("step", "epoch", "split")]
        return {name: rows[-1][name] for name in names if rows and name in rows[-1]}

    @property
    def marks(self) -> list[Mark]:
        found = [_skipped(row) for row in self.rows if number(row.get("skipped_updates"))]
        for index, event in enumerate(self.history):
            kind, step, following = event["event"], event["step"], self.history[index + 1 :]
            reason = f": {event['reason']}" if "reason" in event else ""
            if kind in ("started", "resumed") and index:
                found.append(Mark("resumed", step, f"{'resumed after' if step else 'started again at'} step {step}"))
            elif kind == "rollback":
                found.append(Mark(kind, step, f"rolled back from step {step} to {event.get('to_step')}{reason}"))
            elif kind in ("stopped", "diverged") and not following:  # else what follows tells of it
                found.append(Mark(kind, step, f"{kind} at step {step}{reason}"))
        if not self.history and self.status in ("stopped", "diverged"):
            found.append(Mark(self.status, self.steps, f"{self.status} at step {self.steps}"))
        return found


def _skipped(row: Row) -> Mark:
    overflows = f", {row['overflows']} of them overflows" if number(row.get("overflows")) else ""
    return Mark("skipped", row["step"], f"{row['skipped_updates']} updates skipped before step {row['step']}{overflows}")


def number(value: object) -> float | None:
    """Returns a finite number, None for all else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # pyright: ignore[reportArgumentType]


def is_run(folder: pathlib.Path) -> bool:
    run = RunDirectory(folder)
    return any(path.is_file() for path in (run.config_file, run.metrics_file, run.summary_file))


def names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns of each path as many of its last parts as it takes to tell them all apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read(folder: pathlib.Path, name: str) -> Run:
    """Reads what there is."""
    directory, problems = RunDirectory(folder), []
    summary, description = (_read_object(path, problems) for path in (directory.summary_file, directory.dataset_file))
    text, settings = _read_config(directory.config_file, problems)
    rows = [row for row in _read_lines(directory.metrics_file, problems) if number(row.get("step")) is not None]
    if directory.metrics_file.is_file() and not rows:
        problems.append("metrics.jsonl holds no rows")
    history = [
        event
        for event in (_read_lines(directory.history_file, problems) if directory.history_file.is_file() else [])
        if number(event.get("step")) is not None and isinstance(event.get("event"), str)
    ]
    status = str(summary.get("status", "unfinished"))
    if history:
        status = history[-1]["event"] if history[-1]["event"] in _ENDS else "unfinished"
    if status == "unfinished" and directory.is_being_written():
        status = "running"
    task = str(summary.get("task") or description.get("task") or settings.get("task") or "")
    metric, larger = _ranking(task)
    return Run(name, directory, text, settings, rows, summary, history, status, problems, task, metric, larger)


def _ranking(task: str) -> tuple[str, bool]:
    """Returns the figure by which the task ranks, and whether larger is better."""
    with contextlib.suppress(ConfigError):  # a task of another package, or of none
        return tasks.create(task, num_classes=2).best_metric
    return "loss", False


def _read_object(path: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        problems.append(f"there is no {path.name}")
        return {}
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        problems.append(f"{path.name} cannot be read")
        return {}
    return content


def _read_lines(path: pathlib.Path, problems: list[str]) -> list[Row]:
    if not path.is_file():
        problems.append(f"there is no {path.name}")
        return []
    try:
        return read_lines(path)
    except OSError:
        problems.append(f"{path.name} cannot be read")
        return []


def _read_config(path: pathlib.Path, problems: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns the file's text and its settings, of another version's file those that it has."""
    if not path.is_file():
        problems.append(f"there is no {path.name}")
        return "", {}
    try:
        text = path.read_text()
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise ValueError(text)
    except (OSError, ValueError, yaml.YAMLError):
        problems.append(f"{path.name} cannot be read")
        return "", {}
    settings = dataclasses.asdict(TrainConfig()) | {str(name): value for name, value in content.items()}
    return text, {name: value for name, value in settings.items() if name not in OF_ONE_COMMAND}


def fact_text(run: Run, name: str) -> str:
    """Returns what is known of a run under this name, for a person."""
    found = run.about(name)
    return NOTHING if found is None else setting_text(found)


def setting_text(value: object) -> str:
    """Returns a setting for a person."""
    if value is None or isinstance(value, bool):
        return {None: "default", True: "yes", False: "no"}[value]
    return shown(value) or "none"
