"""Locks the folder of a run, so that one process writes to it at a time. The lock of a dead process
is free.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import stat
from collections.abc import Iterator
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.rundir.read import DamagedFile, read_object
from jaxdp.text.console import warn
from jaxdp.text.units import time_text

NAME = "writer.lock"


class FolderLocked(ConfigError):
    """Another process writes the folder of the run."""


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock of the run folder that the file is in until the block ends.

    Raises:
        FolderLocked: if another process holds it.
        ConfigError: if the file cannot be written.
    """
    descriptor = _take(path)
    try:
        yield
    finally:
        # The file is removed while it is still locked. A process that opened it meanwhile finds
        # that it is no longer the file in the folder. After a move of the folder, another run may
        # have its lock there. If the folder is read-only by now, the error that ended the run takes
        # precedence.
        with contextlib.suppress(OSError):
            if is_same_file(descriptor, path):
                path.unlink()
        os.close(descriptor)


def is_same_file(descriptor: int, path: pathlib.Path) -> bool:
    """Returns whether a path leads to the opened file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _take(path: pathlib.Path) -> int:
    """Returns the descriptor that holds the lock."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            remedy = f"{path.name} in it cannot be written ({error.strerror}); give another folder"
            raise ConfigError("run_dir", path.parent, remedy) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            remedy = f"{path.name} in it is no regular file; remove it"
            raise ConfigError("run_dir", path.parent, remedy)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(descriptor)
            holder = _holder(path)
            by = "another process"
            if holder is not None:
                by = f"process {holder['pid']} on {holder['host']} since {holder['started']}"
            remedy = f"is being written by {by}; wait for it or stop it, or give another folder"
            raise FolderLocked("run_dir", path.parent, remedy) from error
        except OSError as error:
            warn(
                f"{path.parent} cannot be locked ({error.strerror}); start no second run that"
                " writes there"
            )
        if is_same_file(descriptor, path):
            break
        os.close(descriptor)  # its holder removed it between our opening and locking it
    content = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time_text(),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(content).encode(), 0)
    return descriptor


def _holder(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the content of a lock file; None while it is being written."""
    with contextlib.suppress(DamagedFile):
        return read_object(path)
    return None
