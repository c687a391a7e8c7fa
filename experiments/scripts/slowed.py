"""Defines a callback that slows down processes of all-reduce as JAXDP_WORKER_SECONDS slows down
workers, with a minimum time of a step.

JAXDP_WORKER_SECONDS=0.1,0.1,0.4 python -m jaxdp.launch -n 3 -- train --plugins
experiments/scripts/slowed.py --callbacks slowed --model cnn
"""

import os
import time

from jaxdp import callbacks
from jaxdp.workers.worker import SLOWED


@callbacks.register("slowed")
class Slowed:
    """Sleeps at the end of each step until the step has taken this process long enough, so that
    cores stand for machines.
    """

    every_process = True

    def __init__(self) -> None:
        self._seconds = [float(word) for word in os.environ[SLOWED].split(",")]
        self._begun = 0.0

    def on_step_begin(self, run, event):
        self._begun = time.perf_counter()

    def on_step_end(self, run, event):
        least = self._seconds[run.group.index % len(self._seconds)]
        time.sleep(max(self._begun + least - time.perf_counter(), 0.0))
