"""How much does the trainer cost? Prints its throughput beside that of a hand-written loop over the same compiled step.

    python benchmarks/overhead.py [--devices N] [--rounds N] [flags of jaxdp.train]

Both run in turn in one process, since the machine's speed drifts, and compile their step anew each time, since the first
steps after a compilation are slower. The loop cycles through batches that lie on the device already and waits for every fourth
step; the trainer reads, places and augments its batches, keeps metrics, writes rows and saves checkpoints. Evaluation and the
first step count for neither.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import time

from jaxdp import command_line
from jaxdp.config import TrainConfig
from jaxdp.parallel import platform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    arguments, flags = parser.parse_known_args()
    config = command_line.parse(TrainConfig, flags, prog="overhead.py", description="")
    platform.configure(config.devices)
    import jax

    from jaxdp import train
    from jaxdp.training.setup import create_setup

    bare, trainer = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            setup = create_setup(config)
            strategy, steps = setup.strategy, setup.plan.total_steps
            batches = list(itertools.islice(setup.train_batches(0), 8))
            state, sums = strategy.train_step(strategy.init(setup.create_state), batches[0], setup.train_data)
            jax.block_until_ready(sums)
            start = time.perf_counter()
            for step, batch in enumerate(itertools.islice(itertools.cycle(batches), steps)):
                state, sums = strategy.train_step(state, batch, setup.train_data)
                if step % 4 == 3:
                    jax.block_until_ready(sums)
            jax.block_until_ready(sums)
            bare.append(steps * setup.global_batch_size / (time.perf_counter() - start))

            run = pathlib.Path(folder, str(number))
            train.train(dataclasses.replace(config, run_dir=str(run)))
            trainer.append(json.loads((run / "summary.json").read_text())["examples_per_second"])

    ratios = [ours / theirs for ours, theirs in zip(trainer, bare, strict=True)]
    for name, values in (("hand-written loop", bare), ("jaxdp.train", trainer)):
        print(f"{name:<18}{statistics.median(values):>9,.0f} examples/s   ({', '.join(f'{value:,.0f}' for value in values)})")
    shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"{'ratio':<18}{statistics.median(ratios):>9.3f}              ({shown})")


if __name__ == "__main__":
    sys.exit(main())
