"""Defines a callback that prints the steps that took long to dispatch to the devices.

python examples/custom_callback.py
python -m jaxdp.train --plugins examples/custom_callback.py --model cnn \
    --callbacks slowest:seconds=0.5
"""

import sys
import time

import jaxdp
from jaxdp import callbacks


@callbacks.register("slowest")
class Slowest:
    """Prints each step that took longer than `seconds`, and adds the longest to training rows."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.longest, self.since = seconds, 0.0, 0.0

    def on_step_begin(self, run, event):
        self.since = time.perf_counter()

    def on_step_end(self, run, event):
        spent = time.perf_counter() - self.since
        self.longest = max(self.longest, spent)
        if spent > self.seconds:
            print(f"step {event.step} took {spent:.1f} s to dispatch")

    def on_row(self, run, row):
        if row["split"] == "train":
            row["longest_dispatch_seconds"] = round(self.longest, 4)


def main(epochs=2):
    result = jaxdp.Trainer("cnn", "digits", epochs=epochs, callbacks=[Slowest(seconds=0.5)]).fit()
    return result.history[0]["longest_dispatch_seconds"]


if __name__ == "__main__":
    sys.exit(main() <= 0)
