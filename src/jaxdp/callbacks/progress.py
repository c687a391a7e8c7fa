"""Shows how far a run is: a bar on a terminal, one line that updates in a notebook, a line per row
elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# IPython need not be there to check types

import sys
from typing import Any, Protocol, runtime_checkable

import rich.console
import rich.progress

from jaxdp.callbacks import register
from jaxdp.events import Logged, RolledBack, Run, Started, StepEnd
from jaxdp.parsing import printable
from jaxdp.reporting.progress import metrics_text, state_bytes_text
from jaxdp.rundir.read import Row


@register("progress")
class Progress:
    """Shows loss, one more metric and the speed on standard error."""

    def __init__(self) -> None:
        self._display: _Display | None = None

    def on_start(self, run: Run, event: Started) -> None:
        """Begins to show."""
        self.close()
        intervals = run.setup.intervals
        kind = (
            _Notebook
            if in_notebook()
            else _Bar
            if rich.console.Console(stderr=True).is_terminal
            else _Lines
        )
        self._display = kind(
            event.step,
            intervals.total_steps,
            intervals.steps_per_epoch,
            run.setup.recipe.task.best_metric[0],
        )
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

    def on_rollback(self, run: Run, event: RolledBack) -> None:
        """Ends the bar; the next start begins another one."""
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        if self._display is not None:
            self._display, display = None, self._display
            display.close()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, whose cells show what updates."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


@runtime_checkable
class _Display(Protocol):
    def advance(self, step: int) -> None: ...
    def write(self, row: Row) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """A line per row."""

    def __init__(self, start: int, total_steps: int, steps_per_epoch: int, metric: str) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._total_steps, self._steps_per_epoch, self._names = (
            total_steps,
            steps_per_epoch,
            ("loss", metric),
        )
        self._epochs = -(-total_steps // steps_per_epoch)
        self._shown = {"train": "compiling", "evaluation": ""}

    def _epoch(self, step: int) -> str:
        return f"{max(step - 1, 0) // self._steps_per_epoch + 1}/{self._epochs}"

    def advance(self, step: int) -> None:
        pass

    def write(self, row: Row) -> None:
        place = (
            f"step {row['step']}/{self._total_steps}  epoch {row['epoch']}/{self._epochs} "
            f" {row['split']:<5}  "
        )
        self.say(
            place
            + metrics_text({name: row[name] for name in dict.fromkeys(self._names)})
            + _speed(row)
        )

    def _shorten(self, row: Row) -> str:
        """Keeps the newest training row and evaluation as text short enough for a terminal of 80
        columns.
        """
        if row["split"] == "train":
            shown = {name: row[name] for name in dict.fromkeys(self._names)}
            self._shown["train"] = metrics_text(shown, digits=1).replace(",", "") + _speed(row)
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

    def __init__(self, start: int, total_steps: int, steps_per_epoch: int, metric: str) -> None:
        super().__init__(start, total_steps, steps_per_epoch, metric)
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
            total=total_steps,
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

    def __init__(self, start: int, total_steps: int, steps_per_epoch: int, metric: str) -> None:
        super().__init__(start, total_steps, steps_per_epoch, metric)
        from IPython import display  # pyright: ignore[reportMissingImports] - the kernel has it

        self._handle: Any = display.display(
            self._content(self._shown["train"]), raw=True, display_id=True
        )

    @staticmethod
    def _content(text: str) -> Any:
        return {"text/plain": text}

    def write(self, row: Row) -> None:
        text = (
            f"step {row['step']}/{self._total_steps}  epoch {row['epoch']}/{self._epochs} "
            f" {self._shorten(row)}"
        )
        self._handle.update(self._content(text), raw=True)


def _speed(row: Row) -> str:
    return f"  {row['examples_per_second']:,.0f} examples/s" if "examples_per_second" in row else ""
