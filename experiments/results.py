"""The commands of the README's table, one after the other, with what each leaves kept beside this file.

    python experiments/results.py [--data-dir DIR] [--only NAME ...] [--write]

`--only` with no name writes the table of what is there. No validation data is set apart, so that nothing is chosen: each result is
the last state on all test examples.
"""

import argparse
import json
import pathlib
import shutil

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
    "cifar10-one-epoch": "--model pyramidnet --dataset cifar10 --model-kwargs depth=20 alpha=24 --epochs 1",
}


def row(name: str) -> str:
    """Returns the line of a run in the table."""
    run = json.loads((lab.HERE / name / "summary.json").read_text())
    test = run["metrics"]["test"]
    if "accuracy" in test:
        result = f"accuracy {test['accuracy']:.2%}"
    elif "f1" in test:
        result = f"F1 of the cells {test['f1']:.3f}, average precision {test['average_precision']:.3f}"
    elif "iou" in test:
        result = f"IoU of the cells {test['iou/cell']:.3f}, mean IoU {test['iou']:.3f}"
    else:
        result = f"PSNR {test['psnr']:.1f} dB"
    columns = (
        f"[`{CASES[name]}`]({name}/summary.json)", run["batch_norm"], f"{run['steps']:,}", f"{run['seconds']['total']:.0f} s",
        f"{run['examples_per_second']:,.0f}", f"{result}, {test['examples']:,} images",
    )  # fmt: skip
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="where the sets of TensorFlow Datasets lie (default: where that package looks)")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="run these; the others stay as they are")
    parser.add_argument("--write", action="store_true", help="write the table into experiments/README.md")
    arguments = parser.parse_args()
    for name in arguments.only:
        run = pathlib.Path("runs", "experiments", "results", name)
        shutil.rmtree(run, ignore_errors=True)
        place = ["--data-dir", arguments.data_dir] if arguments.data_dir and "--dataset" in CASES[name] else []
        lab.command("train", *CASES[name].split(), *place, "--run-dir", str(run))
        lab.keep(run, lab.HERE / name)
    table = [
        "| command `python -m jaxdp.train …` | batch norm | steps | time | examples/s | test data, last state |",
        "|---" * 6 + "|",
    ]
    text = "\n".join([*table, *map(row, CASES), "", f"`python experiments/results.py`, {tables.machine('jax', 'flax')}"])
    print(f"\n{text}")
    if arguments.write:
        tables.write(lab.HERE / "README.md", "results", text)


if __name__ == "__main__":
    main()
