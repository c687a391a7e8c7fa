"""Runs the commands of the README's table, one after the other, and keeps their files in
experiments/results.

    python experiments/scripts/results.py [--data-dir DIR] [--only NAME ...] [--write]
    python experiments/scripts/results.py --seeds [--data-dir DIR] [--only NAME ...]

The second form trains several seeds of some commands, and keeps their metrics in seeds.json there.
`--only` with no name writes the table of what is there. No validation data is set apart, so that
nothing is chosen: each result is the last state on all test examples.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import textwrap
from typing import Any

import cifar10_94
import isbi2012
import lab
import tables

CASES = {
    "digits": "--model pyramidnet",
    "digits-8-devices": "--model pyramidnet --devices 8",
    "digits-8-devices-global": "--model pyramidnet --devices 8 --batch-norm global",
    "cells": "--model unet",
    "instances": "--model unet --instances",
    "digits-denoise": "--model unet --task regression",
    "mnist": "--model cnn --dataset mnist",
}

SEEDS = {"digits": 5, "digits-8-devices": 5, "mnist": 3, "cells": 3, "instances": 3}


def train(name: str, data_dir: str | None, *flags: str) -> pathlib.Path:
    """Runs a command anew and returns the folder of its run."""
    run = pathlib.Path("runs", "experiments", "results", name)
    shutil.rmtree(run, ignore_errors=True)
    place = ["--data-dir", data_dir] if data_dir and "--dataset" in CASES[name] else []
    lab.command("train", *CASES[name].split(), *place, *flags, "--run-dir", str(run))
    return run


def train_seeds(names: list[str], data_dir: str | None) -> None:
    """Keeps the test metrics of several seeds of each command."""
    for name in names:
        summaries = []
        for seed in range(SEEDS[name]):
            run = train(name, data_dir, "--seed", str(seed))
            summaries.append(json.loads((run / "summary.json").read_text()))
        kept = {
            "seeds": [{"seed": i, **each["metrics"]["test"]} for i, each in enumerate(summaries)]
        }
        kept |= {"machine": tables.machine("jax", "flax")}
        (lab.RESULTS / name / "seeds.json").write_text(json.dumps(kept, indent=2) + "\n")


def row(name: str) -> str:
    """Returns the line of a run in the table."""
    run = summary_of(name)
    test = run["metrics"]["test"]
    if "accuracy" in test:
        result = f"accuracy {test['accuracy']:.2%}"
    elif "f1" in test:
        result = (
            f"F1 of the cells {test['f1']:.3f}, average precision {test['average_precision']:.3f}"
        )
    elif "iou" in test:
        result = f"IoU of the cells {test['iou/cell']:.3f}, mean IoU {test['iou']:.3f}"
    else:
        result = f"PSNR {test['psnr']:.1f} dB"
    columns = (
        f"[`{CASES[name]}`](results/{name}/summary.json)",
        run["batch_norm"],
        f"{run['steps']:,}",
        f"{run['seconds']['total']:.0f} s",
        f"{run['examples_per_second']:,.0f}",
        f"{result}, {test['examples']:,} images",
    )
    return f"| {' | '.join(columns)} |"


def summary_of(name: str) -> dict[str, Any]:
    return json.loads((lab.RESULTS / name / "summary.json").read_text())


def digits_line() -> str:
    """Returns the README's line of the digits, over several seeds."""
    seeds = json.loads((lab.RESULTS / "digits" / "seeds.json").read_text())["seeds"]
    values = [100 * each["accuracy"] for each in seeds]
    return line_of("[Digits: accuracy, %](experiments/results/digits)", "{:.2f}", values)


def line_of(title: str, form: str, values: list[float], peer: str = "") -> str:
    """Returns a line of the README's table."""
    shown = [statistics.fmean(values), min(values), max(values)] if len(values) > 1 else values
    cells = [*map(form.format, shown), *[""] * (3 - len(shown))]
    return f"| {' | '.join([title, *cells, str(len(values)), peer])} |"


def cifar10_line() -> str:
    """Returns the README's line of CIFAR-10, over the seeds."""
    runs = cifar10_94.by_side(results_of("cifar10_94"))
    # Runs with the same seed reach the same accuracy.
    by_seed = {run["seed"]: 100 * run["accuracy"] for run in runs["jaxdp"]}
    peer = ""
    if "airbench" in runs:
        peer = f"airbench {100 * cifar10_94.means(runs['airbench'])[0]:.2f}"
    title = "[CIFAR-10: accuracy, %](experiments/results/cifar10_94)"
    return line_of(title, "{:.2f}", list(by_seed.values()), peer)


