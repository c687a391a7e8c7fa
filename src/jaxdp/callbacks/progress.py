"""Shows the progress of a run as a bar on a terminal, as one updating line in a notebook, and as a
line per row elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Checking types does not require IPython.

import datetime
import time
from typing import Any

import rich.console
import rich.progress

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Activity, Logged, Run, Started, StepEnd
from jaxdp.reporting.progress import metrics_text
from jaxdp.rundir.read import Row
from jaxdp.text.console import say_again
from jaxdp.text.flags import for_python, template_of
from jaxdp.text.units import bytes_text


@register("progress")
class Progress:
    """Shows loss, one more metric and the speed on standard error."""

    only_reports = True

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, emoji=False)
        self._bar: rich.progress.Progress | None = None
        self._cell: Any = None  # the output of a cell in a notebook
        # Step and time of the first row, without later evaluations.
        self._since: tuple[int, float] | None = None
        self._evaluating = self._evaluation = 0.0  # when one began, and how long the last one took

    def on_start(self, run: Run, event: Started) -> None:
        """Starts the display."""
        self._intervals, self._first = run.setup.intervals, event.step + 1
        self._names = tuple(dict.fromkeys(("loss", run.setup.step_config.task.best_metric[0])))
        if self._console.is_jupyter:
            from IPython import display  # pyright: ignore[reportMissingImports] - the kernel has it

            self._cell = display.display({"text/plain": "compiling"}, raw=True, display_id=True)
        elif self._console.is_terminal:
            self._bar = self._create_bar(event.step)
            self._bar.start()
        if event.message:
            self._say(event.message)
        self._say(run.headline)
        sizes = run.setup.strategy.state_bytes(run.setup.shapes)
        if sizes and sizes["per_device"] < sizes["replicated"]:
            self._say(
                f"state: {bytes_text(sizes['per_device'])} on each device,"
                f" {bytes_text(sizes['replicated'])} in all"
            )

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=event.step)

    def on_log(self, run: Run, event: Logged) -> None:
        """Shows a row. Rows of evaluations remain above the bar."""
        row, step = event.row, event.row["step"]
        total, epoch = self._intervals.total_steps, self._intervals.epoch
        metrics = metrics_text({name: row[name] for name in self._names if name in row})
        position = f"step {step}/{total}  epoch {epoch(step)}/{epoch(total)}"
        if "examples_per_second" in row:
            metrics += f"  {row['examples_per_second']:,.0f} examples/s"
            if self._first < step < total:  # the first step compiles
                metrics += f"  {datetime.timedelta(seconds=round(self._left(row)))} left"
            self._since = self._since or (step, time.monotonic())
        if row["split"] != "train" and self._evaluating and self._since:
            self._evaluation = time.monotonic() - self._evaluating
            self._since = (self._since[0], self._since[1] + self._evaluation)
        self._evaluating = 0.0
        line = f"{position}  {row['split']:<5}  {metrics}"
        if self._cell is not None:
            self._cell.update({"text/plain": line}, raw=True)
        elif self._bar is not None and row["split"] == "train":
            self._bar.update(self._bar.task_ids[0], shown=metrics)
        else:
            self._say(line)

    def on_activity(self, run: Run, event: Activity) -> None:
        """Starts the clock of an evaluation."""
        if event.name == "evaluating":
            self._evaluating = self._evaluating or time.monotonic()

    def _left(self, row: Row) -> float:
        """Returns the seconds that are left: of steps, each with its share of the saves so far, and
        of evaluations, if there was one.
        """
        step, total, every = row["step"], self._intervals.total_steps, self._intervals.eval_every
        since, began = self._since or (step, 0.0)
        each = row["step_seconds"]
        if step > since:
            each = (time.monotonic() - began) / (step - since)
        evaluations = -(-total // every) - (step - 1) // every  # with one that is due now
        return (total - step) * each + evaluations * self._evaluation

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._cell = None

    def _create_bar(self, step: int) -> rich.progress.Progress:
        bar = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=None),  # the width that the other columns leave
            rich.progress.MofNCompleteColumn(),
            "{task.fields[shown]}",
            console=self._console,
            expand=True,
            refresh_per_second=4,  # drawing competes with the step for the CPU
        )
        bar.add_task("", total=self._intervals.total_steps, completed=step, shown="compiling")
        return bar

    def _say(self, text: str) -> None:
        for line in template_of(text).splitlines():
            if self._console.is_jupyter:
                self._console.print(for_python(line), highlight=False, markup=False, soft_wrap=True)
            else:
                say_again(line)
