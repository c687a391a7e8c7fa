"""Defines a task with several labels per image, which name the marks (out of three) in a picture.

python examples/custom_task.py --epochs 5
python -m jaxdp.train --plugins examples/custom_task.py --dataset marks --task-kwargs threshold=0.4
"""

import dataclasses
import sys

import jax
import numpy as np
import optax

from jaxdp import tasks, train
from jaxdp.data import sources

MARKS = {"top": np.s_[2:4, 2:14], "left": np.s_[6:14, 2:4], "corner": np.s_[11:14, 11:14]}


@tasks.register("multilabel")
@dataclasses.dataclass(frozen=True)
class MultiLabel(tasks.Task):
    threshold: float = 0.5  # for --task-kwargs
    name, target = "multilabel", "present"
    best_metric = ("f1", True)

    def probabilities(self, outputs):  # what jaxdp.predict writes
        return jax.nn.sigmoid(outputs)

    def losses(self, outputs, batch):  # one per example
        return optax.sigmoid_binary_cross_entropy(outputs, batch["present"]).mean(-1)

    def sums(self, outputs, batch, *, training):  # added over devices and batches
        weights, actual = batch["weights"], batch["present"] > 0  # the weight of padding is 0
        predicted = self.probabilities(outputs) > self.threshold
        both, marks = 2 * (predicted & actual).sum(-1), predicted.sum(-1) + actual.sum(-1)
        sums = {"loss": self.losses(outputs, batch), "both": both, "marks": marks}
        return {name: weights @ each for name, each in sums.items()} | {"examples": weights.sum()}

    def metrics(self, sums):  # divided once, at the end
        loss = tasks.ratio(sums["loss"], sums["examples"])
        return {"loss": float(loss), "f1": float(tasks.ratio(sums["both"], sums["marks"]))}


@sources.register("marks")
def marks(request):
    rng = np.random.default_rng(0)
    present = rng.integers(0, 2, (1280, len(MARKS)), dtype=np.uint8)
    images = rng.integers(0, 120, (1280, 16, 16, 1), dtype=np.uint8)
    for number, region in enumerate(MARKS.values()):
        images[:, *region] += 90 * present[:, number, None, None, None]
    parts = (np.s_[:1024], np.s_[1024:])
    first, last = (sources.ArraySource(images[part], present[part], "present") for part in parts)
    return sources.Dataset(
        first, last, num_classes=len(MARKS), class_names=tuple(MARKS), image_shape=(16, 16, 1),
        mean=(60.0,), std=(40.0,), task="multilabel",
        targets={"present": ((len(MARKS),), np.uint8)},
    )  # fmt: skip


if __name__ == "__main__":  # the user's flags come last and override the flags before them
    sys.exit(train.main(["--dataset", "marks", "--model", "cnn", *sys.argv[1:]]))
