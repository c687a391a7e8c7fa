"""Draws the curves of a run from the rows of metrics.jsonl."""

import functools
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxdp.reporting import fonts, pictures
from jaxdp.reporting.fonts import Figure
from jaxdp.text.parsing import is_finite

COLORS = {"train": "#7a8ba6", "validation": "#2e8b8b", "test": "#d1495b"}  # of splits
_STYLE: Any = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


def curves_figure(rows: Sequence[dict[str, Any]], *, title: str, metric_name: str) -> Figure:
    """Draws loss and one metric over the steps, with a curve for each split that has rows.

    Args:
        metric_name: the metric next to the loss, e.g. `accuracy`.

    Returns:
        A figure that Jupyter shows as the value of a cell, and that pyplot does not manage.
    """
    with fonts.without_warnings(_STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for axes, name in zip(figure.subplots(1, 2), ("loss", metric_name), strict=True):
            for split, color in COLORS.items():
                points = [
                    (row["step"], row[name])
                    for row in rows
                    if row["split"] == split
                    and is_finite(row.get("loss"))
                    and is_finite(row.get(name))
                ]
                if points:
                    marker = "o" if split != "train" or len(points) == 1 else None
                    look = {"marker": marker, "markersize": 3.5, "linewidth": 1.8}
                    axes.plot(*zip(*points, strict=True), color=color, label=split, **look)
            axes.set_xlabel("step")
            axes.set_ylabel(name, parse_math=False)  # a dollar sign does not begin mathematics
            axes.grid(alpha=0.25)
            if name == "loss":
                axes.set_yscale("log")
            if axes.lines:
                axes.legend(frameon=False)
        figure.suptitle(title, fontsize=12, parse_math=False)
    # Only pyplot would make Jupyter show figures, but it would keep each figure open.
    figure._repr_png_ = functools.partial(_png, figure)  # pyright: ignore
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with fonts.without_warnings(_STYLE):
        figure.savefig(buffer, format="png", dpi=75)
    return buffer.getvalue()


def plot_curves(
    rows: Sequence[dict[str, Any]], path: pathlib.Path, *, title: str, metric_name: str
) -> None:
    """Writes the drawing of `curves_figure` as PNG."""
    figure = curves_figure(rows, title=title, metric_name=metric_name)
    with fonts.without_warnings(_STYLE):
        pictures.save(figure, path, dpi=150)
