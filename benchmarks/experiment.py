"""Provides the common parts of the experiments and of three benchmarks: runs commands of jaxdp,
keeps their results, draws a figure and writes a table.

    python SCRIPT.py [--tiny] [--data-dir DIR] [--output DIR] [--redraw] [--write [PAGE]]

`--tiny` tries the same in a minute or two, with results that mean nothing. `--output` is the folder
of the figure (default: results/SCRIPT in experiments/ or benchmarks/, with `--tiny`
build/experiments/SCRIPT); the runs themselves go to `runs/experiments/SCRIPT`. `--redraw` takes the
results of the last time from there. `--write` puts the table into a page (default:
experiments/README.md or docs/benchmarks.md).
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from typing import Any

import grid
import matplotlib
import tables
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).parents[1]
# The page with the tables of the scripts in each folder.
PAGES = {
    "benchmarks": ROOT / "docs" / "benchmarks.md",
    "experiments": ROOT / "experiments" / "README.md",
}
# Okabe and Ito's, which people with any colour vision can distinguish.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#4d4d4d", "#e69f00")
# The parts of a run folder in the repository: no checkpoints and no TensorBoard events.
KEPT = ("config.yaml", "dataset.json", "history.jsonl", "metrics.jsonl", "summary.json", "plots")
STYLE: Any = {
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """The files that a training run left."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]

    def training(self, name: str) -> list[float]:
        """Returns a figure of all training rows but the first, which waited for the first step."""
        return [row[name] for row in self.rows if row["split"] == "train"][1:]

    def outcome(self) -> dict[str, Any]:
        """Returns time, speed, test metrics, the training loss of every row and the hardware, as
        experiments keep them.
        """
        return {
            "seconds": self.summary["seconds"]["total"],
            "examples_per_second": self.summary["examples_per_second"],
            "test": self.summary["metrics"]["test"],
            "loss": [row["loss"] for row in self.rows if row["split"] == "train"],
            "where": where(self),
        }


class Experiment:
    """The script that was started.

    Attributes:
        script: its path, from the root of the repository.
        tiny: whether it is only tried.
        output: folder for figures and results.
        data: flags that say where the datasets lie.
    """

    def __init__(self, name: str, description: str | None) -> None:
        self.script = pathlib.Path(sys.argv[0]).resolve().relative_to(ROOT)
        folder = self.script.parts[0]
        page = PAGES[folder]
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--tiny", action="store_true", help="try it in a minute or two")
        parser.add_argument(
            "--data-dir",
            help="where the sets of TensorFlow Datasets lie (default: where that package looks)",
        )
        parser.add_argument("--output", type=pathlib.Path, help="folder for the figure")
        parser.add_argument(
            "--redraw", action="store_true", help="measure nothing, draw the last results again"
        )
        parser.add_argument(
            "--write",
            type=pathlib.Path,
            nargs="?",
            const=page,
            metavar="PAGE",
            help=f"write the table into a page (default: {page.relative_to(ROOT)})",
        )
        self.arguments = parser.parse_args()
        self.name, self.tiny = name, self.arguments.tiny
        self.data = ["--data-dir", self.arguments.data_dir] if self.arguments.data_dir else []
        kept = ROOT / folder / "results" / name
        default = pathlib.Path("build", "experiments", name) if self.tiny else kept
        self.output: pathlib.Path = self.arguments.output or default
        self.output.mkdir(parents=True, exist_ok=True)
        self.runs = pathlib.Path("runs", "experiments", name + "-tiny" * self.tiny)
        if not self.arguments.redraw:
            shutil.rmtree(self.runs, ignore_errors=True)

    def train(
        self,
        name: str,
        flags: Sequence[str],
        *,
        processes: int = 1,
        devices: int = 1,
    ) -> Run:
        """Args:
        devices: of each process.
        """
        folder = self.runs / name
        words = [*flags, "--run-dir", str(folder)]
        if processes == 1:
            command("train", *words, "--devices", str(devices))
        else:
            command(
                "launch",
                "-n",
                str(processes),
                "--devices-per-process",
                str(devices),
                "--",
                "train",
                *words,
            )
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return Run(json.loads((folder / "summary.json").read_text()), rows)

    def grid(self, name: str, *flags: str) -> list[dict[str, Any]]:
        """Returns the records of a grid, which also are in `bench.jsonl` in `self.runs / name`."""
        folder = self.runs / name
        words = [*flags, "--output", str(folder)]
        print(f"\n$ python {grid.PROGRAM} {shlex.join(words)}", flush=True)
        if code := grid.main(words):
            sys.exit(code)
        return [json.loads(line) for line in (folder / "bench.jsonl").read_text().splitlines()]


def run(
    name: str,
    description: str | None,
    measure: Callable[[Experiment], Any],
    show: Callable[[Any], tuple[list[str], Figure]],
) -> None:
    """Measures, and from the results makes a figure, as PNG and SVG, and a table.

    Args:
        measure: returns results that JSON can hold.
        show: takes them and returns the lines of a Markdown table, and a figure.
    """
    experiment = Experiment(name, description)
    file = experiment.output / "results.json"
    if not experiment.arguments.redraw:
        measured = {"machine": tables.machine("jax", "flax"), "results": measure(experiment)}
        file.write_text(json.dumps(measured, indent=1) + "\n")
    kept = json.loads(file.read_text())
    table, figure = show(kept["results"])
    for ending in ("png", "svg"):
        figure.savefig(experiment.output / f"{name}.{ending}", dpi=150)
    text = "\n".join([*table, "", f"`python {experiment.script}`, {kept['machine']}"])
    print(f"\n{text}\n\n{experiment.output}")
    if experiment.arguments.write and not experiment.tiny:
        tables.write(experiment.arguments.write, name, text)


def command(*words: str) -> None:
    """Runs `python -m jaxdp.WORD ...`, and leaves with its exit code if that is not 0."""
    print(f"\n$ python -m jaxdp.{shlex.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", f"jaxdp.{words[0]}", *words[1:]], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def environment(folder: pathlib.Path, *packages: str) -> str:
    """Returns the Python of a virtual environment with the packages of a peer."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def keep(run: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies what a reader may want to see of a run, without the place where this machine has its
    datasets.
    """
    folder.mkdir(exist_ok=True)
    for name in KEPT:
        if (run / name).is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(run / name, folder / name)
        else:
            shutil.copy(run / name, folder)
    config = folder / "config.yaml"
    config.write_text(re.sub("(?m)^data_dir:.*$", "data_dir: null", config.read_text()))


def create_figure(
    columns: int, *, title: str, subtitle: str, height: float = 4.2
) -> tuple[Figure, list[Any]]:
    """Returns a figure with a row of axes below two lines of text."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(4.4 * columns, 8.8), height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(1, columns, squeeze=False)[0])
        figure.text(0.012, 1 - 0.12 / height, title, fontsize=15, fontweight="bold", va="top")
        figure.text(0.012, 1 - 0.46 / height, subtitle, color="0.35", va="top")
        engine: Any = figure.get_layout_engine()
        engine.set(rect=(0, 0, 1, 1 - 0.82 / height))
        for axis in axes:
            axis.grid(alpha=0.25)
            axis.set_axisbelow(True)
    return figure, axes


def where(run: Run) -> str:
    """Says on what it ran."""
    kind = run.summary["device_kind"]
    return "simulated devices, which share the cores of one CPU" if kind == "cpu" else kind
