"""Reads the files of a run, which may have any content: text, objects that a schema checks, and
rows.

An unreadable file raises DamagedFile, which is one line with the file, its problem and the remedy.
A command that only reads a run changes nothing in its folder. Unreadable rows are never dropped. A
reader reports their number, and the next writer moves them to `damaged/`.
"""

import contextlib
import os
import pathlib
import stat
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.rundir import schemas
from jaxdp.runtime.free_memory import check_memory
from jaxdp.text.console import warn
from jaxdp.text.parsing import parse_json

# Plain values by name: a line of metrics.jsonl, of a table, or that `--json` prints.
Row = dict[str, Any]
DAMAGED = "damaged"  # folder next to the files of a run


class DamagedFile(ConfigError):
    """A file of a run that cannot be read.

    Args:
        path: of the file, in the folder of its run.
        problem: what is wrong with it.
    """

    def __init__(self, path: pathlib.Path, problem: str) -> None:
        self.path, self.problem = path, problem
        kind = schemas.KINDS.get(path.name)
        about = f"; it has {kind.purpose}: {kind.remedy}" if kind is not None else ""
        super().__init__("run_dir", path.parent, f"{path.name} cannot be read ({problem}){about}")


def read_bytes(path: pathlib.Path) -> bytes:
    """Returns the content of a file.

    Raises:
        DamagedFile: if it cannot be read, is not a regular file and might never end, or would take
            more memory than is free.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        check_memory(status.st_size)
        return path.read_bytes()
    except OSError as error:
        raise DamagedFile(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise DamagedFile(path, str(error)) from error


def read_text(path: pathlib.Path) -> str:
    """Returns the content of a text file.

    Raises:
        DamagedFile: if it cannot be read (see `read_bytes`), or is not UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(path, f"byte {error.start} is no UTF-8") from error


def read_line(path: pathlib.Path) -> str:
    """Returns the line in a text file; nothing if there is no file.

    For an unreadable file, prints a warning.
    """
    try:
        return read_text(path).strip() if path.exists() else ""
    except DamagedFile as error:
        warn(error)
        return ""


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file, checked by the schema for the name of the file.

    Raises:
        DamagedFile: if the file cannot be read, or holds something else.
    """
    text = read_text(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DamagedFile(path, str(error)) from error
    if problem := schemas.problem(content, path.name):
        raise DamagedFile(path, problem)
    return content


def read_rows(path: pathlib.Path) -> tuple[list[Row], list[bytes]]:
    """Returns the objects in a file with one object per line, none if there is no file, and the
    unreadable lines.

    An incomplete last line is neither, because it is not yet a row, or never became one.

    Raises:
        DamagedFile: if the file cannot be read at all.
    """
    rows, lost = list[Row](), list[bytes]()
    lines = read_bytes(path).split(b"\n") if os.path.lexists(path) else []
    for number, line in enumerate(lines, 1):
        row: Any = None
        with contextlib.suppress(ValueError):  # not JSON, or not UTF-8
            row = parse_json(line.decode())
        if not schemas.problem(row, path.name):
            rows.append(row)
        elif line.strip() and number < len(lines):
            lost.append(line)
    return rows, lost


def read_lines(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a file, and warns of unreadable rows."""
    rows, lost = read_rows(path)
    if lost:
        warn(
            f"{path}: {rows_count(len(lost))} cannot be read, and left out; the next start of the"
            f" run moves them to {DAMAGED}/"
        )
    return rows


def rows_count(count: int) -> str:
    """Returns e.g. `1 row` or `2 rows`."""
    return f"{count} row{'' if count == 1 else 's'}"
