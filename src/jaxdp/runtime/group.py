"""Connects the processes of a run through the key-value store of process 0.

JAX's distributed runtime connects the processes and notices when one dies. Its key-value store, on
process 0, holds the settings, the progress of each process, requests to stop, and the reasons why
processes ended. This module computes nothing on devices.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import signal
import time
from typing import Any, NoReturn

from jaxdp.errors import ConfigError

_NO_LIMIT_MILLISECONDS = 7 * 24 * 3600 * 1000
_GRACE_SECONDS = 5.0  # for the others to read why process 0 ends, because the store ends with it


@dataclasses.dataclass
class Group:
    """The processes of a run, including this process.

    Attributes:
        members: the name of each process in messages, e.g. "process 1 (pid 77 on node-b)".
    """

    index: int = 0
    count: int = 1
    members: tuple[str, ...] = ("process 0",)
    _prefix: str = ""
    _barriers: int = 0

    def put(self, key: str, value: str, *, overwrite: bool = True) -> None:
        _client().key_value_set(f"{self._prefix}/{key}", value, allow_overwrite=overwrite)

    def get(self, key: str) -> str | None:
        try:
            return _client().key_value_try_get(f"{self._prefix}/{key}")
        except Exception as error:  # the runtime's only class of errors, including a missing key
            if "NOT_FOUND" in str(error):
                return None
            raise

    def get_all(self, name: str) -> dict[int, str]:
        """Returns the values that the processes have stored at `name/INDEX` so far, by index."""
        found = _client().key_value_dir_get(f"{self._prefix}/{name}/")
        return {int(key.rpartition("/")[2]): value for key, value in found}

    def barrier(self) -> None:
        """Waits for all processes, which must call it equally often.

        If a process dies meanwhile, the others end.
        """
        if self.count > 1:
            self._barriers += 1
            _client().wait_at_barrier(
                f"{self._prefix}/barrier/{self._barriers}", _NO_LIMIT_MILLISECONDS
            )

    def post_exit_reason(self, message: str, code: int, *, hangs: bool = False) -> None:
        """Stores why this process exits, and its code, if the others can still be reached."""
        with contextlib.suppress(Exception):
            self.put(
                f"left/{self.index}",
                json.dumps({"message": message, "code": code, "hangs": hangs}),
                overwrite=False,
            )

    def leave(self, code: int) -> NoReturn:
        """Ends this process at once. Process 0 ends after the others, because they read the reason
        from it.
        """
        try:
            if self.index == 0 and self.count > 1:
                _outlive_abort()
                time.sleep(_GRACE_SECONDS)
        finally:
            os._exit(code)

    def exit_reasons(self) -> dict[int, dict[str, Any]]:
        """Returns why other processes have exited, and their exit codes, by index."""
        return {
            index: json.loads(text)
            for index, text in self.get_all("left").items()
            if index != self.index
        }

    def all_gather_text(self, name: str, value: str, timeout_seconds: float) -> list[str]:
        """Returns the text of each process. Waits for all processes.

        Raises:
            ConfigError: if a process does not send its text in time.
        """
        if self.count == 1:
            return [value]
        self.put(f"{name}/{self.index}", value)
        try:
            # One response then holds all texts. Process 0 could not answer N requests from each of
            # N processes.
            _client().wait_at_barrier(f"{self._prefix}/{name}", int(timeout_seconds * 1000))
        except Exception as error:
            there = self.get_all(name)
            missing = next((index for index in range(self.count) if index not in there), None)
            if missing is None:
                raise
            remedy = (
                f"timed out after {timeout_seconds:g} s waiting for {self.members[missing]} to send"
                f" {name!r}; see its output"
            )
            raise ConfigError("distributed_timeout", timeout_seconds, remedy) from error
        values = self.get_all(name)
        return [values[index] for index in range(self.count)]

    def check_equal(self, what: dict[str, Any], timeout_seconds: float) -> None:
        """Checks that all processes are about to train the same run.

        Raises:
            ConfigError: for the first difference, with the name of the other process.
        """
        own = json.dumps(what, default=str)
        self.put(f"checked/{self.index}", own)
        digest = hashlib.sha256(own.encode()).hexdigest()
        digests = self.all_gather_text("checks", digest, timeout_seconds)
        other = next((index for index in range(self.count) if digests[index] != digest), None)
        if other is None:
            return
        theirs = json.loads(self.get(f"checked/{other}") or "{}")
        for name, ours in json.loads(own).items():
            if theirs.get(name) != ours:
                remedy = (
                    f"differs between processes: {self.members[other]} has {theirs.get(name)!r};"
                    " start all with the same"
                )
                raise ConfigError(name, ours, remedy)


def _outlive_abort() -> None:
    """Keeps this process alive, without output, for its remaining seconds.

    JAX's runtime aborts process 0 when it loses the others, from a thread without Python.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    # The aborting thread sleeps for 6 seconds, the number of the signal.
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))


def runtime_state() -> Any:
    """Returns JAX's state of the connection, which is private. Orbax also uses it."""
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    return runtime_state().client
