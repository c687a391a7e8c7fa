"""Reads labels.csv, which has a line for each image of a folder: its classes, or its numbers."""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data.dataset import VECTOR_FIELDS
from jaxdp.data.find_images import USUAL, find_images
from jaxdp.data.request import Request
from jaxdp.data.split_selection import usual_names
from jaxdp.errors import flag
from jaxdp.text import csv_text
from jaxdp.text.console import say
from jaxdp.text.messages import some

NAME = "labels.csv"
SEPARATOR = ";"  # between the classes of an image
Labelled = tuple[Path, int | np.ndarray | str]  # an image, and its target or its problem


def is_there(request: Request, path: Path, folders: Mapping[str, Path]) -> bool:
    """Returns whether a folder, or the folder of a split in it, has a table that names images, for
    a task that is accepted. Many datasets have another file of this name, such as a list of
    classes; a line reports it.
    """
    tables = [each / NAME for each in (path, *folders.values()) if (each / NAME).is_file()]
    if not tables or (request.tasks and not {"classification", *VECTOR_FIELDS} & {*request.tasks}):
        return False
    with contextlib.suppress(OSError, ValueError):
        header = csv_text.read(tables[0].read_text("utf-8-sig"))[:1]
        if header and usual_names(USUAL["columns"]["file"], [name.strip() for name in header[0]]):
            say(f"note: {request.config.dataset}: labels are read from {tables[0]}")
            return True
    say(f"note: {request.config.dataset}: {tables[0]} has no column file, and is not read")
    return False


def read(
    request: Request, path: Path, folders: Mapping[str, Path]
) -> tuple[str, dict[str, list[Labelled]], tuple[str, ...]]:
    """Returns the task, the images of each split with their targets, and the names of the classes
    or numbers.

    One table names all images, or each folder of a split has a table. Files are relative to the
    folder of the table.

    A single column named like `labels` holds the classes of each image, separated by semicolons. A
    single other column, or several columns, hold numbers; if all are 0 or 1, several columns mark
    classes.

    Raises:
        ConfigError: for a table without a column of files, with other columns than the table of
            another split, or with cells that are neither classes nor numbers.
    """
    columns, table = tuple[str, ...](), list[tuple[str, Path, list[str]]]()
    for split, folder in folders.items():
        place = folder / NAME if (folder / NAME).is_file() else path / NAME
        found, lines = _lines(request, place)
        if columns and found != columns:
            remedy = f"{place} has the columns {some(found)}, and another {some(columns)}"
            raise request.error(f"{remedy}; make them alike")
        columns = found
        for file in lines:
            if not any(each in file.parents for each in folders.values()):
                raise request.error(f"{file} of {place} lies in no folder of a split")
        inside = {file: cells for file, cells in lines.items() if folder in file.parents}
        table += ((split, file, cells) for file, cells in inside.items())
        unlisted = [file for file in find_images(folder) if file not in inside]
        if unlisted:
            held = f"{len(unlisted)} pictures are not in {place}, e.g. {unlisted[0]}"
            say(f"note: {request.config.dataset}: {held}; they are not read")
    if len(columns) == 1 and columns[0].lower() in USUAL["columns"]["classes"]:
        task, targets, columns = _classes(request, next(iter(folders)), table)
    else:
        task, targets = _numbers(request, columns, [cells for *_, cells in table])
    files: dict[str, list[Labelled]] = {split: [] for split in folders}
    for (split, file, _), target in zip(table, targets, strict=True):
        is_missing = f"is named in {NAME}, and is not there"
        files[split].append((file, target if file.is_file() else is_missing))
    return task, files, columns


def _numbers(
    request: Request, columns: tuple[str, ...], table: Sequence[Sequence[str]]
) -> tuple[str, list[Any]]:
    """Returns the task, and the target of each image."""
    numbers = [[_number(cell) for cell in cells] for cells in table]
    is_mark = [{*values} <= {0, 1} for values in zip(*numbers, strict=True)]
    for name, values in zip(columns, zip(*numbers, strict=True), strict=True):
        if not any(map(math.isfinite, values)):
            remedy = "holds text; call a single column of classes labels, or leave it out"
            raise request.error(f"column {name} of {NAME} {remedy}")
    if is_mark == [True] and not request.asks_for_numbers:
        ways = "call it label if these are classes, or else give"
        remedy = f"holds 0 and 1 only; {ways} {flag('task', 'scalar_regression')}"
        raise request.error(f"column {columns[0]} of {NAME} {remedy}")
    task = request.choose(*("multilabel",) * all(is_mark), "scalar_regression")
    return task, [_vector(task, row, columns) for row in numbers]


def _classes(
    request: Request, train: str, table: Sequence[tuple[str, Path, list[str]]]
) -> tuple[str, list[Any], tuple[str, ...]]:
    """Returns the task, the target of each image, and the names of the classes, which the training
    images determine, or all images for a trained model.
    """
    sets = [
        [each.strip() for each in cell.split(SEPARATOR) if each.strip()] for *_, (cell,) in table
    ]
    several = any(len(names) != 1 for names in sets)
    task = request.choose(*("classification",) * (not several), "multilabel")
    decides = [request.known is not None or split == train for split, *_ in table]
    known = {name for each in itertools.compress(sets, decides) for name in each}
    if unknown := sorted({name for each in sets for name in each} - known):
        raise request.error(f"{NAME}: no training image has the class {some(unknown)}")
    counted = all(name.isdecimal() for name in known)
    classes = sorted(known, key=lambda name: (int(name) if counted else 0, name))
    targets: list[Any] = [classes.index(names[0]) for names in sets] if not several else []
    if task == "multilabel":
        targets = [np.isin(classes, names).astype(np.uint8) for names in sets]
    return task, targets, tuple(classes)


def _lines(request: Request, table: Path) -> tuple[tuple[str, ...], dict[Path, list[str]]]:
    """Returns the names of the columns, and the cells of each image, without the file."""
    try:
        header, *rows = csv_text.read(table.read_text("utf-8-sig")) or [[]]
    except (OSError, ValueError) as error:
        raise request.error(f"{table} cannot be read: {error}") from error
    header = [name.strip() for name in header]
    file = next(iter(usual_names(USUAL["columns"]["file"], header)), None)
    if file is None or len(header) < 2:
        remedy = "write a line file,labels, and below it a line for each image, e.g. 1.png,cat;dog"
        raise request.error(f"{table} has the columns {some(header) or 'none'}; {remedy}")
    place = header.index(file)
    lines: dict[Path, list[str]] = {}
    for number, row in enumerate(rows, 2):
        if not any(row):
            continue
        if len(row) != len(header):
            raise request.error(f"line {number} of {table} has {len(row)} cells, not {len(header)}")
        path = table.parent / row[place].strip()
        if path in lines:
            raise request.error(f"line {number} of {table} names {row[place]} once more")
        lines[path] = row[:place] + row[place + 1 :]
    return (*header[:place], *header[place + 1 :]), lines


def _number(cell: str) -> float:
    """Returns the number in a cell, NaN for anything else."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _vector(task: str, numbers: Sequence[float], columns: Sequence[str]) -> Any:
    for name, number in zip(columns, numbers, strict=True):
        if not math.isfinite(number):
            return f"has no number for {name} in {NAME}"
    return np.array(numbers, np.uint8 if task == "multilabel" else np.float32)
