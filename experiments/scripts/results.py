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
from typing import Any

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
    "cifar10-one-epoch": (
        "--model pyramidnet --dataset cifar10 --model-kwargs depth=20 alpha=24 --epochs 1"
    ),
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


# Rows of the README: a title, the metric, and how it is written.
SHOWN = {
    "digits": ("Digits: accuracy, %", "accuracy", "{:.2%}"),
    "digits-8-devices": ("Digits, 8 devices: accuracy, %", "accuracy", "{:.2%}"),
    "mnist": ("MNIST: accuracy, %", "accuracy", "{:.2%}"),
    "cifar10-one-epoch": ("CIFAR-10, one epoch: accuracy, %", "accuracy", "{:.2%}"),
    "cells": ("Cells: IoU", "iou/cell", "{:.3f}"),
    "instances": ("Cell instances: average precision", "average_precision", "{:.3f}"),
}


def summary_of(name: str) -> dict[str, Any]:
    return json.loads((lab.RESULTS / name / "summary.json").read_text())


def readme_row(name: str) -> str:
    """Returns the line of a command in the README's table: its seeds where they were trained."""
    title, metric, form = SHOWN[name]
    tests, file = [summary_of(name)["metrics"]["test"]], lab.RESULTS / name / "seeds.json"
    if file.exists():
        tests = json.loads(file.read_text())["seeds"]
    values = [test[metric] for test in tests]
    shown = [statistics.fmean(values), min(values), max(values)] if len(values) > 1 else values
    cells = [form.format(value).rstrip("%") for value in shown] + [""] * (3 - len(shown))
    return f"| {' | '.join([f'[{title}](experiments/results/{name})', *cells, str(len(values))])} |"


def readme_blocks() -> dict[str, str]:
    """Returns each text of the README that is made of kept results, by the name of its marks."""
    one, eight = (
        summary_of(name)["metrics"]["test"]["accuracy"] for name in ("digits", "digits-8-devices")
    )
    seconds = summary_of("digits")["seconds"]["total"]
    kept = json.loads((lab.RESULTS / "isbi2012" / "results.json").read_text())["results"]
    pixel, rand = (error for error, _ in isbi2012.held_out(kept["curves"]))
    paper_pixel, paper_rand = next(iter(isbi2012.PUBLISHED.values()))
    return {
        "picture": (
            f"*A U-Net on held-out slices of ISBI 2012, after {kept['steps']:,} steps on two CPU"
            f" cores.\nPixel error {pixel:.3f}, adapted Rand error {rand:.3f}; the paper's"
            f" {paper_pixel:.3f}, {paper_rand:.3f} (other slices).*"
        ),
        "results": "\n".join(
            [
                "| on test data | mean | min | max | runs |",
                "|---|---|---|---|---|",
                *map(readme_row, SHOWN),
                "",
                (
                    "Runs differ by seed; devices are simulated. Seed 0 of the digits took"
                    f" {seconds:.0f} s on 2 CPU cores. It"
                ),
                (
                    f"ended at {one:.2%} on one device and at {eight:.2%} on eight, where sums"
                    " are rounded differently. Test"
                ),
                (
                    "data choose nothing. [Details](experiments/README.md), by"
                    " `experiments/scripts/results.py`."
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
