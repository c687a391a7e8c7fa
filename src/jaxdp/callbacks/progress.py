"""Shows the progress of a run as a bar on a terminal, as one updating line in a notebook, and as a
line per row elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Checking types does not require IPython.

import datetime
from typing import Any

import rich.console
import rich.progress

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Logged, Run, Started, StepEnd
from jaxdp.reporting.progress import metrics_text
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
                seconds = round((total - step) * row["step_seconds"])
                metrics += f"  {datetime.timedelta(seconds=seconds)} left"
        line = f"{position}  {row['split']:<5}  {metrics}"
        if self._cell is not None:
            self._cell.update({"text/plain": line}, raw=True)
        elif self._bar is not None and row["split"] == "train":
            self._bar.update(self._bar.task_ids[0], shown=metrics)
        else:
            self._say(line)

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
            rich.progress.TimeRemainingColumn(compact=True),
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
