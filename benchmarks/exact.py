"""Measures what `--strategy exact` costs compared with `pmap`: images per second, and the memory
that XLA plans, on one and on two devices. On a CPU, `exact` uses eight threads unless NPROC says
otherwise; it is also measured with as many threads as cores.

    python benchmarks/exact.py [--rounds 3] [--only resnet]

Each figure is from a process of its own, in turns, and the table has the medians of the ratios.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import measurement
import numpy as np

from jaxdp.runtime import platform

CASES: dict[str, dict[str, Any]] = {
    "cnn, digits": {"model": "cnn"},
    "PyramidNet 20 α24, digits": {"model": "pyramidnet"},
    "PyramidNet 110 α48, 32x32": {
        "model": "pyramidnet",
        "model_kwargs": {"depth": 110, "alpha": 48},
        "global_batch_size": 64,
    },
    "ResNet 18, 32x32": {"model": "resnet"},
    "U-Net, cells": {"model": "unet", "dataset": "cells", "batch_norm": "group:8"},
}
DEVICES = (1, 2)
CORES = str(platform.cores())
# Strategy and number of threads.
SIDES = {"pmap": ("pmap", None), "exact": ("exact", None), "as cores": ("exact", CORES)}


def main() -> int:
    """Prints a table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    asked = parser.parse_args()
    print(f"| model, data | devices | pmap | exact | exact, {CORES} threads | memory |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        arrays = pathlib.Path(cache, "noise.npz")
        images = np.random.default_rng(0).integers(0, 256, (2048, 32, 32, 3), np.uint8)
        np.savez(arrays, images=images, labels=np.arange(2048) % 10)
        for name, settings in CASES.items():
            for devices in DEVICES if asked.only.lower() in name.lower() else ():
                settings |= {"dataset": f"npz:{arrays}"} if "32x32" in name else {}
                print(row(name, settings, devices, asked.rounds, cache), flush=True)
    return 0


def row(name: str, settings: dict[str, Any], devices: int, rounds: int, cache: str) -> str:
    """Returns the row of a case."""
    found: dict[str, list[Any]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in [*SIDES] if number % 2 else [*reversed(SIDES)]:
            strategy, threads = SIDES[side]
            config = {"strategy": strategy, "devices": devices, "steps": 10**6, **settings}
            request = {"config": config, "steps": None, "repeats": 3}
            with platform.environment({"NPROC": threads} if threads else {}):
                record = measurement.run(request, cache)
            if record["status"] != "ok":
                sys.exit(f"{name}, {side}: {record['reason']}")
            found[side].append(record)
    rates = {
        side: [record["images_per_second"]["median"] for record in records]
        for side, records in found.items()
    }
    columns = [f"{statistics.median(rates['pmap']):,.0f} images/s"]
    for side in ("exact", "as cores"):
        ratios = [exact / pmap for exact, pmap in zip(rates[side], rates["pmap"], strict=True)]
        columns.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    memory = found["exact"][0]["memory_bytes"] / found["pmap"][0]["memory_bytes"]
    return f"| {name} | {devices} | {' | '.join(columns)} | {memory:.2f} |"


if __name__ == "__main__":
    sys.exit(main())
