"""Keeps small files in a folder that only the user may write: checked, written atomically, the least recently used removed."""

import contextlib
import hashlib
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterator

_SUFFIX, _UNFINISHED = ".kept", ".unfinished"
_UNFINISHED_SECONDS = 3600.0  # after which nobody is still writing a file of a megabyte
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DIGEST_BYTES = 32


class PrivateFolder:
    """Files by name, whose content is that which was written or else not there.

    Several processes may use it at once, and be killed at any instant: a file appears whole, under its name, or not at all. A
    folder or file that belongs to another user, or that others may write, is as good as none; so is a file whose digest does not
    match.

    Args:
        path: of the folder, which `write` creates.
        most_bytes: of all files together, beyond which the least recently used go.
    """

    def __init__(self, path: pathlib.Path, most_bytes: int) -> None:
        self._path, self._most_bytes = path, most_bytes

    def read(self, name: str) -> bytes | None:
        """Returns what was written under a name, and notes its use; None if there is nothing that can be trusted."""
        with contextlib.suppress(OSError), self._opened() as folder:
            file = os.open(name + _SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(file, "rb") as opened:
                _check(os.fstat(file), stat.S_ISREG)
                content = opened.read()
                if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
                    return None
                os.utime(file)
                return content[_DIGEST_BYTES:]
        return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file in place of what is there; a failure, on a full disk for one, leaves things as they were."""
        with contextlib.suppress(OSError):
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                self._make_room(folder, len(content) + _DIGEST_BYTES)
                unfinished = f"{name}.{os.getpid()}.{time.monotonic_ns()}{_UNFINISHED}"
                try:
                    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                    with os.fdopen(file, "wb") as opened:
                        opened.write(hashlib.sha256(content).digest() + content)
                    os.replace(unfinished, name + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(unfinished, dir_fd=folder)
                    raise

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _check(os.fstat(folder), stat.S_ISDIR)
            yield folder
        finally:
            os.close(folder)

    def _make_room(self, folder: int, size: int) -> None:
        """Removes what killed processes left half written, and so many files that `size` bytes more are within the limit."""
        kept: list[tuple[float, int, str]] = []
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # another process may have removed it
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if name.endswith(_SUFFIX):
                    kept.append((found.st_mtime, found.st_size, name))
                elif name.endswith(_UNFINISHED) and found.st_mtime < time.time() - _UNFINISHED_SECONDS:
                    os.unlink(name, dir_fd=folder)
        total = size + sum(each[1] for each in kept)
        for _, freed, name in sorted(kept):
            if total <= self._most_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            total -= freed


def _check(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Raises PermissionError unless it is of this kind, belongs to the user and nobody else may write it."""
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError
