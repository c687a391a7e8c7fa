"""Measures what parts of fast recipes gain for PyramidNet 20 on CIFAR-10 and for U-Net on cells.

Each part is added to the default recipe alone, and then all that gain. Seeds draw other weights and
another order of the images; `--seeds N` says how many (default: 3). Test-time augmentation
evaluates the runs of the default recipe again.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import lab

import jaxdp

MUON: dict[str, Any] = {"optimizer": "muon"}
# Settings, the metric, and the parts of each model.
MODELS: dict[str, Any] = {
    "PyramidNet 20 α24, CIFAR-10": (
        {
            "model": "pyramidnet",
            "model_kwargs": {"depth": 20, "alpha": 24},
            "data": "cifar10",
            "augment": ["pad_crop:4", "flip"],
            "epochs": 3,
        },
        "accuracy",
        {
            "Muon": MUON | {"learning_rate": 0.01},
            "alternating flips": {"augment": ["pad_crop:4", "flip:alternating"]},
            "label smoothing 0.1": {"label_smoothing": 0.1},
            "EMA 0.99": {"ema_decay": 0.99},
        },
    ),
    "U-Net base 16, cells": (
        {"model": "unet", "data": "cells", "augment": ["flip", "flip_vertical"]},
        "iou/cell",
        {
            "Muon": MUON | {"learning_rate": 0.01},
            "alternating flips": {"augment": ["flip:alternating", "flip_vertical"]},
            "EMA 0.99": {"ema_decay": 0.99},
        },
    ),
}
DEFAULT, VIEWS, ALL = "default", "test-time augmentation: flip", "all parts that gain"


def measure(experiment: lab.Experiment) -> Any:
    results: dict[str, Any] = {}
    for model, (settings, metric, parts) in MODELS.items():
        if experiment.data and settings["data"] != "cells":
            settings = settings | {"data_dir": experiment.data[1]}
        if experiment.tiny:
            settings = {name: each for name, each in settings.items() if name != "epochs"}
            settings |= {"steps": 2}
        train = functools.partial(train_seeds, settings, metric)
        found = results[model] = train({}, views=True)
        for part, changes in parts.items():
            found |= {part: train(changes)[DEFAULT]}
        base = statistics.fmean(found[DEFAULT])
        better = [part for part in parts if statistics.fmean(found[part]) > base]
        together: dict[str, Any] = {}
        for part in better:
            together |= parts[part]
        found |= {ALL: train(together, views=True)[VIEWS]}
    return results


def train_seeds(
    settings: dict[str, Any], metric: str, changes: dict[str, Any], *, views: bool = False
) -> dict[str, list[float]]:
    """Returns the test metric of each seed, and that of the mean over two views of each image."""
    found: dict[str, list[float]] = {DEFAULT: []} | ({VIEWS: []} if views else {})
    for seed in range(FLAGS.seeds):
        trainer = jaxdp.Trainer(validation="none", seed=seed, devices=1, **{**settings, **changes})
        result = trainer.fit()
        found[DEFAULT].append(result.metrics["test"][metric])
        if views:
            mean = result.evaluate(split="test", test_time_augmentation="flip")
            found[VIEWS].append(mean[metric])
        print(changes, seed, {name: each[-1] for name, each in found.items()}, flush=True)
    return found


def show(results: Any) -> tuple[list[str], Any]:
    table = ["| recipe | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    names = dict.fromkeys(name for found in results.values() for name in found)
    for name in names:
        cells = [cell(found.get(name, []), found[DEFAULT]) for found in results.values()]
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table, draw(results, [*names])


def cell(values: Sequence[float], default: Sequence[float]) -> str:
    """Returns mean, gain and range of the metric in percent."""
    if not values:
        return "–"
    mean, low, high = (100 * each for each in (statistics.fmean(values), min(values), max(values)))
    gain = "" if values is default else f" ({mean - 100 * statistics.fmean(default):+.2f})"
    return f"{mean:.2f}{gain}, {low:.2f} to {high:.2f}"


def draw(results: Any, names: list[str]) -> Any:
    """Draws the metric of each seed."""
    title = "Parts of fast recipes"
    figure, panels = lab.create_figure(
        len(results), title=title, subtitle="test data, a point for each seed", height=4.8
    )
    for axes, (model, found) in zip(panels, results.items(), strict=True):
        shown = [name for name in names if name in found]
        for row, name in enumerate(shown):
            axes.scatter([100 * each for each in found[name]], [row] * len(found[name]))
        axes.set(yticks=range(len(shown)), yticklabels=shown, xlabel=f"{model}, %")
        axes.invert_yaxis()
    return figure


def own_flags() -> argparse.Namespace:
    """Returns the flags of this script, and takes them from the command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=3)
    flags, sys.argv[1:] = parser.parse_known_args()
    return flags


if __name__ == "__main__":
    FLAGS = own_flags()
    lab.run("recipe_gains", __doc__, measure, show)
