"""Reads the folder of a run for the report, whether it is whole or broken."""

import contextlib
import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp import deprecation, tasks
from jaxdp.config import TrainConfig, settings_with
from jaxdp.parsing import is_finite, parse_yaml
from jaxdp.registry import ConfigError, shown
from jaxdp.reporting.report_figures import Mark
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import DamagedFile, Row, read_object, read_rows, read_text, rows_count

NOTHING = "–"  # where a value is missing
_ENDS = ("done", "stopped", "diverged")


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of a run."""

    name: str
    directory: RunDirectory
    config_text: str
    # Of config.yaml, and the defaults of those that it leaves out; empty without the file.
    settings: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]  # what summary.json has, perhaps nothing
    history: list[Row]
    status: str  # done, stopped, diverged, running or unfinished
    problems: list[str]  # what is missing or cannot be read
    task: str
    metric: str
    larger_is_better: bool
    color: int = 0  # index of its color on the page
    # What dataset.json has, perhaps nothing.
    description: dict[str, Any] = dataclasses.field(default_factory=dict)

    def get(self, *names: str) -> Any:
        """Returns what the summary has under these names, one inside the other, None where it has
        nothing.
        """
        value: Any = self.summary
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def about(self, name: str) -> Any:
        """Returns what the summary says, or where it says nothing, the history, or the settings."""
        # Workers that join tell no number of devices.
        told = next((event for event in reversed(self.history) if name in event), {})
        sources = (self.summary, told, self.settings)
        return next((source[name] for source in sources if source.get(name) is not None), None)

    @property
    def workers(self) -> int | None:
        """How many workers computed; None of a run without."""
        return self.about("workers")

    @property
    def widths(self) -> list[tuple[float, float]]:
        """With how many processes it went on after which step, in the order of time."""
        starts = [event for event in self.history if event["event"] in ("started", "resumed")]
        return [
            (float(event["step"]), count)
            for event in starts
            if (count := number(event.get("processes"))) is not None
        ]

    @property
    def versions(self) -> dict[str, str]:
        found = self.get("versions")
        return (
            {name: str(version) for name, version in found.items()}
            if isinstance(found, dict)
            else {}
        )

    @property
    def examples_per_second(self) -> float | None:
        found = number(self.get("examples_per_second"))
        rates = [rate for _, rate in self.points("train", "examples_per_second")]
        return statistics.median(rates) if rates and (found is None or self.is_open) else found

    @property
    def steps(self) -> int:
        seen = [int(row["step"]) for row in (*self.rows, *self.history)]
        return (
            max(seen, default=0)
            if self.is_open
            else int(number(self.get("steps")) or max(seen, default=0))
        )

    @property
    def is_open(self) -> bool:
        """Whether it goes on, or was killed, after its summary was written."""
        return self.status in ("running", "unfinished")

    @property
    def held_out(self) -> str:
        """The split by which runs are compared: validation, or test where there is none."""
        return (
            "validation" if any(row.get("split") == "validation" for row in self.rows) else "test"
        )

    def points(self, split: str, name: str) -> list[tuple[float, float]]:
        """Returns (step, value) of the rows that have it.

        Of one value for each device, their mean.
        """
        found: list[tuple[float, float]] = []
        for row in self.rows:
            values = row.get(name)
            numbers = [
                number(value) for value in (values if isinstance(values, list) else [values])
            ]
            if row.get("split") == split and numbers and None not in numbers:
                found.append((float(row["step"]), sum(filter(None, numbers)) / len(numbers)))
        return found

    @property
    def changes(self) -> list[tuple[str, int, str, str]]:
        """The settings that were changed when the run was resumed: name, after which step, former
        and new value.
        """
        found = []
        for event in self.history:
            changed = event.get("changed")
            for name, values in changed.items() if isinstance(changed, dict) else ():
                if isinstance(values, list) and len(values) == 2:
                    old, new = map(setting_text, values)
                    found.append((str(name).replace("_", " "), int(event["step"]), old, new))
        return found

    @property
    def score(self) -> float | None:
        """The task's metric by which the run is ranked: the best on validation data, or without any
        that of the last evaluation.
        """
        of_checkpoint = number(self.get("best", self.metric))
        if of_checkpoint is not None and not self.is_open:
            return of_checkpoint
        values = [value for _, value in self.points(self.held_out, self.metric)]
        if self.held_out == "test":  # test data choose nothing
            return values[-1] if values else None
        return (max if self.larger_is_better else min)(values, default=None)

    def metrics(self, split: str) -> dict[str, Any]:
        """Returns the metrics of a split at the end, or so far."""
        found = self.get("metrics", split)
        if isinstance(found, dict) and not self.is_open:
            return found
        rows = [row for row in self.rows if row.get("split") == split]
        evaluated = [row for row in self.rows if row.get("split") == self.held_out]
        names = [
            name
            for name in (evaluated[-1] if evaluated else ("loss", self.metric))
            if name not in ("step", "epoch", "split")
        ]
        return {name: rows[-1][name] for name in names if rows and name in rows[-1]}

    @property
    def marks(self) -> list[Mark]:
        found = []
        for row in self.rows:
            if number(row.get("skipped_updates")):
                overflows = (
                    f", {row['overflows']} of them overflows"
                    if number(row.get("overflows"))
                    else ""
                )
                text = (
                    f"{row['skipped_updates']} updates skipped before step {row['step']}{overflows}"
                )
                found.append(Mark("updates skipped", row["step"], text))
        for index, event in enumerate(self.history):
            kind, step, following = event["event"], event["step"], self.history[index + 1 :]
            reason = f": {event['reason']}" if "reason" in event else ""
            if kind in ("started", "resumed") and index:
                began = f"{'resumed after' if step else 'started again at'} step {step}"
                found.append(Mark("resumed", step, began + _other_width(self.history[: index + 1])))
            elif kind == "rollback":
                found.append(
                    Mark(
                        "rolled back",
                        step,
                        f"rolled back from step {step} to {event.get('to_step')}{reason}",
                    )
                )
            elif kind in ("stopped", "diverged") and not following:  # else what follows tells of it
                found.append(Mark(kind, step, f"{kind} at step {step}{reason}"))
        if not self.history and self.status in ("stopped", "diverged"):
            found.append(Mark(self.status, self.steps, f"{self.status} at step {self.steps}"))
        return found


def _other_width(history: Sequence[Row]) -> str:
    """Says of a run that begins again whether it has another number of processes than before."""
    *_, before, now = [
        None,
        *(event.get("processes") for event in history if event["event"] in ("started", "resumed")),
    ]
    return f", on {now} processes instead of {before}" if before and now and before != now else ""


def number(value: object) -> float | None:
    """Returns a finite number, None for all else."""
    return float(value) if is_finite(value) else None


def is_run(folder: pathlib.Path) -> bool:
    """Tells whether a folder holds the settings, metrics or summary of a run."""
    run = RunDirectory(folder)
    return any(
        path.is_file()
        for path in (run.file("config.yaml"), run.file("metrics.jsonl"), run.file("summary.json"))
    )


def names_of(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns of each path as many of its last parts as it takes to tell them all apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read(folder: pathlib.Path, name: str) -> Run:
    """Reads what there is, and notes what is missing."""
    directory, problems = RunDirectory(folder), []
    summary = _read(directory.file("summary.json"), _object, {}, problems)
    summary = deprecation.strategy_of_workers(summary)
    description = _read(directory.file("dataset.json"), _object, {}, problems)
    text, settings = _read(directory.file("config.yaml"), _settings, ("", {}), problems)
    rows = _rows(directory.file("metrics.jsonl"), problems)
    if directory.file("metrics.jsonl").is_file() and not rows:
        problems.append("metrics.jsonl holds no rows")
    history = (
        _rows(directory.file("history.jsonl"), problems)
        if directory.file("history.jsonl").exists()
        else []
    )
    history = [event for event in history if isinstance(event.get("event"), str)]
    status = str(summary.get("status", "unfinished"))
    if history:
        status = history[-1]["event"] if history[-1]["event"] in _ENDS else "unfinished"
    if status == "unfinished" and directory.is_being_written():
        status = "running"
    task = str(summary.get("task") or description.get("task") or settings.get("task") or "")
    metric, larger = "loss", False
    with contextlib.suppress(ConfigError):  # a task of another package, or of none
        metric, larger = tasks.create(task, num_classes=2).best_metric
    return Run(
        name,
        directory,
        text,
        settings,
        rows,
        summary,
        history,
        status,
        problems,
        task,
        metric,
        larger,
        description=description,
    )


def _rows(path: pathlib.Path, problems: list[str]) -> list[Row]:
    """Returns the rows that have a step; those that cannot be read are a problem."""
    rows, lost = _read(path, lambda path: read_rows(path, checked=False), ([], 0), problems)
    if lost:
        problems.append(f"{rows_count(lost)} of {path.name} cannot be read")
    return [row for row in rows if number(row.get("step")) is not None]


def _read(
    path: pathlib.Path, load: Callable[[pathlib.Path], Any], empty: Any, problems: list[str]
) -> Any:
    """Returns what a file holds, or `empty` and a problem more."""
    try:
        path.stat()  # raises where there is none
        return load(path)
    except FileNotFoundError:
        problems.append(f"there is no {path.name}")
    except (OSError, ValueError):
        problems.append(f"{path.name} cannot be read")
    return empty


def _object(path: pathlib.Path) -> dict[str, Any]:
    return read_object(path, checked=False)


def _settings(path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a file of settings, and the settings: also those that it leaves out or
    that only another version has.
    """
    text = read_text(path)
    content = parse_yaml(text)
    if not isinstance(content, dict):
        raise DamagedFile(path, "it holds no settings")
    stored = {str(name): value for name, value in content.items()}
    settings = TrainConfig().plain() | deprecation.drop_removed(stored)
    of_command = settings_with(TrainConfig, saved=False)
    return text, {name: value for name, value in settings.items() if name not in of_command}


def setting_text(value: object, missing: str = "default") -> str:
    """Returns a setting for a person."""
    if value is None or isinstance(value, bool):
        return {None: missing, True: "yes", False: "no"}[value]
    return shown(value) or "none"


def fact_text(run: Run, name: str) -> str:
    """Returns what is known of a run under this name, for a person."""
    if run.workers and name == "devices":
        return f"{run.workers} worker{'s' if run.workers != 1 else ''}"
    return setting_text(run.about(name), missing=NOTHING)
