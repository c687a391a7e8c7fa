"""Writes files completely or not at all, and never through a link, which could lead out of a
folder.
"""

import contextlib
import json
import os
import pathlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from jaxdp.errors import ConfigError
from jaxdp.rundir.read import DAMAGED, Row, read_rows, rows_count
from jaxdp.text.console import warn
from jaxdp.text.parsing import resolved


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a new file that replaces another file at the end of the block. At any time, either the
    old or the new content exists.

    The new file replaces a link, and the target of the link does not change.
    """
    # No link can exist under an unpredictable name.
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
        # The name of the new file has no meaning for the user.
        if isinstance(error, OSError) and error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_file(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file as `replacing` does."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_output(field: str, path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file that a setting names, and creates its folder. A link stays a link.

    Args:
        field: the setting that names it.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(resolved(path), content)
    except OSError as error:
        raise ConfigError(field, path, f"cannot be written: {error.strerror}") from error


def no_link(path: str, flags: int) -> int:
    """Opens a file for `open(..., opener=no_link)`, and fails for a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the objects of a file with one object per line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def keep_readable(path: pathlib.Path, is_kept: Callable[[Row], bool] = lambda row: True) -> None:
    """Keeps the readable rows to be kept in a file, and moves unreadable lines to `damaged/` with a
    warning.
    """
    rows, lost = read_rows(path)
    if lost:
        aside = path.parent / DAMAGED / path.name
        aside.parent.mkdir(exist_ok=True)
        with open(aside, "ab", opener=no_link) as file:
            file.writelines(line + b"\n" for line in lost)
        warn(f"{path}: {rows_count(len(lost))} cannot be read, and moved to {aside}")
    replace_file(path, rows_text(filter(is_kept, rows)))


def append_row(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Adds a row to a file, and removes an incomplete row before it, which a kill left."""
    with open(path, "ab+", opener=no_link) as file:
        file.seek(0)
        is_cut_short = file.read()[-1:] not in (b"", b"\n")
    if is_cut_short:
        keep_readable(path)
    with open(path, "ab", opener=no_link) as file:
        file.write(rows_text([row]).encode())


def check_folder(field: str, folder: pathlib.Path) -> None:
    """Creates a folder if it does not exist, and makes sure that files can be written in it.

    Args:
        field: the setting that names it.

    Raises:
        ConfigError: if files cannot be written.
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
    """Makes sure that a path names a regular or a new file, so that `replace_file` replaces nothing
    else.

    Args:
        field: the setting that names it.
        example: name of a file, for the error.

    Raises:
        ConfigError: for anything else, such as a folder, a pipe, or a link to itself.
    """
    target = resolved(path)  # a link may lead to a new file
    if os.path.lexists(target) and not target.is_file():
        what = "a folder" if target.is_dir() else "no regular file"
        raise ConfigError(field, path, f"is {what}; give a file, e.g. {example}")
