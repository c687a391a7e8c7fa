"""Compares runs by the files in their folders: prints a table, and draws curves in compare.png.

python examples/compare_runs.py runs/*

The table has the best run of each dataset first. Its metric is the best on validation data, or the
last on test data if the run has no validation data. docs/run-folder.md describes the files.
"""

import argparse
import itertools
import json
import math
import pathlib
import sys
from typing import Any

import yaml
from matplotlib.figure import Figure

HEAD = ("folder", "status", "model", "dataset", "metric", "loss", "steps", "seconds", "devices")
# The palette of Okabe and Ito, which color-blind readers can tell apart, without its pale yellow.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LOOKS = [*itertools.product(("-", "--", ":"), COLORS)]


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of a file, without a last row that is still being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


class Run:
    """The files of a run, and its line in the table. The summary is empty until the run ends."""

    def __init__(self, folder: pathlib.Path) -> None:
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        self.folder, self.rows = str(folder), read_rows(folder / "metrics.jsonl")
        events = [row["event"] for row in read_rows(folder / "history.jsonl")]
        summary, file = dict[str, Any](), folder / "summary.json"
        # A run that was resumed keeps the summary of its earlier end until it ends again.
        if file.exists() and events[-1] in ("done", "stopped", "diverged", "saved"):
            summary = json.loads(file.read_text())
        splits = [row["split"] for row in self.rows]
        self.split = "validation" if "validation" in splits else "test"
        result = summary.get("best") or summary.get("metrics", {}).get(self.split, {})
        ranking = summary.get("best_metric", {"name": "", "larger_is_better": False})
        self.metric, score = ranking["name"], result.get(ranking["name"], math.nan)
        rank = -score if ranking["larger_is_better"] else score
        self.key = (settings["dataset"], math.isnan(score), self.metric, rank)
        steps = summary.get("steps", max((row["step"] for row in self.rows), default=0))
        self.cells = (
            self.folder,
            summary.get("status", "unfinished"),
            settings["model"],
            settings["dataset"],
            f"{self.split} {self.metric} {number(score, 4)}" if summary else "-",
            number(result.get("loss", math.nan), 4),
            str(steps),
            number(summary.get("seconds", {}).get("total", math.nan), 1),
            str(summary.get("workers", summary.get("devices", "-"))),
        )


def draw(runs: list[Run]) -> Figure:
    """Returns the curves of the loss and of the metrics over the steps."""
    names = [*dict.fromkeys(["loss", *(run.metric for run in runs if run.metric)])]
    figure = Figure((6 * len(names), 4 + 0.25 * len(runs)), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    looks = [*zip(runs, itertools.cycle(LOOKS))]
    for axes, name in zip(panels, names, strict=True):
        for run, (style, color) in reversed(looks):  # the best run above the others
            label = run.folder.replace("$", r"\$")  # no mathematics
            for split, look in (("train", {"linewidth": 0.8}), (run.split, {"marker": "."})):
                rows = [row for row in run.rows if row["split"] == split and name in row]
                steps, values = [row["step"] for row in rows], [row[name] for row in rows]
                axes.plot(steps, values, linestyle=style, color=color, label=label, **look)
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
    losses = [row["loss"] for run in runs for row in run.rows]
    if losses and max(losses) > 10 * min(losses) > 0:
        panels[0].set_yscale("log")
    title = "best first; dots: validation or test, thin lines: training"
    figure.legend(handles=panels[0].lines[::-2], loc="outside lower center", title=title)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="folders of runs")
    folders = parser.parse_args().folders
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            print(f"{folder} holds no run; give folders of runs, e.g. runs/*", file=sys.stderr)
            return 2
    runs = sorted(map(Run, folders), key=lambda run: run.key)
    table = [HEAD, *(run.cells for run in runs)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    draw(runs).savefig("compare.png", dpi=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