def results_of(experiment: str) -> Any:
    """Returns the kept results of an experiment of its own."""
    return json.loads((lab.RESULTS / experiment / "results.json").read_text())["results"]


def lines_beside_peers() -> list[str]:
    """Returns the lines of membranes and of real cells, by the scores of their fields."""
    membranes, cells = results_of("isbi2012"), results_of("real_cells")
    scores = [isbi2012.membranes.best(run["curves"]) for run in isbi2012.whole(membranes)]
    peer, lines = isbi2012.mean(membranes["peer"]), list[str]()
    for name in ("v_rand", "v_info"):
        title = f"[ISBI 2012: {isbi2012.NAMES[name]}](experiments/results/isbi2012)"
        values = [each[name] for each in scores]
        lines.append(line_of(title, "{:.3f}", values, f"MONAI {peer[name]:.3f}"))
    for stack, found in cells.items():
        if stack == "cells":  # which are drawn
            continue
        title = f"[{stack[0].upper()}{stack[1:]}: AP 0.5](experiments/results/real_cells)"
        peer = f"StarDist {found['StarDist']['ap50']:.3f}"
        lines.append(line_of(title, "{:.3f}", [found["jaxdp"]["ap50"]], peer))
    return lines


def readme_blocks() -> dict[str, str]:
    """Returns each text of the README that is made of kept results, by the name of its marks."""
    runs = isbi2012.whole(results_of("isbi2012"))
    minutes = statistics.fmean(run["seconds"] for run in runs) / 60
    membranes, paper = isbi2012.mean(runs), next(iter(isbi2012.CHALLENGE.values()))
    first, last = isbi2012.HELD_OUT[0], isbi2012.HELD_OUT[0] + isbi2012.COUNT - 1
    same = isbi2012.mean([run for run in runs if run["first"] == first])
    return {
        "picture": (
            f"*A U-Net on held-out slices of ISBI 2012, after {minutes:.0f} minutes on two CPU"
            f" cores.\nV_rand {membranes['v_rand']:.3f}, V_info {membranes['v_info']:.3f}; the"
            f" paper's {paper['v_rand']}, {paper['v_info']} (other slices).*"
        ),
        "results": "\n".join(
            [
                "| on test data | mean | min | max | runs | peer |",
                "|---|---|---|---|---|---|",
                *lines_beside_peers(),
                cifar10_line(),
                digits_line(),
                "",
                textwrap.fill(
                    "Runs differ by seed or by held-out slices. Peers trained on the same data for"
                    f" the same time; MONAI on slices {first} to {last} alone, where jaxdp has"
                    f" {same['v_rand']:.3f} and {same['v_info']:.3f}. In a run, test data choose"
                    " nothing but thresholds of ISBI 2012. [Details](experiments/README.md).",
                    100,
                    break_on_hyphens=False,
                ),
            ]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir",
        help="where the sets of TensorFlow Datasets lie (default: where that package looks)",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        choices=CASES,
        default=list(CASES),
        help="run these; the others stay as they are",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the tables into experiments/README.md and README.md",
    )
    parser.add_argument(
        "--seeds", action="store_true", help="train several seeds and keep their metrics; no table"
    )
    arguments = parser.parse_args()
    if arguments.seeds:
        train_seeds([name for name in SEEDS if name in arguments.only], arguments.data_dir)
        return
    for name in arguments.only:
        lab.keep(train(name, arguments.data_dir), lab.RESULTS / name)
    table = [
        (
            "| command `python -m jaxdp.train …` | batch norm | steps | time | examples/s | test"
            " data, last state |"
        ),
        "|---" * 6 + "|",
    ]
    text = "\n".join(
        [
            *table,
            *map(row, CASES),
            "",
            f"`python experiments/scripts/results.py`, {tables.machine('jax', 'flax')}",
        ]
    )
    print(f"\n{text}")
    if arguments.write:
        tables.write(lab.PAGES["experiments"], "results", text)
        for name, block in readme_blocks().items():
            tables.write(lab.ROOT / "README.md", name, block)


if __name__ == "__main__":
    main()
