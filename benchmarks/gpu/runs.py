"""Runs the parts of gpu_check.py that train with `jaxdp.train`: waiting times, and continuation
after a stop.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpu.processes import Clock, Record, StopAt

# How the dataset reaches the steps, as flags of `jaxdp.train`.
WAYS = {
    "on the device, 1 step per execution": ["--data-placement", "device"],
    "on the device, 10 steps per execution": [
        "--data-placement",
        "device",
        "--steps-per-execution",
        "10",
    ],
    "streamed from the host": ["--data-placement", "host"],
}
INTERRUPTED_AFTER = 3  # rows of metrics


def train(*flags: str) -> list[str]:
    return [sys.executable, "-m", "jaxdp.train", *flags]


def rows(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the training rows that a run has written."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == "train"]


def trainer(clock: Clock, folder: pathlib.Path, *, tiny: bool) -> Iterator[Record]:
    """Yields what the trainer makes of the recipe of experiments/pyramidnet_cifar10_gpu.sh in each
    way that data can come.
    """
    depth, alpha, size, count, batch, steps = (
        (8, 6, 16, 512, 16, 60) if tiny else (110, 48, 32, 50_000, 128, 1000)
    )
    path = folder / "images.npz"
    rng = np.random.default_rng(0)
    images, labels = (
        rng.integers(0, 256, (count, size, size, 3), np.uint8),
        rng.integers(0, 10, count),
    )
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[:batch],
        test_labels=labels[:batch],
    )
    common = (
        f"--model pyramidnet --model-kwargs depth={depth} alpha={alpha} --precision bfloat16"
        " --augment pad_crop:4 flip"
    )
    common += (
        f" --num-classes 10 --global-batch-size {batch} --steps {steps} --eval-every {steps}"
        f" --log-every {steps // 6}"
    )
    for way, way_flags in WAYS.items():
        if not clock.may_start("trainer"):
            yield {"way": way, "status": "late"}
            continue
        run_dir = folder / way.replace(" ", "-")
        found = clock.run(
            train(
                *common.split(), *way_flags, "--dataset", f"npz:{path}", "--run-dir", str(run_dir)
            ),
            what="trainer",
        )
        record = {"way": way, "batch": batch, "status": found["status"], "reason": found["reason"]}
        if found["status"] == "ok":
            later = rows(run_dir)[1:]  # the first waits for the first step
            middle = {
                name: statistics.median(row[name] for row in later)
                for name in ("examples_per_second", "input_wait_fraction")
            }
            record |= middle | {"seconds": found["seconds"]}
        yield record


def resume(clock: Clock, folder: pathlib.Path, *, tiny: bool) -> Record:
    """Stops a run with `--deterministic` by a signal, goes on, and compares its end with the end of
    a run that was not stopped.
    """
    steps = 300 if tiny else 3000
    flags = (
        "--model pyramidnet --model-kwargs depth=8 alpha=6 --dataset digits --deterministic"
        f" --global-batch-size 64 --steps {steps}"
    )
    flags += f" --log-every 5 --eval-every {steps} --checkpoint-every {steps}"
    straight, stopped = folder / "straight", folder / "stopped"
    command = train(*flags.split(), "--run-dir", str(stopped))
    first = clock.run(command, stop=StopAt(stopped / "metrics.jsonl", INTERRUPTED_AFTER))
    if first.get("code") != 75:
        ended = (
            "the run ended before it could be stopped"
            if first["status"] == "ok"
            else first["reason"]
        )
        return {"status": "failed" if first["status"] == "ok" else first["status"], "reason": ended}
    saved = max(
        int(path.name) for path in (stopped / "checkpoints").iterdir() if path.name.isdecimal()
    )
    for again in (command, train(*flags.split(), "--run-dir", str(straight))):
        found = clock.run(again)
        if found["status"] != "ok":
            return {"status": found["status"], "reason": found["reason"]}
    compared = clock.cell(
        "compare",
        environment={"JAX_PLATFORMS": "cpu"},
        first=str(straight),
        second=str(stopped),
        step=steps,
    )
    return {"stopped_at": saved, "steps": steps} | compared
