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
        self._display: _Lines | None = None

    def on_start(self, run: Run, event: Started) -> None:
        """Begins to show."""
        if in_notebook():
            kind = _Notebook
        else:
            kind = _Bar if rich.console.Console(stderr=True).is_terminal else _Lines
        self._display = kind(event.step, run.setup.intervals, run.setup.recipe.task.best_metric[0])
        if event.message:
            self._display.say(event.message)
        sizes = run.setup.strategy.state_bytes(run.setup.shapes)
        if sizes is not None and sizes["per_device"] < sizes["replicated"]:
            self._display.say(state_bytes_text(sizes))

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Moves the bar."""
        assert self._display is not None
        self._display.advance(event.step)

    def on_log(self, run: Run, event: Logged) -> None:
        """Shows a row."""
        assert self._display is not None
        self._display.write(event.row)

    def close(self) -> None:
        """Ends the bar."""
        if self._display is not None:
            self._display, display = None, self._display
            display.close()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, in which a line can update in place."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Lines:
    """A line for each row."""

    def __init__(self, start: int, intervals: Any, metric: str) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._intervals = intervals
        self._names = tuple(dict.fromkeys(("loss", metric)))
        self._shown = {"train": "compiling", "evaluation": ""}

    def _epoch(self, step: int) -> str:
        epochs = -(-self._intervals.total_steps // self._intervals.steps_per_epoch)
        return f"{self._intervals.epoch(step)}/{epochs}"

    def _position(self, row: Row) -> str:
        step = row["step"]
        return f"step {step}/{self._intervals.total_steps}  epoch {self._epoch(step)}  "

    def advance(self, step: int) -> None:
        pass

    def write(self, row: Row) -> None:
        shown = metrics_text({name: row[name] for name in self._names})
        self.say(f"{self._position(row)}{row['split']:<5}  {shown}{_speed(row)}")

    def _shorten(self, row: Row) -> str:
        """Returns the newest training row and evaluation, short enough for a terminal of 80
        columns.
        """
        if row["split"] == "train":
            shown = metrics_text({name: row[name] for name in self._names}, digits=1)
            self._shown["train"] = shown.replace(",", "") + _speed(row)
        else:
            name = self._names[-1]
            text = metrics_text({name: row[name]}, digits=1).removeprefix(f"{name} ")
            self._shown["evaluation"] = f"  {row['split']} {text}"
        return self._shown["train"] + self._shown["evaluation"]

    def say(self, text: str) -> None:
        lines = map(printable, text.splitlines())
        self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        pass


class _Bar(_Lines):
    """A bar on a terminal."""

    def __init__(self, start: int, intervals: Any, metric: str) -> None:
        super().__init__(start, intervals, metric)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("epoch {task.fields[epoch]}"),
            rich.progress.BarColumn(bar_width=None),  # what the others leave
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[shown]}"),
            rich.progress.TimeRemainingColumn(compact=True),
            console=self._console,
            expand=True,
            refresh_per_second=4,  # drawing competes with the step for the CPU
        )
        self._task = self._bar.add_task(
            "",
            total=intervals.total_steps,
            completed=start,
            epoch=self._epoch(start),
            shown=self._shown["train"],
        )
        self._bar.start()

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step, epoch=self._epoch(step))

    def write(self, row: Row) -> None:
        self._bar.update(self._task, shown=self._shorten(row))

    def close(self) -> None:
        self._bar.stop()


class _Notebook(_Lines):
    """One line in the output of a cell, which updates in place."""

    def __init__(self, start: int, intervals: Any, metric: str) -> None:
        super().__init__(start, intervals, metric)
        from IPython import display  # pyright: ignore[reportMissingImports] - the kernel has it

        content = {"text/plain": self._shown["train"]}
        self._handle: Any = display.display(content, raw=True, display_id=True)

    def write(self, row: Row) -> None:
        content = {"text/plain": self._position(row) + self._shorten(row)}
        self._handle.update(content, raw=True)


def _speed(row: Row) -> str:
    return f"  {row['examples_per_second']:,.0f} examples/s" if "examples_per_second" in row else ""
