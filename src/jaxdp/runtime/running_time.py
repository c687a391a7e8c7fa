"""A clock for limits of time that stops while this process is paused: by SIGSTOP, with its virtual
machine, or behind the lid of a laptop.

A thread ticks once a second. What a tick takes longer was a pause.
"""

import functools
import threading
import time

_TICK_SECONDS = 1.0


class _Clock:
    def __init__(self) -> None:
        self._passed = 0.0, time.monotonic()  # seconds until the last tick, and when it was
        threading.Thread(target=self._tick, name="jaxdp-clock", daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self._passed = self._until(now), now

    def _until(self, now: float) -> float:
        seconds, ticked = self._passed
        return seconds + min(now - ticked, _TICK_SECONDS)

    def read(self) -> float:
        return self._until(time.monotonic())


_clock = functools.cache(_Clock)


def running_seconds() -> float:
    """Returns the seconds since the first call in which this process ran; a pause counts as a
    second at most.
    """
    return _clock().read()
