"""Ends a run after a time."""

import time
from typing import Any

from jaxdp.callbacks.events import Run, Started, StepEnd


class MaxTime:
    """Ends the run, as done, once it has trained for a time, compilation and evaluations included.

    A run that resumes counts the time until the checkpoint that it resumes from.

    Args:
        seconds: the time.
        text: the time for people.
    """

    def __init__(self, seconds: float, text: str) -> None:
        self._seconds, self._text = seconds, text
        self._before = 0.0

    def on_start(self, run: Run, event: Started) -> None:
        """Starts the clock."""
        self._start = time.monotonic() - self._before

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Ends the run if the time is over."""
        if time.monotonic() - self._start >= self._seconds:
            run.stop(f"the time of {self._text} is over")

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"seconds": time.monotonic() - self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._before = state["seconds"]
