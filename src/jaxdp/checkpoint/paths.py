"""Provides paths that have the same meaning for Orbax and for the operating system."""

import contextlib
import fcntl
import os
import pathlib
import re
from collections.abc import Iterator

from jaxdp.errors import ConfigError

# Orbax and its libraries interpret characters anywhere in a path as a pattern (`[`, `*`, `?`), a
# separator (a backslash) or a protocol (`gs:/`), and then skip files or read other files.
_PLAIN = re.compile(r"(?!//?(gs|s3|az|hf)/)[\w ./@%+=,~-]+")
# Processes that save together must use the same name for a folder. All processes use the first free
# descriptor from this number, which other code does not use.
_FIRST_DESCRIPTOR = 512


@contextlib.contextmanager
def plain(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path without special characters that leads to a folder until the block ends.

    The path is the path itself, or the folder's descriptor, which leaves no files after a kill.

    Args:
        folder: absolute; its parent must exist.

    Raises:
        ConfigError: if the system has no such descriptors.
        OSError: if the parent cannot be opened.
    """
    if _PLAIN.fullmatch(str(folder)):
        yield folder
        return
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    descriptor = None
    try:
        with contextlib.suppress(OSError):  # a limit of fewer open files
            descriptor = fcntl.fcntl(parent, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        path = pathlib.Path(f"/proc/self/fd/{descriptor}")
        if not path.is_dir():
            remedy = f"Orbax misreads the path {folder.parent} on this system; give another folder"
            raise ConfigError("run_dir", folder.parent, remedy)
        yield path / folder.name
    finally:
        os.close(parent)
        if descriptor is not None:
            os.close(descriptor)
