"""A classifier's confusion matrix: a figure, and a table of counts, `confusion.csv`."""

import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from jaxdp import csv_text
from jaxdp.reporting import fonts, pictures
from jaxdp.rundir.read import read_text
from jaxdp.rundir.write import replace_file

_MOST_NUMBERS = 30  # classes whose counts are legible in the cells
_LONGEST_NAME = 24  # characters of a name next to the matrix
_INCHES_OF_MANY = 13.0  # side of the figure; the report shows it in nearly full size
_LETTERS_AN_INCH = 10  # of the title
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # between the classes that are named
_COLUMNS = ["actual", "predicted", "images"]


def plot(
    confusion: np.ndarray, class_names: Sequence[str], path: pathlib.Path, *, title: str
) -> np.ndarray:
    """Draws counts (actual, predicted), colored by their share of the actual class.

    Returns the drawing as uint8 (H, W, 3).

    Up to 30 classes have their counts in the cells. For more classes the figure has no counts and
    as many names as are legible, and a line below says so.
    """
    count, notes = len(class_names), []
    few = count <= _MOST_NUMBERS
    side, every = min(max(4.0, 0.5 * count + 2.0), 15.0), 1
    if not few:
        side = _INCHES_OF_MANY
        every = next((step for step in _STEPS if 72 * 0.75 * side * step / count >= 11), count)
        which = f"every {every}{'nd' if every == 2 else 'th'} is named, " if every > 1 else ""
        table = "(they are in confusion.csv)"
        notes.append(f"{count} classes: {which}counts are left out {table}")
    if any(map(fonts.missing, class_names)):
        notes.append("numbers from 0 stand for names that Matplotlib's fonts cannot show")
    labels = [_label(index, name) for index, name in enumerate(class_names)][::every]
    margin = 0.09 * max(map(len, labels)) if few else 0.0  # for the names
    width = side + margin + 0.8
    style: dict[str, Any] = {} if few else {"fontsize": 9, "rotation": 90}
    if few and max(map(len, labels)) > 2:
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    with matplotlib.rc_context({"font.size": 11 if few else 13}):
        figure = Figure(figsize=(width, side + 0.7 * margin), layout="constrained")
        axes = figure.subplots()
        shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
        # Of many classes each is confused with few others and rarely: a linear scale would show the
        # diagonal alone.
        shown = axes.imshow(shares, cmap="Blues", norm=PowerNorm(1.0 if few else 0.4, 0, 1))
        ticks = None if few else [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1]
        figure.colorbar(shown, ax=axes, label="share of the actual class", shrink=0.85, ticks=ticks)
        wrapped = textwrap.fill(fonts.drawn(title), int(_LETTERS_AN_INCH * width))
        figure.suptitle(wrapped, fontsize=12)
        axes.set(xlabel="predicted class", ylabel="actual class")
        axes.set_xticks(range(0, count, every), labels, **style)
        axes.set_yticks(range(0, count, every), labels, fontsize=None if few else 9)
        if notes:
            figure.supxlabel("; ".join(notes), fontsize=10 if few else 11, wrap=True)
        for row, column in np.argwhere(confusion > 0) if few else ():
            color = "white" if shares[row, column] > 0.5 else "black"
            text, size = f"{confusion[row, column]:.0f}", 11 if count <= 12 else 8
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
        return pictures.save(figure, path)


def _label(index: int, name: str) -> str:
    """Returns the name of a class as the matrix shows it."""
    if fonts.missing(name):
        return str(index)
    return fonts.drawn(name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…")


def write(confusion: np.ndarray, class_names: Sequence[str], path: pathlib.Path) -> None:
    """Writes the counts that are not 0, and each class's own, as lines
    `actual,predicted,images`.
    """
    shown = np.argwhere((confusion > 0) | np.eye(len(class_names), dtype=bool))
    rows = [
        (class_names[row], class_names[column], f"{confusion[row, column]:.0f}")
        for row, column in shown
    ]
    path.parent.mkdir(exist_ok=True)
    replace_file(path, csv_text.write([_COLUMNS, *rows]))


def read(path: pathlib.Path) -> dict[str, dict[str, int]]:
    """Returns what `write` wrote: the number of images by actual and predicted class.

    Raises:
        ValueError: if the file cannot be read or holds something else.
    """
    counts: dict[str, dict[str, int]] = {}
    names, *rows = csv_text.read(read_text(path)) or [[]]
    if names != _COLUMNS:
        raise ValueError(f"{path} has other columns than {','.join(_COLUMNS)}")
    for actual, predicted, images in rows:
        counts.setdefault(actual, {})[predicted] = int(images)
    return counts
