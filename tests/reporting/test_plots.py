"""The curves of a run are a figure for a notebook."""

import subprocess
import sys


def test_curves_are_a_figure_that_a_notebook_shows_without_pyplot() -> None:
    code = """
import sys
from jaxdp.reporting import plots
for splits in (["train", "test"], ["validation", "test", "train"], []):
    rows = [{"step": step, "split": split, "loss": 1 / step, "accuracy": 0.5} for step in (1, 2) for split in splits]
    figure = plots.curves_figure([*rows, {"step": 3, "split": "train", "loss": float("nan")}], title="t", metric_name="accuracy")
    assert figure._repr_png_().startswith(b"\\x89PNG")
    for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        print(axes.get_xlabel(), axes.get_ylabel() == name, *(line.get_label() for line in axes.lines))
assert "matplotlib.pyplot" not in sys.modules
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    expected = ("step True train test", "step True train validation test", "step True")
    assert shown.splitlines() == [line for line in expected for _ in range(2)]
