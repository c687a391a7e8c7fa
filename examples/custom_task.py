"""A task of your own: several labels an image.

Which of four marks are in this picture, drawn by NumPy?

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

MARKS = {
    "top": np.s_[2:4, 2:14],
    "left": np.s_[6:14, 2:4],
    "middle": np.s_[6:10, 6:10],
    "corner": np.s_[11:14, 11:14],
}


@tasks.register("multilabel")
@dataclasses.dataclass(frozen=True)
class MultiLabel:
    num_classes: int
    class_names: tuple[str, ...]
    threshold: float = 0.5  # for --task-kwargs
    name, kind, target = "multilabel", "classification", "present"
    best_metric = ("f1", True)

    def probabilities(self, outputs):  # what jaxdp.predict tells
        return jax.nn.sigmoid(outputs)

    def losses(self, outputs, batch):  # one per example
        return optax.sigmoid_binary_cross_entropy(outputs, batch["present"]).mean(-1)

    # They add up over devices and batches; weights are 0 for padding.
    def sums(self, outputs, batch, *, training):
        weights, actual, found = (
            batch["weights"],
            batch["present"] > 0,
            self.probabilities(outputs) > self.threshold,
        )
        both, marks = 2 * (found & actual).sum(-1), found.sum(-1) + actual.sum(-1)
        sums = {"loss": self.losses(outputs, batch), "both": both, "marks": marks}
        return {name: weights @ each for name, each in sums.items()} | {"examples": weights.sum()}

    def metrics(self, sums):  # divided once, at the end
        return {
            "loss": float(tasks.ratio(sums["loss"], sums["examples"])),
            "f1": float(tasks.ratio(sums["both"], sums["marks"])),
        }


@sources.register("marks")
def marks(request):
    rng = np.random.default_rng(0)
    present, images = (
        rng.integers(0, *of, dtype=np.uint8)
        for of in ((2, (1280, len(MARKS))), (120, (1280, 16, 16, 1)))
    )
    for number, region in enumerate(MARKS.values()):
        images[:, *region] += 90 * present[:, number, None, None, None]
    train, test = (  # the source that fits in memory comes with jaxdp
        sources.ArraySource(images[part], present[part], "present")
        for part in (np.s_[:1024], np.s_[1024:])
    )
    return sources.Dataset(
        train,
        test,
        num_classes=len(MARKS),
        image_shape=(16, 16, 1),
        mean=(60.0,),
        std=(40.0,),
        class_names=tuple(MARKS),
        task="multilabel",
        targets={"present": ((len(MARKS),), np.uint8)},
    )


if __name__ == "__main__":  # what the user's flags leave open is set here
    sys.exit(train.main(["--dataset", "marks", "--model", "cnn", *sys.argv[1:]]))
