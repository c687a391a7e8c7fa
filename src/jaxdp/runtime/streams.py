"""Standard output and standard error: closed or full ones, and output that a run may lose."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written, which the system's error does not say."""


class BestEffortStream:
    """A text stream that raises no OSError: the output is lost, and the run continues."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guarded():
            self._stream.flush()

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.suppress(OSError)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class StandardOutput(BestEffortStream):
    """A text stream that raises OutputError instead of OSError, except for a closed pipe."""

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(f"standard output cannot be written: {reason}") from error


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Inside the block sys.stdout is a StandardOutput.

    A stream that replaces it meanwhile stays, as capturing native output does.
    """
    own: Any = StandardOutput(sys.stdout)
    before, sys.stdout = sys.stdout, own
    try:
        yield
    finally:
        if sys.stdout is own:
            sys.stdout = before


def complete() -> None:
    """Opens standard input, output and error if they are closed; output accepts any file name.

    Otherwise the next files would get their numbers, and libraries would print into these files.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def give_up() -> None:
    """Discards the rest of standard output, which Python would write again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
