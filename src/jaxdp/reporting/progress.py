"""Shows the progress of a run on standard error, and its results on standard output."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table
import rich.text

from jaxdp.config import TrainConfig
from jaxdp.config.deprecation import strategy_of_workers
from jaxdp.data.sources import BadExample
from jaxdp.rundir import source_files
from jaxdp.text.console import say_again, warn_again
from jaxdp.text.flags import flag, template_of
from jaxdp.text.messages import printable
from jaxdp.text.parsing import is_finite

_FRACTIONS = ("accuracy", "top5_accuracy", "pixel_accuracy")
_MAX_DETAILS = 40  # maximum number of metrics of single classes


def create_bar(title: str, *, hidden: bool = False) -> rich.progress.Progress:
    """Returns a bar on standard error that vanishes at the end, and that is hidden without a
    terminal.
    """
    console = rich.console.Console(stderr=True, emoji=False)
    return rich.progress.Progress(
        title,
        rich.progress.BarColumn(bar_width=None),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        expand=True,
        redirect_stdout=False,  # it would redirect results to the bar's stream
        disable=hidden or not console.is_terminal,
    )


class Reading:
    """Shows the progress of reading a split."""

    def __init__(self) -> None:
        self._bar = create_bar("reading the {task.description} split")
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __call__(self, split: str, done: int, total: int) -> None:
        if split not in self._tasks:
            self._tasks[split] = self._bar.add_task(split, total=total)
            self._bar.start()
        self._bar.update(self._tasks[split], completed=done)
        if done == total:
            self._bar.remove_task(self._tasks.pop(split))
            self._bar.stop()


def print_outcome(
    trained: Any, config: TrainConfig, skipped: Mapping[str, Sequence[BadExample]] | None
) -> None:
    """Prints the result of a run as a table on standard output, and its warnings on standard error.

    Args:
        trained: a `training.outcome.RunOutcome` with a run directory.
        config: the settings of the command.
        skipped: bad examples that were left out, by split; None in all processes except the first.
            These processes only print why the run ended early, because each may have its own log.
    """
    if skipped is not None:
        _print_result(trained, config, skipped)
    if trained.status == "stopped":
        say_again(
            f"stopped by a signal after saving step {trained.step}; the same command continues"
        )
    elif trained.status == "diverged":
        saved = "there is no checkpoint"
        if trained.last_saved is not None:
            saved = f"the last checkpoint is of step {trained.last_saved}"
        say_again(f"diverged: {template_of(trained.reason)}; {saved}")


def _print_result(
    trained: Any, config: TrainConfig, skipped: Mapping[str, Sequence[BadExample]]
) -> None:
    summary, directory = trained.summary, trained.directory
    print_summary(summary, str(directory.path), summary["best_metric"]["name"])
    if trained.was_complete:
        anew = f"another {flag('run_dir')}"
        extended = f"a larger {flag('epochs')} or {flag('steps')}"
        if not config.run_dir:  # another length gives another folder
            anew = flag("resume", "never")
            extended = f"{flag('run_dir', str(directory.path))} and {extended}"
        say_complete(trained, config, f"train anew with {anew}, or extend it with {extended}")
        return
    for split, errors in skipped.items():
        first = f"{errors[0].where}: {errors[0].problem.template}"
        warn_again(f"{len(errors)} bad {split} examples were left out, e.g. {first}")
    if skipped:
        warn_again(f"{directory.file('skipped.csv')} lists what was left out and why")
    if count := summary["skipped_updates"]:
        warn_again(f"{count} updates were skipped: loss or gradients were not finite")
    if trained.status == "done" and trained.reason:
        say_again(f"ended early at step {trained.step}: {trained.reason}")


def say_complete(trained: Any, config: TrainConfig, remedy: str, *, always: bool = True) -> None:
    """Prints that a run was already complete.

    The line is a warning if settings or code have changed since.

    Args:
        trained: a `training.outcome.RunOutcome` with a run directory.
        config: the requested settings.
        remedy: how to train anyway.
        always: whether to print the line even if nothing has changed.
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
        say_again(text)


def print_summary(summary: Mapping[str, Any], run_dir: str, metric_name: str) -> None:
    """Prints a run's result as a table of a few lines.

    Args:
        metric_name: the metric by which validation data, if any, determine the best state.
    """
    rows: list[tuple[str, str]] = []
    for split, metrics in summary["metrics"].items():
        rows.append((split, metrics_text(metrics)))
        details = [f"{name} {value:.4f}" for name, value in metrics.items() if "/" in name]
        if details:
            rows.append(("", ", ".join(details[:_MAX_DETAILS])))
    if result := summary.get("result"):  # version 0.1 did not record it
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
    # Text, because brackets in a string would be interpreted as markup.
    title = printable(f"{summary['model']} on {summary['dataset']}: {summary['status']}")
    table = rich.table.Table(title=rich.text.Text(title), show_header=False)
    table.add_column(style="bold")
    for row in rows:
        table.add_row(*row)
    rich.console.Console(markup=False, emoji=False).print(table)
    if same := summary.get("same_bits_with"):
        print(f"SHA-256 {summary['arrays_sha256']}")
        print(f"on any number of devices, processes and workers, with {printable(same)}")


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns e.g. `loss 0.0259, accuracy 99.17% on 360 examples`."""
    texts = [
        f"{name} {value:.2%}" if name in _FRACTIONS else f"{name} {value:.4f}"
        for name, value in metrics.items()
        if name != "examples" and "/" not in name
    ]
    count = f" on {metrics['examples']:,} examples" if "examples" in metrics else ""
    return ", ".join(texts) + count
