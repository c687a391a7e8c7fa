"""What do the libraries under JAX print, and what becomes of it when they end the process?

When a process of several dies, JAX's runtime ends the others with a C++ stack trace, from a thread of its own and past all
Python handlers. Here file descriptors 1 and 2 are a file while several processes run: what Python prints goes on to the terminal,
the libraries' lines follow from the file, and where they abort the process one line says whom it lost.
"""

import atexit
import ctypes
import os
import re
import signal
import sys
import tempfile
import time
from typing import Any

from jaxdp.runtime.streams import BestEffortStream

# Progress of connecting, which threads write in pieces, within one another's lines, and the announcement of what the fatal line
# then says.
_NOISE = ("[Gloo]", "connected peer ranks", "coordination_service", "Additional GRPC error information",
          ":UNKNOWN:Error received from peer", ":{")  # fmt: skip
_FATAL = re.compile(r"^F\d{4} ", re.MULTILINE)

_file: Any = None
_forwarded = 0
_said = False
_members: tuple[str, ...] = ()
_timeout_seconds = 0.0
_handler: Any = None  # ctypes forgets a function that nobody holds


def capture(timeout_seconds: float) -> None:
    """Begins. Does nothing when called again.

    Args:
        timeout_seconds: how long the runtime waits for all processes to come, to be told if they do not.
    """
    global _file, _timeout_seconds, _handler
    if _file is not None:
        return
    _file, _timeout_seconds = tempfile.TemporaryFile(prefix="jaxdp-native-"), timeout_seconds  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        stream.flush()
        again = open(os.dup(number), "w", buffering=1, encoding=stream.encoding, errors="backslashreplace")  # noqa: SIM115
        setattr(sys, name, BestEffortStream(again))
        os.dup2(_file.fileno(), number)
    library = ctypes.CDLL(None)
    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_abort)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal(signal.SIGABRT, ctypes.cast(_handler, ctypes.c_void_p))
    atexit.register(forward)


def name_processes(members: tuple[str, ...]) -> None:
    global _members
    _members = members


def said_why() -> None:
    """This process has told why it leaves: if it is aborted before it has gone, there is nothing to add."""
    global _said
    _said = True


def forward() -> None:
    """Prints what the libraries have printed since the last call, but for what is of no use to anyone."""
    global _forwarded
    if _file is None:
        return
    # pread: the position of the file is that of its writers.
    text = os.pread(_file.fileno(), 1 << 20, _forwarded)
    if _FATAL.search(text.decode(errors="replace")):  # the handler tells
        return
    end = text.rfind(b"\n") + 1
    _forwarded += end
    for line in text[:end].decode(errors="replace").splitlines():
        if line.strip() and not any(noise in line for noise in _NOISE):
            print(line, file=sys.stderr)


def _on_abort(number: int) -> None:
    """Runs on the thread that aborts, which is an ordinary one as far as Python is concerned; nothing comes after it."""
    try:
        if _said:
            return
        text = os.pread(_file.fileno(), 1 << 20, _forwarded).decode(errors="replace")
        print(f"jaxdp.train: error: {explain(text)}", file=sys.stderr, flush=True)
        time.sleep(0.2)  # whoever reads the pipe
    finally:
        os._exit(1)


def explain(text: str) -> str:
    """Returns one line for what the runtime said at its end."""
    again = "the same command continues after the last checkpoint"
    dead = re.search(r"stopped sending heartbeats\):\s*((?:.*/task:)?[\d, ]+)", text)
    if dead:
        names = [_name(int(number)) for number in re.findall(r"\d+", dead[1].rpartition(":")[2])]
        return f"{' and '.join(names)} died or no longer answers; {again}"
    if "RegisterTask" in text:
        return f"not all processes came in {_timeout_seconds:g} s; start all, each with its own --process-id"
    if "leader task" in text or "Failed to send RPC to coordination service" in text:
        return f"{_name(0)}, which the others meet at, died or cannot be reached; {again}"
    reason = next((line for line in text.splitlines() if _FATAL.match(line)), text[-500:])
    return " ".join(reason.split())


def _name(number: int) -> str:
    return _members[number] if number < len(_members) else f"process {number}"
