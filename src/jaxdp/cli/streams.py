"""Standard output and standard error: closed or full ones, and output that a run may lose."""

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any


class BestEffortStream:
    """A text stream that raises no OSError: the output is lost, and the run continues."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with self._guarded():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guarded():
            self.stream.flush()

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.suppress(OSError)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class StandardOutput(BestEffortStream):
    """A text stream with an error that names standard output, which the system's does not."""

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(f"standard output cannot be written: {error.strerror}") from error


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


def finish() -> None:
    """Discards what standard output cannot take, which Python would write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def keep_libraries_out() -> None:
    """In a command, sends what libraries print on standard output, such as Gloo, to standard
    error.
    """
    if isinstance(sys.stdout, StandardOutput):
        sys.stdout.flush()
        sys.stdout.stream = os.fdopen(os.dup(1), "w", errors="backslashreplace")
        os.dup2(2, 1)


@contextlib.contextmanager
def without(noise: re.Pattern[str]) -> Iterator[None]:
    """Leaves out the lines on standard error that match, while the block runs."""
    sys.stderr.flush()
    before, (reading, writing) = os.dup(2), os.pipe()

    def forward() -> None:
        with (
            open(reading, errors="replace") as lines,
            open(before, "w", buffering=1, closefd=False) as errors,
        ):
            for line in lines:
                if noise.match(line) is None:
                    errors.write(line)

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)  # closes the last end that is written to: the thread ends
        thread.join()
        os.close(before)
