"""Shows how far a run is: a bar on a terminal, one line that updates in a notebook, a line per row
elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# IPython need not be there to check types

import sys
from typing import Any

import rich.console
import rich.progress

from jaxdp.callbacks import register
from jaxdp.events import Logged, Run, Started, StepEnd
from jaxdp.parsing import printable
from jaxdp.reporting.progress import metrics_text, state_bytes_text
from jaxdp.rundir.read import Row


@register("progress")
class Progress:
    """Shows loss, one more metric and the speed on standard error."""

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._bar: rich.progress.Progress | None = None
        self._cell: Any = None  # the output of a cell in a notebook

    def on_start(self, run: Run, event: Started) -> None:
        """Begins to show."""
        self._intervals = run.setup.intervals
        self._names = tuple(dict.fromkeys(("loss", run.setup.recipe.task.best_metric[0])))
        self._newest = {"train": "compiling", "evaluation": ""}
        if in_notebook():
            from IPython import display  # pyright: ignore[reportMissingImports] - the kernel has it

            self._cell = display.display({"text/plain": "compiling"}, raw=True, display_id=True)
        elif self._console.is_terminal:
            self._bar = self._create_bar(event.step)
            self._bar.start()
        if event.message:
            self._say(event.message)
        sizes = run.setup.strategy.state_bytes(run.setup.shapes)
        if sizes is not None and sizes["per_device"] < sizes["replicated"]:
            self._say(state_bytes_text(sizes))

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=event.step, epoch=self._epoch(event.step)
            )

    def on_log(self, run: Run, event: Logged) -> None:
        """Shows a row."""
        row, step = event.row, event.row["step"]
        position = f"step {step}/{self._intervals.total_steps}  epoch {self._epoch(step)}  "
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], shown=self._shorten(row))
        elif self._cell is not None:
            self._cell.update({"text/plain": position + self._shorten(row)}, raw=True)
        else:
            shown = metrics_text({name: row[name] for name in self._names})
            self._say(f"{position}{row['split']:<5}  {shown}{_speed(row)}")

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._cell = None

    def _create_bar(self, step: int) -> rich.progress.Progress:
        bar = rich.progress.Progress(
            rich.progress.TextColumn("epoch {task.fields[epoch]}"),
            rich.progress.BarColumn(bar_width=None),  # what the others leave
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[shown]}"),
            rich.progress.TimeRemainingColumn(compact=True),
            console=self._console,
            expand=True,
            refresh_per_second=4,  # drawing competes with the step for the CPU
        )
        total = self._intervals.total_steps
        bar.add_task("", total=total, completed=step, epoch=self._epoch(step), shown="compiling")
        return bar

    def _epoch(self, step: int) -> str:
        epochs = -(-self._intervals.total_steps // self._intervals.steps_per_epoch)
        return f"{self._intervals.epoch(step)}/{epochs}"

    def _shorten(self, row: Row) -> str:
        """Returns the newest training row and evaluation, short enough for a terminal of 80
        columns.
        """
        if row["split"] == "train":
            shown = metrics_text({name: row[name] for name in self._names}, digits=1)
            self._newest["train"] = shown.replace(",", "") + _speed(row)
        else:
            name = self._names[-1]
            text = metrics_text({name: row[name]}, digits=1).removeprefix(f"{name} ")
            self._newest["evaluation"] = f"  {row['split']} {text}"
        return "".join(self._newest.values())

    def _say(self, text: str) -> None:
        lines = map(printable, text.splitlines())
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, in which a line can update in place."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _speed(row: Row) -> str:
    return f"  {row['examples_per_second']:,.0f} examples/s" if "examples_per_second" in row else ""
