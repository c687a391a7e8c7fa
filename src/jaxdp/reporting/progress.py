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
    """Shows how far a split is read, once that has taken a second: a bar on a terminal, which
    vanishes at the end, else a line at the end.
    """

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._started: dict[str, float] = {}
        self._bars: dict[str, rich.progress.Progress] = {}

    def __call__(self, split: str, done: int, total: int) -> None:
        started = self._started.setdefault(split, time.perf_counter())
        if split not in self._bars and time.perf_counter() - started > 1:
            bar = self._bars[split] = rich.progress.Progress(
                f"reading the {split} split",
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                console=self._console,
                transient=self._console.is_terminal,
            )
            bar.add_task("", total=total)
            bar.start()
        if split in self._bars:
            bar = self._bars[split]
            bar.update(bar.task_ids[0], completed=done)
            if done == total:
                bar.stop()


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
        saved = "there is no checkpoint"
        if trained.last_saved is not None:
            saved = f"the last checkpoint is that of step {trained.last_saved}"
        say(f"diverged: {trained.reason}; {saved}")


def _print_result(
    trained: Any, config: TrainConfig, skipped: Mapping[str, Sequence[BadExample]]
) -> None:
    summary, directory = trained.summary, trained.directory
    print_summary(summary, str(directory.path), summary["best_metric"]["name"])
    if trained.was_complete:
        anew, extended = "another --run-dir", "a larger --epochs or --steps"
        if not config.run_dir:  # another length is another folder
            anew, extended = "--resume never", f"--run-dir {directory.path} and {extended}"
        say_complete(trained, config, f"train anew with {anew}, or extend it with {extended}")
        return
    for split, errors in skipped.items():
        first = printable(f"{errors[0].where}: {errors[0].problem}")
        say(f"warning: {len(errors)} bad {split} examples were left out, e.g. {first}")
    if skipped:
        say(f"warning: {directory.file('skipped.csv')} lists what was left out and why")
    if count := summary["skipped_updates"]:
        say(f"warning: {count} updates were skipped: loss or gradients were not finite")
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
    settings = run.changes_text(config)
    files = source_files.text(run.changed_sources(source_files.digests()))
    length = f"epochs: {epochs:g}, " if is_finite(epochs) else ""
    length += f"steps: {trained.summary['steps']}"
    parts = [f"{run.path} is complete ({length}), so nothing was trained"]
    parts += [f"other settings: {settings}"] if settings else []
    text = "; ".join([*parts, *filter(None, [files]), remedy])
    if settings or files:
        warn_again(text)
    elif always:
        say(printable(text))


def say(text: str) -> None:
    """Prints a line for people on standard error."""
    print(text, file=sys.stderr)


def print_summary(summary: Mapping[str, Any], run_dir: str, metric_name: str) -> None:
    """Prints a run's result as a table of a few lines.

    Args:
        metric_name: the metric by which validation data, where there are any, choose the best
            state.
    """
    rows: list[tuple[str, str]] = []
    for split, metrics in summary["metrics"].items():
        rows.append((split, metrics_text(metrics)))
        details = [f"{name} {value:.4f}" for name, value in metrics.items() if "/" in name]
        if details:
            rows.append(("", ", ".join(details[:_MAX_DETAILS])))
    if result := summary.get("result"):  # version 0.1 did not say
        by = f" by validation {metric_name}" if result["state"] == "best" else ""
        rows.append(("result", f"the {result['state']} state{by}, step {result['step']:,}"))
    count = summary.get("workers", summary["devices"])
    strategy = strategy_of_workers(summary)["strategy"]
    how = f"{summary['device_kind']} ({strategy}, batch norm {summary['batch_norm']})"
    length = f"epochs: {summary['epochs']:g}, examples a step: {summary['global_batch_size']:,}"
    rows += [
        ("devices", f"{count} x {how}"),
        ("parameters", f"{summary['parameters']:,}"),
        ("steps", f"{summary['steps']:,} ({length})"),
    ]
    if speed := summary["examples_per_second"]:
        rows.append(("speed", f"{speed:,.0f} examples/s after the first step"))
    seconds = summary["seconds"]
    time_text = f"{seconds['total']:.1f} s"
    if seconds["first_step"] is not None:
        time_text += f", the first step done after {seconds['first_step']:.1f} s"
    rows += [("time", time_text), ("folder", printable(run_dir))]
    # Text, because brackets in a string would be markup.
    title = printable(f"{summary['model']} on {summary['dataset']}: {summary['status']}")
    table = rich.table.Table(title=rich.text.Text(title), show_header=False)
    table.add_column(style="bold")
    for row in rows:
        table.add_row(*row)
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
    count = f" on {metrics['examples']:,} examples" if "examples" in metrics else ""
    return ", ".join(texts) + count


def metric_text(name: str, value: float, digits: int = 2) -> str:
    """Returns a metric as text: accuracies as a percentage, all others as a decimal number."""
    return f"{value:.{digits}%}" if name in _FRACTIONS else f"{value:.{digits + 2}f}"
