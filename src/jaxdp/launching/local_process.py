"""Runs a process on this machine."""

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.cli.exit_codes import SUPERVISED
from jaxdp.runtime.signals import ENDING

_DRAIN_SECONDS = 2.0  # for readers after the end, because a grandchild may keep the pipe open
_PR_SET_PDEATHSIG = 1


class LocalProcess:
    """Python on this machine, in its own session, so that Ctrl-C reaches it only through its
    parent.

    Args:
        arguments: arguments of Python.
        environment: variables to add to the environment of this process.
        inherits: whether it shares (standard output, standard error) with this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherits: tuple[bool, bool] = (False, False),
    ) -> None:
        out, err = (None if each else subprocess.PIPE for each in inherits)
        self._popen: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, SUPERVISED: "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
            preexec_fn=_begin,
        )
        self.where = f"pid {self._popen.pid} on {socket.gethostname()}"
        self._lines: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, is_error), daemon=True)
            for stream, is_error in ((self._popen.stdout, False), (self._popen.stderr, True))
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, is_error: bool) -> None:
        with stream:
            for line in stream:
                self._lines.put((is_error, line))

    def poll(self) -> int | None:
        """Returns the exit code; None while the process runs. After the end, `lines` returns the
        rest.
        """
        code = self._popen.poll()
        if code is not None:
            for reader in self._readers:
                reader.join(_DRAIN_SECONDS)
        return code

    def lines(self) -> list[tuple[bool, str]]:
        return [self._lines.get() for _ in range(self._lines.qsize())]

    def send_signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def close(self) -> None:
        self._popen.terminate()


def _begin() -> None:
    """Runs in the new process. If its parent is killed, the new process gets a SIGTERM and saves.

    The parent may itself have been started with signals blocked or ignored.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
