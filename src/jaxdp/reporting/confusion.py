"""Draws the confusion matrix of a classifier, and writes a table of counts, `confusion.csv`."""

import pathlib
import textwrap
from collections.abc import Sequence

import numpy as np

from jaxdp.reporting import fonts, pictures
from jaxdp.reporting.fonts import Figure, PowerNorm
from jaxdp.rundir.write import replace_file
from jaxdp.text import csv_text

_MOST_COUNTS = 30  # number of classes up to which counts are legible in the cells
_MOST_NAMES = 60  # number of classes up to which names are legible
_LONGEST_NAME = 24  # characters of a name next to the matrix
_LETTERS_AN_INCH = 10  # of the title


def plot(
    confusion: np.ndarray, class_names: Sequence[str], path: pathlib.Path, *, title: str
) -> np.ndarray:
    """Draws counts (actual, predicted), colored by their share of the actual class.

    Returns the drawing as uint8 (H, W, 3).

    With up to 30 classes, the cells have counts. With more than 60 classes, only as many names are
    drawn as are legible.
    """
    count = len(class_names)
    has_counts = count <= _MOST_COUNTS
    labels = [
        name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        for name in class_names
    ]
    ticks = range(0, count, count // (_MOST_NAMES + 1) + 1)
    longest = max(map(len, labels))
    side = min(0.5 * count + 3.5, 13.5) + 0.08 * longest
    notes = [textwrap.fill(title, int(_LETTERS_AN_INCH * side))]
    notes += [] if has_counts else ["counts are in confusion.csv"]
    style = {"font.size": 11 if has_counts else 9, "text.parse_math": False}
    with fonts.without_warnings(style):
        figure = Figure((side + 0.8, side), layout="constrained")
        axes = figure.subplots()
        shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
        # Each class is rarely confused, and with few other classes, which a linear scale would not
        # show.
        image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
        figure.colorbar(image, ax=axes, label="share of the actual class", shrink=0.85)
        figure.suptitle("\n".join(notes), fontsize=12)
        axes.set(xlabel="predicted class", ylabel="actual class")
        shown = [labels[index] for index in ticks]
        axes.set_xticks(ticks, shown, rotation="vertical" if longest > 2 else "horizontal")
        axes.set_yticks(ticks, shown)
        for row, column in np.argwhere(confusion > 0) if has_counts else ():
            color = "white" if shares[row, column] > 0.25 else "black"
            text, size = f"{confusion[row, column]:.0f}", 11 if count <= 12 else 8
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
        return pictures.save(figure, path)


def write(confusion: np.ndarray, class_names: Sequence[str], path: pathlib.Path) -> None:
    """Writes the counts that are not 0, and the diagonal, as lines `actual,predicted,images`."""
    shown = np.argwhere((confusion > 0) | np.eye(len(class_names), dtype=bool))
    rows = [
        (class_names[row], class_names[column], f"{confusion[row, column]:.0f}")
        for row, column in shown
    ]
    path.parent.mkdir(exist_ok=True)
    replace_file(path, csv_text.write([("actual", "predicted", "images"), *rows]))
