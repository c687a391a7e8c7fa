"""Trains with jaxdp until a metric of the test images reaches a value.

    python benchmarks/time_to_accuracy_jaxdp.py MODEL DATASET METRIC [--target VALUE] [--seed N]
        [--devices N] [--settings JSON]

`time_to_accuracy.py` and `cifar10.py` start this file.
"""

import argparse
import json
import math

import jaxdp


class StopAt:
    """Ends the run at the first evaluation in which a metric reaches its target."""

    every_process = True

    def __init__(self, metric: str, target: float) -> None:
        self.metric, self.target = metric, target

    def on_evaluate(self, run, event) -> None:
        print(f"{event.step} {event.metrics[self.metric]:.4f}", flush=True)
        if event.metrics[self.metric] >= self.target:
            run.stop(f"{self.metric} has reached {self.target}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "dataset", "metric"):
        parser.add_argument(name)
    parser.add_argument("--target", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--settings", type=json.loads, default={}, help="those of the trainer")
    arguments = parser.parse_args()
    stop = StopAt(arguments.metric, arguments.target)
    settings = {
        "devices": arguments.devices,
        "strategy": "single" if arguments.devices == 1 else "pmap",
        **arguments.settings,
    }
    jaxdp.Trainer(
        arguments.model,
        arguments.dataset,
        callbacks=[stop],
        seed=arguments.seed,
        progress=False,
        **settings,
    ).fit()


if __name__ == "__main__":
    main()
