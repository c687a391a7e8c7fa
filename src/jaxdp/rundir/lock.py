"""The lock on the folder of a run: one process writes there at a time, and the lock of a process
that died is free.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import socket
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdp.registry import ConfigError
from jaxdp.rundir.read import DamagedFile, read_object

NAME = "writer.lock"


class FolderLocked(ConfigError):
    """Another process writes the folder of the run."""


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock of the folder that the file is in until the block ends.

    Raises:
        FolderLocked: if another process holds it.
        ConfigError: if the file cannot be written.
    """
    descriptor = _take(path)
    try:
        yield
    finally:
        # The file goes while it is still locked: a process that opened it meanwhile finds that it
        # is no longer the one in the folder. After a move of the folder another run may have its
        # lock there, and in a folder that is read-only by now the error that ended the run counts.
        with contextlib.suppress(OSError):
            if is_same_file(descriptor, path):
                path.unlink()
        os.close(descriptor)


def is_held(path: pathlib.Path) -> bool:
    """Whether the process that the file names lives, as far as this host shows."""
    return _lives(_holder(path))


def is_same_file(descriptor: int, path: pathlib.Path) -> bool:
    """Whether a path leads to what was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _take(path: pathlib.Path) -> int:
    """Returns the descriptor that holds the lock."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder removed it between our opening and locking it.
            if not is_same_file(descriptor, path):
                os.close(descriptor)
                continue
        except OSError as error:
            refused = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
            holder = _holder(path)
            # Otherwise the file system has no locks, and no process that lives needs one.
            if refused or _lives(holder):
                os.close(descriptor)
                hint = "" if refused else f" (if it is gone, remove {path})"
                raise FolderLocked(
                    "run_dir",
                    path.parent,
                    f"is being written by {_describe(holder)}{hint}; wait for it or stop it, or"
                    " give another folder",
                ) from error
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(content).encode(), 0)
        return descriptor


def _open(path: pathlib.Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        remedy = f"{path.name} in it cannot be written ({error.strerror}); give another folder"
        raise ConfigError("run_dir", path.parent, remedy) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(
            "run_dir", path.parent, f"{path.name} in it is no regular file; remove it"
        )
    return descriptor


def _describe(holder: Mapping[str, Any] | None) -> str:
    if holder is None:
        return "another process"
    return f"process {holder['pid']} on {holder['host']} since {holder['started']}"


def _holder(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns what a lock file says; None while it is being written."""
    with contextlib.suppress(DamagedFile):
        content = read_object(path, checked=False)
        pid = content.get("pid")
        if content.keys() >= {"host", "started"} and isinstance(pid, int) and 0 < pid < 2**31:
            return content
    return None


def _lives(holder: Mapping[str, Any] | None) -> bool:
    """Whether the process may still be there; one of another host counts as alive."""
    if holder is None:
        return False
    if holder["host"] != socket.gethostname():
        return True
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
