"""Measures the time from the start of the process until a model reaches a target, for jaxdp and for
a plain PyTorch script.

    python benchmarks/time_to_accuracy.py [--seeds N] [--rows NAME ...]
        [--write FILE [--place NAME]]

Both train the same architecture on the same images with jaxdp's default recipe and evaluate after
every epoch. They end at the first evaluation of the test images that reaches the target. Start-up,
data and compilation count. jaxdp runs on one device and on two simulated ones, first with an empty
compilation cache, then with what that run left in it; PyTorch eagerly with channels first and last,
and with torch.compile in the same two ways. The seeds draw other weights on both sides, so the
table compares medians over them. PyTorch reads the images from a file that is written before, which
does not count; jaxdp makes them anew. All runs of a seed take turns.
"""

import argparse
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import tables

HERE = pathlib.Path(__file__).parent
# Model, dataset, metric and target of each row, and its script in PyTorch.
ROWS = {
    "accuracy 99% on digits, PyramidNet 20 α24": (
        "pyramidnet",
        "digits",
        "accuracy",
        "0.99",
        "torch_sides/digits.py",
    ),
    "IoU 0.93 on cells, U-Net base 16": (
        "unet",
        "cells",
        "iou/cell",
        "0.93",
        "torch_sides/cells.py",
    ),
}
SIDES = (
    "jaxdp, cold",
    "jaxdp, warm",
    "jaxdp, 2 devices, warm",
    "torch, channels first",
    "torch, channels last",
    "torch.compile, cold",
    "torch.compile, warm",
)
Runs = dict[str, list[tuple[float, int]]]  # by side: seconds, and after how many epochs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds each trains with")
    parser.add_argument(
        "--rows", nargs="*", default=list(ROWS), help="parts of the names of the rows to measure"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--place", default="time_to_accuracy", help="name of that place")
    arguments = parser.parse_args()
    chosen = [name for name in ROWS if any(word in name for word in arguments.rows)]
    lines = [
        f"| seconds to | {' | '.join(SIDES)} | torch / jaxdp, cold | torch / jaxdp, warm |",
        "|---" * (len(SIDES) + 3) + "|",
    ]
    lines += [
        f"| {row} | {' | '.join(cells_of(measure(row, arguments.seeds)))} |" for row in chosen
    ]
    of_seeds = f"medians of {arguments.seeds} seeds" if arguments.seeds > 1 else "one seed"
    heading = (
        f"Whole processes, {of_seeds} with the epochs they took, by `nox -s bench --"
        " time_to_accuracy`."
    )
    text = "\n".join([f"{heading} {tables.machine('jax', 'flax', 'torch')}", "", *lines, ""])
    print(text)
    if arguments.write:
        tables.write(arguments.write, arguments.place, text)


def measure(row: str, seeds: int) -> Runs:
    """Returns the runs of each side, one for each seed."""
    model, dataset, metric, target, script = ROWS[row]
    runs: Runs = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export(dataset, folder / "data.npz")
        jaxdp = [sys.executable, str(HERE / "time_to_accuracy_jaxdp.py"), model, dataset, metric]
        torch = [sys.executable, str(HERE / script), str(folder / "data.npz")]
        last = [*torch, "--channels-last"]
        compiled = [*last, "--compiled"]
        commands = [jaxdp, jaxdp, [*jaxdp, "--devices", "2"], torch, last, compiled, compiled]
        # Python's bytecode is there then on both sides, and the programs for two devices.
        for command in commands[2:4]:
            timed([*command, "--target", "0"], folder / "two")
        for seed in range(seeds):
            for side, command in zip(SIDES, commands, strict=True):
                cache = folder / ("two" if "2 devices" in side else f"{seed}")
                seconds, values = timed([*command, "--target", target, "--seed", str(seed)], cache)
                reached = values[-1] >= float(target)
                runs[side].append((seconds if reached else math.inf, len(values)))
                print(
                    f"seed {seed}, {side}: {values[-1]} in {seconds:.1f} s, {len(values)} epochs",
                    file=sys.stderr,
                )
    return runs


def export(dataset: str, path: pathlib.Path, **settings: Any) -> None:
    """Writes the images and targets of a dataset."""
    import jaxdp.data

    arrays, opened = {}, jaxdp.data.load(dataset, **settings)
    for split in ("train", "test"):
        source = getattr(opened, split)
        examples = [source[number] for number in range(len(source))]
        arrays |= {
            f"{split}_{field}": np.stack([example[field] for example in examples])
            for field in examples[0]
        }
    np.savez(path, **arrays)


def timed(command: list[str], cache: pathlib.Path) -> tuple[float, list[float]]:
    """Returns the seconds of a process that trains, and the metric of each of its evaluations."""
    start = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=with_cache(cache)
    )
    seconds = time.perf_counter() - start
    return seconds, [float(line.split()[-1]) for line in done.stdout.splitlines()]


def with_cache(folder: pathlib.Path) -> dict[str, str]:
    """Returns this environment with what either side compiles in a folder."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JAX_COMPILATION_CACHE")
    }
    environment |= dict.fromkeys(("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), str(folder))
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    return environment


def cells_of(runs: Runs) -> list[str]:
    """Returns the cells of a row.

    A run that never reached the target has infinite seconds, and a dash for its epochs.
    """
    seconds = {side: statistics.median(each for each, _ in runs[side]) for side in SIDES}
    epochs = {
        side: "/".join(str(count) if math.isfinite(each) else "-" for each, count in runs[side])
        for side in SIDES
    }
    cells = [
        f"{f'{seconds[side]:.1f} s' if math.isfinite(seconds[side]) else 'not reached'}"
        f" ({epochs[side]})"
        for side in SIDES
    ]
    ratios = []
    for other in ("warm", "cold"):
        ours, theirs = (
            min(seconds[side] for side in sides if not side.endswith(other))
            for sides in (SIDES[:3], SIDES[3:])
        )
        ratios.append(f"**{theirs / ours:.2f}**")
    return [*cells, *ratios]


if __name__ == "__main__":
    main()
