"""Compares two ways to train U-Net on four devices: with a larger global batch, or with the same
global batch.

*Same batch per device* multiplies the global batch by four, *same global batch* divides the
device's by four. Time per step, and loss against the images seen, on three sets: `cells` and ISBI
2012 (segmentation, cross-entropy) and `digits-denoise` (regression, the l2 loss), all with RMSProp
at a rate that grows with the root of the global batch.
"""

from typing import Any

import lab

DEVICES = 4
# The rate is for batch 128; it grows with the root of the batch, as suits rules that divide by the
# size of the gradient.
COMMON = (
    "--optimizer rmsprop --learning-rate 0.008 --lr-scaling sqrt --batch-norm global --log-every 2"
).split()


def measure(experiment: lab.Experiment) -> Any:
    small = ["base_channels=4", "levels=2"] if experiment.tiny else ["base_channels=8"]
    cells = ["--dataset", "cells", "--model-kwargs", *small]
    tiles = "--augment crop:128 flip flip_vertical".split()
    isbi = ["--dataset", "tfds:isbi2012", *experiment.data, *tiles, "--model-kwargs", *small]
    denoise = [
        "--dataset",
        "digits-denoise",
        "--task",
        "regression",
        "--model-kwargs",
        *small,
        "levels=2",
    ]
    # flags, batch of one device, images to see
    sets = {
        "cells": (cells, 8, 1920),
        "ISBI 2012": (isbi, 4, 1920),
        "digits-denoise": (denoise, 32, 11520),
    }
    if experiment.tiny:
        del sets["ISBI 2012"]
        sets = {name: (flags, batch, 12 * batch) for name, (flags, batch, _) in sets.items()}
    results: dict[str, Any] = {}
    for name, (flags, batch, images) in sets.items():
        for way, devices, size in ways(batch):
            steps = max(images // size, 3)
            length = f"--global-batch-size {size} --steps {steps} --eval-every {steps}".split()
            own = ["--model", "unet", *COMMON, *flags, *length]
            run = experiment.train(f"{name}-{way}".replace(" ", "-"), own, devices=devices)
            rows = [row for row in run.rows if row["split"] == "train"]
            test = run.summary["metrics"]["test"]
            results.setdefault(name, {})[way] = {
                "devices": devices,
                "global_batch_size": size,
                "step_seconds": size / run.summary["examples_per_second"],
                "examples_per_second": run.summary["examples_per_second"],
                "images_seen": [row["step"] * size for row in rows],
                "loss": [row["loss"] for row in rows],
                "test": test,
                "where": lab.where(run),
            }
    return results


def show(results: Any) -> tuple[list[str], Any]:
    subtitle = next(iter(results["cells"].values()))["where"]
    figure, panels = lab.create_figure(
        len(results), title="U-Net: two ways to use four devices", subtitle=subtitle
    )
    table = [
        "| set | way | devices | global batch | step, ms | images/s | test loss |",
        "|---" * 7 + "|",
    ]
    for axes, (name, found) in zip(panels, results.items(), strict=True):
        for number, (way, each) in enumerate(found.items()):
            style = {"color": lab.COLORS[number], "linestyle": ("-", "-", "--")[number]}
            axes.plot(each["images_seen"], each["loss"], label=way, linewidth=1.8, **style)
            table.append(
                f"| {name} | {way} | {each['devices']} | {each['global_batch_size']} |"
                f" {1000 * each['step_seconds']:,.0f} | {each['examples_per_second']:,.0f} |"
                f" {each['test']['loss']:.4f} |"
            )
        axes.locator_params(axis="x", nbins=5)
        axes.set(
            title=name,
            xlabel="images seen",
            ylabel="training loss" if axes is panels[0] else "",
            yscale="log",
        )
    panels[0].legend(frameon=False)
    return table, figure


def ways(batch: int) -> list[tuple[str, int, int]]:
    """Returns name, devices and global batch of each way."""
    return [
        ("one device", 1, batch),
        ("same batch per device", DEVICES, DEVICES * batch),
        ("same global batch", DEVICES, batch),
    ]


if __name__ == "__main__":
    lab.run("unet_two_ways", __doc__, measure, show)
