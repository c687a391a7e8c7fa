"""Provides a clock for time limits that stops while this process is paused, for example by SIGSTOP,
with its virtual machine, or when a laptop is closed.

A thread ticks once a second. If a tick takes longer, the process was paused.
"""

import functools
import threading
import time

_TICK_SECONDS = 1.0


class _Clock:
    def __init__(self) -> None:
        self._passed = 0.0, time.monotonic()  # seconds until the last tick, and its time
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
    """Returns the seconds since the first call in which this process ran. A pause counts as at most
    a second.
    """
    return _clock().read()
