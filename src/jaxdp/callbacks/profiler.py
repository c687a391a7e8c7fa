"""Records a trace of a few steps on the host and the devices, for XProf and TensorBoard."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import jax

from jaxdp.callbacks.callback import folder_of, register
from jaxdp.callbacks.events import Run, Started, StepBegin, StepEnd
from jaxdp.errors import ConfigError


@register("profiler")
class Profiler:
    """Records steps into the folder `profile` of the run directory.

    The parts of a step are named `input`, `augment`, `forward`, `backward`, `reduce` and `update`;
    the work of the host is in `train`, with a number, and in `waiting for input`. A run that
    resumes may miss the first of the steps. If a program has several steps, all its steps are
    recorded.

    Args:
        first, last: steps, counted from 1.
    """

    only_reports = True

    every_process = True  # each process writes its own file

    def __init__(self, first: int = 1, last: int = 1) -> None:
        if not 1 <= first <= last:
            problem = "steps are counted from 1, and the last not before the first"
            raise ConfigError("callbacks", {"first": first, "last": last}, problem)
        self._first, self._last = first, last
        self._records = False

    def on_start(self, run: Run, event: Started) -> None:
        """Raises ConfigError for a run without a folder, or without these steps."""
        folder_of(run, "profiler")
        total_steps = run.setup.intervals.total_steps
        if self._first > total_steps:
            problem = f"begins after the last step, {total_steps}"
            raise ConfigError("callbacks", f"profiler:first={self._first}", problem)

    def on_step_begin(self, run: Run, event: StepBegin) -> None:
        """Starts to record before the first of the steps."""
        if not self._records and event.first <= self._last and event.last >= self._first:
            with run.paused():
                jax.profiler.start_trace(folder_of(run, "profiler") / "profile")
                self._records = True

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Ends the recording after the last of the steps."""
        if self._records and event.step >= self._last:
            with run.paused():
                self.close()

    def close(self) -> None:
        """Ends the recording, if there is one."""
        if self._records:
            self._records = False
            jax.profiler.stop_trace()
