"""Defines a callback that records a trace of a few steps, for XProf and TensorBoard.

python -m jaxdp.train --plugins examples/profile_steps.py --model cnn --run-dir run \
    --callbacks profiler:first=20,last=25
"""

import jax

from jaxdp import callbacks


@callbacks.register("profiler")
class Profiler:
    """Records steps, counted from 1, into the folder `profile` of the run directory.

    The parts of a step are named `input`, `augment`, `forward`, `backward`, `reduce` and `update`;
    the work of the host is in `train`, with a number, and in `waiting for input`. If a program has
    several steps, all its steps are recorded.
    """

    only_reports = True  # if recording fails, the run continues
    every_process = True  # each process writes its own file

    def __init__(self, first=1, last=1):
        self.first, self.last, self.records = first, last, False

    def on_step_begin(self, run, event):
        if not self.records and event.first <= self.last and event.last >= self.first:
            with run.paused():  # the trace holds no steps before it
                jax.profiler.start_trace(run.folder / "profile")
                self.records = True

    def on_step_end(self, run, event):
        if self.records and event.step >= self.last:
            with run.paused():
                self.close()

    def close(self):
        if self.records:
            self.records = False
            jax.profiler.stop_trace()
