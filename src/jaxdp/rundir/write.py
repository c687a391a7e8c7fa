"""Writes files: whole or not at all, and never through a link, which could lead out of a folder."""

import contextlib
import errno
import json
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from jaxdp.registry import ConfigError
from jaxdp.rundir.read import DAMAGED, Row, rows_count, split_lines, warn


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a new file that replaces another at the end of the block: at every instant the old or
    the new content is there.

    A link is replaced by the new file, and its target stays.
    """
    # No link can wait under a name that cannot be foreseen.
    written = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        with written.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            written.unlink()
        # The name of the new file says nothing to a person.
        if isinstance(error, OSError) and error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_file(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file as `replacing` does."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def no_link(path: str, flags: int) -> int:
    """Opens a file as `open(..., opener=no_link)` needs it, and fails for a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns what a file of one object a line holds."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def keep_readable(path: pathlib.Path, *, torn: bool) -> list[Row]:
    """Leaves the rows that can be read in a file, moves the others to `damaged/` with a warning,
    and returns the rows.

    Args:
        torn: whether a last line that was cut short is also moved; otherwise it is dropped, for a
            file whose last rows come again.
    """
    found = split_lines(path)
    lost = found.lost + [found.cut_short] * bool(torn and found.cut_short)
    if lost:
        aside = path.parent / DAMAGED / path.name
        aside.parent.mkdir(exist_ok=True)
        with open(aside, "ab", opener=no_link) as file:
            file.writelines(line + b"\n" for line in lost)
        warn(f"{path}: {rows_count(len(lost))} cannot be read, and moved to {aside}")
    content = b"".join(line + b"\n" for line in found.kept)
    if path.exists() and content != path.read_bytes():
        replace_file(path, content)
    return found.rows


def append_row(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Adds a row to a file; what a kill cut short before it is moved to `damaged/`."""
    with open(path, "ab+", opener=no_link) as file:
        file.seek(0)
        is_cut_short = file.read()[-1:] not in (b"", b"\n")
    if is_cut_short:
        keep_readable(path, torn=True)
    with open(path, "ab", opener=no_link) as file:
        file.write(rows_text([row]).encode())


def set_aside(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Moves a file or folder into another folder, under a name that is free there, and returns
    where it is now.

    Raises:
        ConfigError: if it cannot be moved.
    """
    target, number = folder / path.name, 2
    try:
        folder.mkdir(exist_ok=True)
        while target.exists():
            target, number = target.with_name(f"{path.name}-{number}"), number + 1
        shutil.move(path, target)  # also to another file system
    except OSError as error:
        remedy = (
            f"{path} is damaged and cannot be moved to {target} ({error.strerror or error}); move"
            " it away yourself"
        )
        raise ConfigError("run_dir", folder.parent, remedy) from error
    return target


def check_folder(field: str, folder: pathlib.Path) -> None:
    """Creates a folder if there is none, and makes sure that files can be written in it.

    Args:
        field: the setting that names it.

    Raises:
        ConfigError: if they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            field, folder, f"cannot be written ({error.strerror}); give another folder"
        ) from error


def check_file(field: str, path: pathlib.Path, example: str) -> None:
    """Makes sure that a path names a regular file, or a new one, so that `replace_file` replaces
    nothing else.

    Args:
        field: the setting that names it.
        example: name of a file, for the error.

    Raises:
        ConfigError: for a folder, a device, a pipe or a socket, and a symbolic link to one.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:  # a new file; one that is out of reach fails when it is written
        if error.errno == errno.ELOOP:
            raise ConfigError(
                field, path, f"is a link to itself; give a file, e.g. {example}"
            ) from error
        return
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ConfigError(field, path, f"is {what}; give a file, e.g. {example}")
