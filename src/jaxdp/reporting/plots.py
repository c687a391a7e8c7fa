"""What did the run look like? Pictures drawn from the rows of metrics.jsonl."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = {"train": "#7a8ba6", "test": "#d1495b"}


def plot_curves(rows: Sequence[dict[str, Any]], path: pathlib.Path, *, title: str, figure_name: str) -> None:
    """Draws loss and one figure over the steps, training and test in each.

    Args:
        figure_name: the figure beside the loss, e.g. `accuracy`.
    """
    with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, name in zip(figure.subplots(1, 2), ("loss", figure_name), strict=True):
            for split, color in COLORS.items():
                points = [(row["step"], row[name]) for row in rows if row["split"] == split and math.isfinite(row["loss"])]
                if points:
                    steps, values = zip(*points, strict=True)
                    marker = "o" if split == "test" or len(points) == 1 else None
                    axes.plot(steps, values, color=color, label=split, marker=marker, markersize=3.5, linewidth=1.8)
            axes.set(xlabel="step", ylabel=name)
            axes.grid(alpha=0.25)
            if name == "loss":
                axes.set_yscale("log")
            if axes.lines:
                axes.legend(frameon=False)
        figure.suptitle(title, fontsize=12)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
