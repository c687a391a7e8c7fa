"""Compares the seconds that CIFAR-10 takes to 94% on a CPU, in jaxdp and in airbench's own code.

fast_cifar10.py is jaxdp's side, and airbench_side.py the other, which torch.compile compiles. Both
use all cores and the same settings of malloc, and start without compiled programs. They take turns.
Each run is kept at once. Flags of this script only:

    --airbench SCRIPT   airbench94_muon.py of github.com/KellerJordan/cifar10-airbench
    --seeds [SEED ...]  to train with (default: 0 1 2)
    --add               keep the runs that results.json holds
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import lab
import tables
import time_to_accuracy
from matplotlib.ticker import PercentFormatter

SIDES = {"jaxdp": "fast_cifar10.py", "airbench": "airbench_side.py"}
TITLES = {"jaxdp": "jaxdp", "airbench": "airbench94_muon, torch.compile"}
TARGET = 0.94


def measure(experiment: lab.Experiment) -> Any:
    file = experiment.output / "results.json"
    runs = json.loads(file.read_text())["results"]["runs"] if FLAGS.add and file.exists() else []
    folder = experiment.runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    images = folder / "cifar10.npz"
    data_dir: Any = {"data_dir": experiment.data[1]} if experiment.data else {}
    time_to_accuracy.export("cifar10", images, validation="none", **data_dir)
    sides = [side for side in SIDES if side == "jaxdp" or FLAGS.airbench]
    given = {
        "jaxdp": [*experiment.data, *["--epochs", "0.04"] * experiment.tiny],
        "airbench": [str(FLAGS.airbench), str(images)],
    }
    for seed in FLAGS.seeds:
        for side in sides:
            script = str(lab.SCRIPTS / SIDES[side])
            cache = folder / f"{side}-{seed}-{len(runs)}"
            cache.mkdir()
            packages = ("jax", "flax") if side == "jaxdp" else ("torch",)
            done = subprocess.run(
                [sys.executable, script, *given[side], "--seed", str(seed)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=cache,
                env=time_to_accuracy.with_cache(cache),
            )
            # airbench prints more after this line.
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
            run = {"side": side, "seed": seed, **json.loads(line)}
            print(run, file=sys.stderr)
            runs.append(run | {"machine": tables.machine(*packages)})
            machine = tables.machine("jax", "flax")
            results = {"machine": machine, "results": {"runs": runs}}
            file.write_text(json.dumps(results, indent=1) + "\n")
    return {"runs": runs}


def by_side(results: Any) -> dict[str, list[Any]]:
    """Returns the runs of each side that has any."""
    found = {side: [run for run in results["runs"] if run["side"] == side] for side in SIDES}
    return {side: runs for side, runs in found.items() if runs}


def means(runs: list[Any]) -> tuple[float, float]:
    """Returns the mean accuracy and the mean seconds."""
    return (
        statistics.fmean(run["accuracy"] for run in runs),
        statistics.fmean(run["seconds"]["total"] for run in runs),
    )


def in_turns(results: Any) -> dict[str, list[Any]]:
    """Returns the runs of each side with the seeds and on the days on which both sides ran."""
    found = by_side(results)
    turns = [{(run["seed"], run["machine"][:10]) for run in runs} for runs in found.values()]
    both = set.intersection(*turns) if len(turns) == len(SIDES) else set[Any]()
    return {
        side: [run for run in runs if (run["seed"], run["machine"][:10]) in both]
        for side, runs in found.items()
    }


def show(results: Any) -> tuple[list[str], Any]:
    table = [
        "| side | runs | accuracy, each run | mean | seconds, each run | mean |",
        "|---" * 6 + "|",
    ]
    found = by_side(results)
    for side, runs in found.items():
        accuracies = ", ".join(f"{run['accuracy']:.2%}" for run in runs)
        times = ", ".join(f"{run['seconds']['total']:,.0f}" for run in runs)
        reached, seconds = means(runs)
        cells = [
            TITLES[side],
            f"{len(runs)}",
            accuracies,
            f"{reached:.2%}",
            times,
            f"{seconds:,.0f}",
        ]
        table.append(f"| {' | '.join(cells)} |")
    turns = in_turns(results)
    if all(turns.values()) and len(turns) == len(SIDES):
        (ours, our_seconds), (theirs, their_seconds) = (means(turns[side]) for side in SIDES)
        table += [
            "",
            f"In turns on one day: jaxdp {ours:.2%} in {our_seconds:,.0f} s, airbench {theirs:.2%}"
            f" in {their_seconds:,.0f} s, {their_seconds / our_seconds:.2f} times the seconds.",
        ]
    return table, draw(found)


def draw(found: dict[str, list[Any]]) -> Any:
    """Draws the accuracy and the minutes of each run."""
    first = next(iter(found.values()))[0]["machine"]
    where = first.split(", jax")[0].partition(", ")[2]
    figure, (axes,) = lab.create_figure(1, title="CIFAR-10 to 94% on a CPU", subtitle=where)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=2))
    slowest = max(run["seconds"]["total"] for runs in found.values() for run in runs)
    for (side, runs), color in zip(found.items(), lab.COLORS, strict=False):
        minutes = [run["seconds"]["total"] / 60 for run in runs]
        axes.scatter(minutes, [run["accuracy"] for run in runs], color=color, label=TITLES[side])
    axes.axhline(TARGET, color=lab.COLORS[4], linestyle="--")
    axes.set(xlabel="minutes, with compilation", ylabel="accuracy", xlim=(0, 1.05 * slowest / 60))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.15))
    return figure


def own_flags() -> argparse.Namespace:
    """Returns the flags of this script, and takes them from the command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--airbench", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--add", action="store_true")
    flags, sys.argv[1:] = parser.parse_known_args()
    return flags


if __name__ == "__main__":
    FLAGS = own_flags()
    lab.run("cifar10_94", __doc__, measure, show)
