"""Handles signals that would end a process, as a request to stop after the current step, or
forwards them.

A handler only sets a flag. An exception raised in it could occur anywhere, for example in a
callback of JAX that swallows it, or in the middle of a save.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from jaxdp.cli.exit_codes import EXIT_STOPPED
from jaxdp.text.console import say_again

STOPPED_AT_START = "stopped by a signal before the first step; the same command begins again"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # signals that launchers forward
_START_UP_SECONDS = 5.0


class StoppedAtStart(Exception):
    """A signal arrived before there was a state to save."""


class StopSignals:
    """Receives signals while a run is set up and trained.

    While the run is set up, `check` raises at the next safe place. If none is reached within a few
    seconds, the process ends with EXIT_STOPPED. A second interrupt raises KeyboardInterrupt, as
    does an interrupt before training.

    Args:
        numbers: the signals. An ignored signal stays ignored, such as SIGHUP under nohup.
    """

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._is_starting = True  # until there is a state that can be saved
        self._numbers = numbers
        self._received: list[int] = []

    def requested(self, number: int | None = None) -> bool:
        """Returns whether this signal, or for None any signal, has arrived."""
        return bool(self._received) if number is None else number in self._received

    def check(self) -> None:
        """Raises StoppedAtStart if a signal has arrived. To be called where no work is
        incomplete.
        """
        if self._received and self._is_starting:
            raise StoppedAtStart

    def begin_training(self) -> None:
        """Ends the start after a last check. A later signal is only a request."""
        self.check()
        self._is_starting = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals until the block ends.

        Does nothing outside the main thread, because Python allows handlers only in the main
        thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [
            number for number in self._numbers if signal.getsignal(number) is not signal.SIG_IGN
        ]
        with contextlib.ExitStack() as cleanup:
            for number in wanted:
                cleanup.callback(signal.signal, number, signal.signal(number, self._handle))
            # A timer that expires later does nothing.
            cleanup.callback(setattr, self, "_is_starting", False)
            yield

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGINT and (self._received or self._is_starting):
            raise KeyboardInterrupt
        self._received.append(number)
        if self._is_starting:
            timer = threading.Timer(_START_UP_SECONDS, self._leave)
            timer.daemon = True
            timer.start()

    def _leave(self) -> None:
        if self._is_starting:
            say_again(STOPPED_AT_START)
            os._exit(EXIT_STOPPED)


@contextlib.contextmanager
def forwarding(send: Callable[[int], None]) -> Iterator[None]:
    """Calls `send` with the signals that would stop this process, until the block ends."""
    with contextlib.ExitStack() as cleanup:
        for number in ENDING:
            before = signal.signal(number, lambda received, frame: send(received))
            cleanup.callback(signal.signal, number, before)
        yield
