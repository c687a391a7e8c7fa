"""Finds a learning rate by one short run in which the rate rises with every step.

python examples/learning_rate_range.py --model cnn --dataset digits --steps 200

It prints the loss by the rate. A good peak of a schedule lies between the rate at which the loss
falls fastest and the rate at which it is smallest. Source: Smith, Cyclical Learning Rates for
Training Neural Networks, 2017, section 3.3.
"""

import argparse
import json
import math
from typing import Any

import numpy as np
import optax

import jaxdp

SMOOTHING = 0.9  # of the loss, which differs from batch to batch
RISEN = 4  # times its smallest value, at which the rest of the run tells nothing more
LINES, WIDTH = 20, 50


def measure(
    lowest: float, highest: float, steps: int, **settings: Any
) -> list[tuple[float, float]]:
    """Returns the learning rate and the smoothed loss of each step."""
    schedule = optax.exponential_decay(lowest, max(steps - 1, 1), highest / lowest)
    result = jaxdp.Trainer(
        learning_rate=schedule,
        steps=steps,
        log_every=1,
        eval_every=steps,
        validation="none",
        progress=False,
        **settings,
    ).fit()
    curve, mean = list[tuple[float, float]](), 0.0
    rows = (row for row in result.history if row["split"] == "train")
    for count, row in enumerate(rows, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * row["loss"]
        loss = mean / (1 - SMOOTHING**count)
        if not math.isfinite(loss) or (curve and loss > RISEN * min(each for _, each in curve)):
            break
        curve.append((row["learning_rate"], loss))
    return curve


def show(curve: list[tuple[float, float]]) -> None:
    """Prints the curve, and between which rates to search."""
    rates, losses = np.asarray(curve).T
    smallest, largest = losses.min(), losses.max()
    for part in np.array_split(np.arange(len(curve)), min(LINES, len(curve))):
        bar = "█" * round(WIDTH * (losses[part[-1]] - smallest) / (largest - smallest or 1))
        print(f"{rates[part[-1]]:9.2g} {losses[part[-1]]:9.4f} {bar}")
    end = int(losses.argmin())
    if end == 0:
        print("The loss never falls: try again with a smaller --lowest.")
    elif end == len(curve) - 1:
        print("The loss still falls at the last rate: try again with a larger --highest.")
    else:
        start = int(np.gradient(losses)[: end + 1].argmin())
        print(f"Try learning rates from {rates[start]:.1g} to {rates[end]:.1g}.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--optimizer", default="nesterov")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lowest", type=float, default=1e-5)
    parser.add_argument("--highest", type=float, default=10)
    parser.add_argument(
        "--settings", type=json.loads, default={}, help='others, e.g. \'{"augment": ["flip"]}\''
    )
    given = vars(parser.parse_args())
    show(measure(**given.pop("settings"), **given))


if __name__ == "__main__":
    main()
