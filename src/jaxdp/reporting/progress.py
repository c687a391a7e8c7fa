"""What does a person see while a run trains, and at its end? Progress on standard error, results on standard output."""

from collections.abc import Mapping
from typing import Any

import rich.console
import rich.progress
import rich.table

Row = dict[str, Any]


class Progress:
    """A bar on a terminal; a line per row elsewhere."""

    def __init__(self, *, start: int, total_steps: int, steps_per_epoch: int) -> None:
        self._console = rich.console.Console(stderr=True)
        self._steps_per_epoch, self._total_steps = steps_per_epoch, total_steps
        self._epochs = -(-total_steps // steps_per_epoch)
        self._figures = {"train": "", "test": ""}
        self._bar: rich.progress.Progress | None = None
        if self._console.is_terminal:
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("epoch {task.fields[epoch]}"),
                rich.progress.BarColumn(bar_width=24),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[figures]}"),
                rich.progress.TimeRemainingColumn(compact=True),
                console=self._console,
                refresh_per_second=4,  # drawing competes with the step for the CPU
            )
            self._task = self._bar.add_task("", total=total_steps, completed=start, epoch=self._epoch(start), figures="compiling")
            self._bar.start()

    def _epoch(self, step: int) -> str:
        return f"{max(step - 1, 0) // self._steps_per_epoch + 1}/{self._epochs}"

    def advance(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, epoch=self._epoch(step))

    def write(self, row: Row) -> None:
        text = f"loss {row['loss']:.4f}  " + "  ".join(
            f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"
            for name, value in row.items()
            if name not in ("step", "epoch", "split", "loss", "examples", "learning_rate", "step_seconds", "input_wait_fraction")
            and name != "examples_per_second"
        )
        if "examples_per_second" in row:
            text += f"  {row['examples_per_second']:,.0f} examples/s"
        self._figures[row["split"]] = text
        if self._bar is not None:
            shown = "  ".join(f"{split} {figures}" for split, figures in self._figures.items() if figures)
            self._bar.update(self._task, figures=shown)
        else:
            place = f"step {row['step']}/{self._total_steps}  epoch {row['epoch']}/{self._epochs}  {row['split']:5}  "
            self._console.print(place + text, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def print_summary(summary: Mapping[str, Any], run_dir: str) -> None:
    """Prints a run's result as a table of a few lines."""
    table = rich.table.Table(title=f"{summary['model']} on {summary['dataset']}: {summary['status']}", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for split, figures in summary["metrics"].items():
        table.add_row(split, figures_text(figures))
    if summary["best"]:
        best = dict(summary["best"])
        table.add_row("best checkpoint", f"step {best.pop('step')}: {figures_text(best)}")
    devices = f"{summary['devices']} {summary['device_kind']} ({summary['strategy']}, batch norm {summary['batch_norm']})"
    seconds = summary["seconds"]
    table.add_row("devices", devices)
    table.add_row("parameters", f"{summary['parameters']:,}")
    table.add_row("steps", f"{summary['steps']:,} ({summary['epochs']:g} epochs of {summary['global_batch_size']} examples a step)")
    if summary["examples_per_second"]:
        table.add_row("speed", f"{summary['examples_per_second']:,.0f} examples/s after the first step")
    first = "" if seconds["first_step"] is None else f", the first step done after {seconds['first_step']:.1f} s"
    table.add_row("time", f"{seconds['total']:.1f} s{first}")
    table.add_row("folder", run_dir)
    rich.console.Console().print(table)


def figures_text(figures: Mapping[str, float]) -> str:
    parts = [f"accuracy {figures['accuracy']:.2%}"] if "accuracy" in figures else []
    parts += [f"{name} {value:.4f}" for name, value in figures.items() if name not in ("accuracy", "examples")]
    return ", ".join(parts) + f" on {figures['examples']:,} examples"
