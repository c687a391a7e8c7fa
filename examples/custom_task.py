"""Defines a task of ordinal regression: a grade from 0 to 3, which a picture shows as a bar.

The logits answer "is the grade above 0?", "above 1?" and "above 2?", so a wrong grade that is near
costs less than one that is far.

python examples/custom_task.py --epochs 5
python -m jaxdp.train --plugins examples/custom_task.py --dataset bars --task-kwargs threshold=0.4
"""

import dataclasses
import sys

import jax
import numpy as np
import optax

from jaxdp import tasks, train
from jaxdp.data import sources


@tasks.register("ordinal")
@dataclasses.dataclass(frozen=True)
class Ordinal(tasks.Task):
    threshold: float = 0.5  # for --task-kwargs
    name, target = "ordinal", "grade"
    best_metric = ("exact", True)
    means = {"loss": "loss", "grade_error": "error", "exact": "exact"}  # noqa: RUF012

    def probabilities(self, outputs):  # what predict gives
        return jax.nn.sigmoid(outputs)

    def losses(self, outputs, batch):  # one per example
        above = batch["grade"][:, None] > np.arange(self.num_classes)
        return optax.sigmoid_binary_cross_entropy(outputs, above).mean(-1)

    def sums(self, outputs, batch, *, training):  # added over devices and batches
        errors = abs(self.grade(self.probabilities(outputs)) - batch["grade"])
        sums = {"loss": self.losses(outputs, batch), "error": errors, "exact": errors == 0}
        weights = batch["weights"]  # the weight of padding is 0
        return {name: weights @ each for name, each in sums.items()} | {"examples": weights.sum()}

    def grade(self, probabilities):
        return (probabilities > self.threshold).sum(-1)

    def columns(self):  # of the CSV file of predict
        return ["grade", *(f"above {name}" for name in self.class_names)]

    def cells(self, prediction):
        return [str(self.grade(prediction)), *(f"{value:.6f}" for value in prediction)]

    def row(self, prediction, top_k):  # of the table and the JSON of predict
        return {"values": {"grade": int(self.grade(prediction))}}


@sources.register("bars")
def bars(request):
    grades = np.arange(1280, dtype=np.int32) % 4
    images = np.random.default_rng(0).integers(0, 120, (1280, 16, 16, 1), dtype=np.uint8)
    images += np.uint8(90) * (np.arange(16) < 4 * grades[:, None] + 2)[:, None, :, None]
    first, last = map(sources.ArraySource, np.split(images, 2), np.split(grades, 2), ["grade"] * 2)
    return sources.Dataset(
        first, last, num_classes=3, image_shape=(16, 16, 1), mean=(100.0,), std=(60.0,),
        task="ordinal", targets={"grade": ((), np.int32)},
    )  # fmt: skip


if __name__ == "__main__":  # the user's flags come last and override the flags before them
    sys.exit(train.main(["--dataset", "bars", "--model", "cnn", *sys.argv[1:]]))
