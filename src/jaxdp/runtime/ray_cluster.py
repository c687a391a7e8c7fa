"""Notices whether the head of a Ray cluster is lost."""

import contextlib
import threading
from typing import Any

from jaxdp.runtime.ray_connection import HeadLost
from jaxdp.runtime.running_time import running_seconds

# A node that is cut off sends nothing, and Ray takes over a minute to declare it dead. A response
# takes milliseconds.
SILENCE_SECONDS = 8.0
_WATCH_SECONDS = 1.0  # between requests


def nodes() -> list[dict[str, Any]]:
    """Returns the nodes of the cluster. Waits if the head does not answer."""
    import ray

    return ray.nodes()


class Head:
    """Requests the nodes repeatedly, in a thread, because a lost head does not answer."""

    def __init__(self) -> None:
        nodes()
        self._answered = running_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_SECONDS):
            # The connection ends with the command, or with the head.
            with contextlib.suppress(Exception):
                nodes()
                self._answered = running_seconds()

    def check(self) -> None:
        """Raises HeadLost if the head does not answer while this process runs."""
        if running_seconds() - self._answered > SILENCE_SECONDS:
            raise HeadLost(
                f"the head of the cluster has not answered for {SILENCE_SECONDS:g} s: start the"
                " cluster again"
            )

    def close(self) -> None:
        """Stops the requests, before the connection ends."""
        self._ended.set()
        self._thread.join(timeout=1.0)
