"""Compares the trainer's throughput with a hand-written loop over the same compiled step.

    python benchmarks/overhead.py [--rounds N] [--rows NAME ...] [--data-dir DIR] [--write FILE]

Each row trains on real data. Both run in one process, since the machine's speed drifts, and take
turns at being first. They compile their step anew each time, since the first steps after a
compilation are slower. The loop cycles through batches that lie on the device already and waits for
every fourth step; the trainer reads, places and augments its batches, keeps metrics, writes rows,
saves checkpoints. Evaluation and the first step count for neither. `--data-dir` is where TensorFlow
Datasets lie; without it the row of CIFAR-10 is left out.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import tables

from jaxdp.config import TrainConfig, to_yaml
from jaxdp.runtime import platform

ROWS: dict[str, dict[str, Any]] = {
    "digits, PyramidNet, batch 128": {"model": "pyramidnet"},
    "CIFAR-10, PyramidNet 20 α48, batch 128": {
        "model": "pyramidnet",
        "model_kwargs": {"depth": 20, "alpha": 48},
        "dataset": "cifar10",
        "steps": 40,
        "test_split": "test[:256]",
    },
    "cells, U-Net base 16, batch 16": {"model": "unet", "epochs": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument(
        "--rows", nargs="*", default=list(ROWS), help="parts of the names of the rows to measure"
    )
    parser.add_argument("--data-dir", help="where CIFAR-10 lies as TensorFlow Datasets write it")
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(TrainConfig.of(**json.loads(arguments.one)), arguments.rounds)))
        return
    lines = [
        "| training | loop, examples/s | `jaxdp.train`, examples/s | ratio | each round |",
        "|---" * 5 + "|",
    ]
    for name in [name for name in ROWS if any(word in name for word in arguments.rows)]:
        if ROWS[name].get("dataset") == "cifar10" and arguments.data_dir is None:
            print(f"left out, for want of --data-dir: {name}", file=sys.stderr)
            continue
        settings = json.dumps(ROWS[name] | {"data_dir": arguments.data_dir})
        command = [sys.executable, __file__, "--one", settings, "--rounds", str(arguments.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        pairs = json.loads(done.stdout.splitlines()[-1])
        ratios = [ours / theirs for theirs, ours in pairs]
        loop, trainer = (statistics.median(values) for values in zip(*pairs, strict=True))
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(
            f"| {name} | {loop:,.0f} | {trainer:,.0f} | **{statistics.median(ratios):.3f}** |"
            f" {shown} |"
        )
    rounds = f"medians of {arguments.rounds} rounds" if arguments.rounds > 1 else "one round"
    text = "\n".join(
        [
            f"Written by `nox -s bench -- overhead`, {rounds}. {tables.machine('jax', 'flax')}",
            "",
            *lines,
        ]
    )
    print(text)
    if arguments.write:
        tables.write(arguments.write, "overhead", text)


def measure(config: TrainConfig, rounds: int) -> list[tuple[float, float]]:
    """Returns the examples per second of the loop and of the trainer, for each round."""
    platform.configure(config.devices)
    import jax

    from jaxdp import train
    from jaxdp.build.setup import create_setup

    def loop() -> float:
        setup = create_setup(config)
        strategy, steps = setup.strategy, setup.intervals.total_steps
        batches = list(itertools.islice(setup.batches.placed(0), 8))
        state, sums = strategy.train_step(
            strategy.init(setup.create_state), batches[0], setup.constants
        )
        jax.block_until_ready(sums)
        start = time.perf_counter()
        for step, batch in enumerate(itertools.islice(itertools.cycle(batches), steps)):
            state, sums = strategy.train_step(state, batch, setup.constants)
            if step % 4 == 3:
                jax.block_until_ready(sums)
        jax.block_until_ready(sums)
        return steps * setup.batches.global_batch_size / (time.perf_counter() - start)

    def trainer() -> float:
        with tempfile.TemporaryDirectory() as folder:
            settings = pathlib.Path(folder, "settings.yaml")
            settings.write_text(to_yaml(config.replace(run_dir=f"{folder}/run", resume="never")))
            train.main(["--config", str(settings)])
            return json.loads(pathlib.Path(folder, "run/summary.json").read_text())[
                "examples_per_second"
            ]

    found = []
    for number in range(rounds):
        measured = {
            side: side() for side in ((loop, trainer) if number % 2 == 0 else (trainer, loop))
        }
        found.append((measured[loop], measured[trainer]))
    return found


if __name__ == "__main__":
    sys.exit(main())
