"""Filters what the libraries under JAX print, and turns their abort into one line and exit code 1.

When one process of several dies, JAX's runtime aborts the others with a C++ stack trace, from a
thread that no Python handler sees. While several processes run, file descriptors 1 and 2 are
therefore a file: what Python prints still goes to the terminal, and a thread copies the libraries'
lines from the file. After an abort that thread prints one line, which names the lost process.

Each process does this for itself: one that was started by hand or by Slurm has no launcher. JAX's
recoverable tasks are no alternative: with jaxlib 0.10.2 the loss of process 0 still aborts the
others, and its missed_heartbeat_callback ends in std::bad_cast.
"""

import atexit
import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from jaxdp.runtime.streams import BestEffortStream

# Progress of connecting, of which threads write pieces into one another's lines, and the
# announcement of what the fatal line says.
_NOISE = (
    "[Gloo]",
    "connected peer ranks",
    "coordination_service",
    "Additional GRPC error information",
    ":UNKNOWN:Error received from peer",
    ":{",
)
_FATAL = re.compile(r"^F\d{4} ", re.MULTILINE)
_LOOK_SECONDS = 1.0
_MOST_BYTES = 1 << 20  # at once


class _Capture:
    """File descriptors 1 and 2 as a file, and the thread that reads it.

    Attributes:
        explained: whether this process has said why it exits.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds, self.explained = timeout_seconds, False
        self._file = tempfile.TemporaryFile(prefix="jaxdp-native-")  # noqa: SIM115
        self._forwarded = 0  # bytes of it
        self._reading = threading.Lock()
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            stream.flush()
            terminal = open(  # noqa: SIM115
                os.dup(number),
                "w",
                buffering=1,
                encoding=stream.encoding,
                errors="backslashreplace",
            )
            setattr(sys, name, BestEffortStream(terminal))
            os.dup2(self._file.fileno(), number)
        self._errors: Any = sys.stderr  # which may be another stream later
        # The handler is sleep of the C library. It gets the number of the signal, which is 6: for
        # that many seconds the aborting thread waits, so that the thread below can report.
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
        threading.Thread(target=self._look, name="jaxdp-native-output", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            if text := self.forward():
                if not self.explained:
                    print(f"jaxdp.train: error: {explain(text)}", file=self._errors, flush=True)
                os._exit(1)

    def forward(self) -> str:
        """Prints the lines since the last call, without noise; returns what was fatal instead."""
        with self._reading:
            # pread: the position of the file belongs to its writers.
            written = os.pread(self._file.fileno(), _MOST_BYTES, self._forwarded)
            text = written.decode(errors="replace")
            if _FATAL.search(text):
                return text
            end = written.rfind(b"\n") + 1
            self._forwarded += end
            for line in written[:end].decode(errors="replace").splitlines():
                # A number alone is a piece of a line of Gloo's, which another thread has cut.
                if line.strip(" .:0123456789") and not any(noise in line for noise in _NOISE):
                    print(line, file=self._errors)
            return ""


_capture: _Capture | None = None
_members: tuple[str, ...] = ()


def capture(timeout_seconds: float) -> None:
    """Starts to capture, unless it has been started before.

    Args:
        timeout_seconds: how long the runtime waits for all processes to connect, for the message if
            they do not.
    """
    global _capture
    if _capture is None:
        _capture = _Capture(timeout_seconds)
        atexit.register(forward)


def forward() -> None:
    """Prints what the libraries have printed since the last call, without noise."""
    if _capture is not None:
        _capture.forward()


def name_processes(members: tuple[str, ...]) -> None:
    """Sets the names of the run's processes, which messages about them use."""
    global _members
    _members = members


def said_why() -> None:
    """Notes that this process has said why it exits: a later abort needs no explanation."""
    if _capture is not None:
        _capture.explained = True


def explain(text: str) -> str:
    """Returns one line for the runtime's last message before it aborted."""
    again = "the same command continues after the last checkpoint"
    dead = re.search(r"stopped sending heartbeats\):\s*([\d, ]+)", text)
    if dead:
        names = [_name(int(number)) for number in re.findall(r"\d+", dead[1])]
        return f"{' and '.join(names)} died or stopped responding; {again}"
    if "RegisterTask" in text:
        seconds = _capture.timeout_seconds if _capture is not None else 0
        return (
            f"timed out after {seconds:g} s waiting for all processes; start all of them,"
            " each with its own --process-id"
        )
    # A coordinator that is stopped or cut off does not refuse connections: its time is up.
    silent = "JAX distributed service detected fatal errors" in text and re.search(
        "DEADLINE_EXCEEDED|UNAVAILABLE", text
    )
    if silent or "leader task" in text or "Failed to send RPC to coordination service" in text:
        return f"{_name(0)}, the coordinator, died or cannot be reached; {again}"
    reason = next((line for line in text.splitlines() if _FATAL.match(line)), text[-500:])
    return " ".join(reason.split())


def _name(number: int) -> str:
    return _members[number] if number < len(_members) else f"process {number}"


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
