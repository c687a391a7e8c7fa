"""Filters what the libraries under JAX print, and turns their abort into one line and exit code 1.

When one process of several dies, JAX's runtime aborts the others with a C++ stack trace, from a
thread of its own that no Python handler sees. While several processes run, file descriptors 1 and 2
are therefore a file: what Python prints still goes to the terminal, the libraries' lines follow
from the file, and after an abort one line names the process that was lost.

That line and exit code come from a handler of SIGABRT in each process, not from the launcher,
because a process that was started by hand or by Slurm has no launcher and would end with the stack
trace and SIGABRT. JAX's recoverable tasks do not avoid it: with jaxlib 0.10.2 a process that loses
process 0 is aborted all the same.
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

_file: Any = None
_originals: dict[int, int] = {}  # of file descriptors 1 and 2
_errors: Any = None  # standard error as it was
_forwarded = 0  # bytes of it
_said = False
_members: tuple[str, ...] = ()
_timeout_seconds = 0.0
_handler: Any = None  # ctypes needs a reference to the function


def capture(timeout_seconds: float) -> None:
    """Starts to capture, unless it has been started before.

    Args:
        timeout_seconds: how long the runtime waits for all processes to connect, for the message if
            they do not.
    """
    global _file, _forwarded, _errors, _timeout_seconds, _handler
    if _file is not None:
        return
    _forwarded = 0
    _timeout_seconds = timeout_seconds
    _file = tempfile.TemporaryFile(prefix="jaxdp-native-")  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        stream.flush()
        _originals[number] = os.dup(number)
        again = open(  # noqa: SIM115
            _originals[number],
            "w",
            buffering=1,
            encoding=stream.encoding,
            errors="backslashreplace",
            closefd=False,
        )
        setattr(sys, name, BestEffortStream(again))
        os.dup2(_file.fileno(), number)
    _errors = sys.stderr
    library = ctypes.CDLL(None)
    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_abort)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal(signal.SIGABRT, ctypes.cast(_handler, ctypes.c_void_p))
    atexit.register(forward)


@contextlib.contextmanager
def without(noise: re.Pattern[str]) -> Iterator[None]:
    """Leaves lines out that the libraries print on standard error within it, if they begin so."""
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
        os.dup2(before, 2)  # the last end of the pipe that is written to: the thread ends
        thread.join()
        os.close(before)


def release() -> None:
    """Ends the capture, after the processes could not be connected, and prints what was
    captured.
    """
    global _file
    for number, original in _originals.items():
        os.dup2(original, number)
    forward()
    ctypes.CDLL(None).signal(signal.SIGABRT, None)  # the default
    _file = None


def name_processes(members: tuple[str, ...]) -> None:
    """Sets the names of the run's processes, which messages about them use."""
    global _members
    _members = members


def said_why() -> None:
    """Notes that this process has said why it leaves: if it is aborted before it is gone, there is
    nothing to add.
    """
    global _said
    _said = True


def forward() -> None:
    """Prints what the libraries have printed since the last call, without what is of no use to
    anyone.
    """
    global _forwarded
    if _file is None:
        return
    # pread: the position of the file is that of its writers.
    text = os.pread(_file.fileno(), 1 << 20, _forwarded)
    if _FATAL.search(text.decode(errors="replace")):  # the handler explains it
        return
    end = text.rfind(b"\n") + 1
    _forwarded += end
    for line in text[:end].decode(errors="replace").splitlines():
        # A number alone is a piece of a line of Gloo's, which another thread has cut.
        if line.strip(" .:0123456789") and not any(noise in line for noise in _NOISE):
            print(line, file=_errors)  # sys.stderr may be another by now


def _on_abort(number: int) -> None:
    """Runs on the thread that aborts, which to Python is an ordinary one.

    Nothing comes after it.
    """
    try:
        if _said:
            return
        text = os.pread(_file.fileno(), 1 << 20, _forwarded).decode(errors="replace")
        print(f"jaxdp.train: error: {explain(text)}", file=_errors, flush=True)
        time.sleep(0.2)  # for the reader of the pipe
    finally:
        os._exit(1)


def explain(text: str) -> str:
    """Returns one line for the runtime's last words."""
    again = "the same command continues after the last checkpoint"
    dead = re.search(r"stopped sending heartbeats\):\s*((?:.*/task:)?[\d, ]+)", text)
    if dead:
        names = [_name(int(number)) for number in re.findall(r"\d+", dead[1].rpartition(":")[2])]
        return f"{' and '.join(names)} died or stopped responding; {again}"
    if "RegisterTask" in text:
        return (
            f"timed out after {_timeout_seconds:g} s waiting for all processes; start all of them,"
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
