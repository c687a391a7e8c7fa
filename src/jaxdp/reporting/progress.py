"""Shows a person how far a run is, on standard error, and its results, on standard output."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table
import rich.text

from jaxdp import source_files
from jaxdp.config import TrainConfig
from jaxdp.data.sources import BadExample
from jaxdp.deprecation import strategy_of_workers
from jaxdp.parsing import is_finite, printable
from jaxdp.rundir.read import warn_again
from jaxdp.units import bytes_text

_FRACTIONS = ("accuracy", "top5_accuracy", "pixel_accuracy")
_MAX_DETAILS = 40  # metrics of single classes that a person still reads


class Reading:
    """Shows how far a dataset is read, once that has taken a second: a bar on a terminal, else a
    line per split.
    """

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._started, self._split = 0.0, ""
        self._bar: rich.progress.Progress | None = None

    def __call__(self, split: str, done: int, total: int) -> None:
        if split != self._split:
            self._started, self._split = time.perf_counter(), split
        elif self._bar is None and self._started and time.perf_counter() - self._started > 1:
            text = f"reading the {split} split"
            if self._console.is_terminal:
                columns = (
                    rich.progress.TextColumn(text),
                    rich.progress.BarColumn(),
                    rich.progress.MofNCompleteColumn(),
                )
                self._bar = rich.progress.Progress(*columns, console=self._console, transient=True)
                self._task = self._bar.add_task("", total=total)
                self._bar.start()
            else:
                self._started = 0.0
                self._console.print(f"{text}: {total:,} examples", highlight=False)
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
            if done == total:
                self._bar.stop()
                self._bar = None


def print_outcome(
    trained: Any, config: TrainConfig, skipped: Mapping[str, Sequence[BadExample]] | None
) -> None:
    """Prints what a run ended with: a table on standard output, and what there is to warn of on
    standard error.

    Args:
        trained: a `training.loop.RunOutcome` with a run directory.
        config: the settings that the command was given.
        skipped: bad examples that were left out, by split; None in all processes but the first,
            which say no more than why the run did not come to its end, as each may have a log of
            its own.
    """
    if skipped is not None:
        _print_result(trained, config, skipped)
    if trained.status == "stopped":
        say(f"stopped by a signal after saving step {trained.step}; the same command continues")
    elif trained.status == "diverged":
        saved = (
            "there is no checkpoint"
            if trained.last_saved is None
            else f"the last checkpoint is that of step {trained.last_saved}"
        )
        say(f"diverged: {trained.reason}; {saved}")


def _print_result(
    trained: Any, config: TrainConfig, skipped: Mapping[str, Sequence[BadExample]]
) -> None:
    summary = trained.summary
    print_summary(summary, str(trained.directory.path), summary["best_metric"]["name"])
    if trained.was_complete:
        anew, extended = "another --run-dir", "a larger --epochs or --steps"
        if not config.run_dir:  # another length is another folder
            anew, extended = "--resume never", f"--run-dir {trained.directory.path} and {extended}"
        say_complete(trained, config, f"train anew with {anew}, or extend it with {extended}")
        return
    for split, errors in skipped.items():
        first = printable(f"{errors[0].where}: {errors[0].problem}")
        say(f"warning: {len(errors)} bad {split} examples were left out, e.g. {first}")
    if skipped:
        say(f"warning: {trained.directory.file('skipped.csv')} lists what was left out and why")
    if summary["skipped_updates"]:
        say(
            f"warning: {summary['skipped_updates']} updates were skipped: loss or gradients were"
            " not finite"
        )
    if trained.status == "done" and trained.reason:
        say(f"ended early at step {trained.step}: {trained.reason}")


def say_complete(trained: Any, config: TrainConfig, remedy: str, *, always: bool = True) -> None:
    """Says that a run was complete before it was asked for.

    The line is a warning if settings or code have changed since then.

    Args:
        trained: a `training.loop.RunOutcome` with a run directory.
        config: the settings that were asked for.
        remedy: how to train nevertheless.
        always: whether to say so even if nothing has changed.
    """
    run, epochs = trained.directory, trained.summary.get("epochs")
    length = f"epochs: {epochs:g}, " if is_finite(epochs) else ""
    settings = run.changes_text(config)
    files = source_files.text(run.changed_sources(source_files.digests()))
    length += f"steps: {trained.summary['steps']}"
    parts = [f"{run.path} is complete ({length}), so nothing was trained"]
    parts += [f"other settings: {settings}"] * bool(settings) + [files] * bool(files) + [remedy]
    if settings or files:
        warn_again("; ".join(parts))
    elif always:
        say(printable("; ".join(parts)))


def say(text: str) -> None:
    """Prints a line for people on standard error."""
    print(text, file=sys.stderr)


def print_summary(summary: Mapping[str, Any], run_dir: str, metric_name: str) -> None:
    """Prints a run's result as a table of a few lines.

    Args:
        metric_name: the metric by which validation data, where there are any, choose the best
            state.
    """
    # Text, because brackets in a string would be markup.
    title = rich.text.Text(
        printable(f"{summary['model']} on {summary['dataset']}: {summary['status']}")
    )
    table = rich.table.Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for split, metrics in summary["metrics"].items():
        table.add_row(split, metrics_text(metrics))
        if details := [f"{name} {value:.4f}" for name, value in metrics.items() if "/" in name][
            :_MAX_DETAILS
        ]:
            table.add_row("", ", ".join(details))
    if result := summary.get("result"):  # version 0.1 did not say
        by = f" by validation {metric_name}" if result["state"] == "best" else ""
        table.add_row("result", f"the {result['state']} state{by}, step {result['step']:,}")
    count = summary.get("workers", summary["devices"])
    strategy = strategy_of_workers(summary)["strategy"]
    devices = f"{count} x {summary['device_kind']} ({strategy}, batch norm {summary['batch_norm']})"
    seconds = summary["seconds"]
    table.add_row("devices", devices)
    table.add_row("parameters", f"{summary['parameters']:,}")
    table.add_row(
        "steps",
        f"{summary['steps']:,} (epochs: {summary['epochs']:g}, examples a step:"
        f" {summary['global_batch_size']:,})",
    )
    if summary["examples_per_second"]:
        table.add_row(
            "speed", f"{summary['examples_per_second']:,.0f} examples/s after the first step"
        )
    first = (
        ""
        if seconds["first_step"] is None
        else f", the first step done after {seconds['first_step']:.1f} s"
    )
    table.add_row("time", f"{seconds['total']:.1f} s{first}")
    table.add_row("folder", printable(run_dir))
    rich.console.Console(markup=False, emoji=False).print(table)


def state_bytes_text(state_bytes: dict[str, int]) -> str:
    """Returns a line that says how much memory the state takes on each device and in all."""
    return (
        f"state: {bytes_text(state_bytes['per_device'])} on each device,"
        f" {bytes_text(state_bytes['replicated'])} in all"
    )


def metrics_text(metrics: Mapping[str, float], digits: int = 2) -> str:
    """Returns e.g. `loss 0.0259, accuracy 99.17% on 360 examples`.

    `digits` are those of a percentage.
    """
    texts = [
        f"{name} {metric_text(name, value, digits)}"
        for name, value in metrics.items()
        if name != "examples" and "/" not in name
    ]
    return ", ".join(texts) + (
        f" on {metrics['examples']:,} examples" if "examples" in metrics else ""
    )


def metric_text(name: str, value: float, digits: int = 2) -> str:
    """Returns a metric as text: accuracies as a percentage, all others as a decimal number."""
    return f"{value:.{digits}%}" if name in _FRACTIONS else f"{value:.{digits + 2}f}"
