"""Writes and reads tables as CSV (RFC 4180) in which no text is a formula for a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterable

# An apostrophe makes a spreadsheet show the rest of a cell as text. A text that begins with an
# apostrophe gets another one.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def write(rows: Iterable[Iterable[object]]) -> str:
    """Returns rows as CSV.

    Puts an apostrophe before text that a spreadsheet would evaluate as a formula, but never before
    a number.
    """
    text = io.StringIO()
    csv.writer(text).writerows(map(_shield, row) for row in rows)
    return text.getvalue()


def read(text: str) -> list[list[str]]:
    """Returns the cells that were passed to `write`, as strings.

    Raises:
        ValueError: if the text is not CSV.
    """
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return [
        [cell.removeprefix("'") if _FORMULA.match(cell) else cell for cell in row] for row in rows
    ]


def _shield(cell: object) -> object:
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
