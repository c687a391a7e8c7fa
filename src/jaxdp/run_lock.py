"""The lock on the folder of a run: one process writes there at a time, and one that died is in
nobody's way.
"""

import datetime
import errno
import fcntl
import json
import os
import pathlib
import socket
import stat
from collections.abc import Mapping
from typing import Any

from jaxdp import run_files
from jaxdp.registry import ConfigError


class FolderLocked(ConfigError):
    """Another process writes the folder of the run."""


def take(lock_file: pathlib.Path) -> int:
    """Locks the folder that the file is in, and returns the descriptor that holds the lock.

    Raises:
        FolderLocked: if another process holds it.
        ConfigError: if the file cannot be written.
    """
    while True:
        try:
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            remedy = (
                f"{lock_file.name} in it cannot be written ({error.strerror}); give another folder"
            )
            raise ConfigError("run_dir", lock_file.parent, remedy) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConfigError(
                "run_dir", lock_file.parent, f"{lock_file.name} in it is no regular file; remove it"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder removed it between our opening and locking it.
            if not is_in_place(descriptor, lock_file):
                os.close(descriptor)
                continue
        except OSError as error:
            refused = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
            holder = _holder(lock_file)
            # Else there are no locks here, and nobody who would need one.
            if refused or _lives(holder):
                os.close(descriptor)
                rest = "" if refused else f" (if it is gone, remove {lock_file})"
                remedy = (
                    f"is being written by {_who(holder)}{rest}; wait for it or stop it, or give"
                    " another folder"
                )
                raise FolderLocked("run_dir", lock_file.parent, remedy) from error
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(content).encode(), 0)
        return descriptor


def is_held(lock_file: pathlib.Path) -> bool:
    """Whether the process that it names lives, as far as this host tells."""
    return _lives(_holder(lock_file))


def is_in_place(descriptor: int, path: pathlib.Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _who(holder: Mapping[str, Any] | None) -> str:
    return (
        f"process {holder['pid']} on {holder['host']} since {holder['started']}"
        if holder
        else "another process"
    )


def _holder(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns what a lock file says; nothing while it is being written."""
    try:
        content = run_files.read_object(path, checked=False)
    except run_files.DamagedFile:
        return None
    pid = content.get("pid")
    return (
        content
        if content.keys() >= {"host", "started"} and isinstance(pid, int) and 0 < pid < 2**31
        else None
    )


def _lives(holder: Mapping[str, Any] | None) -> bool:
    """Whether the process may still be there; of another host nobody can tell from here."""
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
