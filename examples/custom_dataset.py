"""A dataset of your own: from which of the two photographs that come with scikit-learn is this
patch?

python examples/custom_dataset.py --model resnet --epochs 5
python -m jaxdp.train --plugins examples/custom_dataset.py --dataset photographs:24
"""

import dataclasses
import sys

import numpy as np
from sklearn.datasets import load_sample_images

from jaxdp import train
from jaxdp.data import sources
from jaxdp.registry import ConfigError


@dataclasses.dataclass(frozen=True)
class Patches:  # anything with a length and an index, from several threads at a time
    photographs: list[np.ndarray]
    side: int
    per_photograph: int

    def __len__(self):
        return self.per_photograph * len(self.photographs)

    def __getitem__(self, index):  # the same patch for the same number, in every epoch and process
        label = index % len(self.photographs)
        photograph = self.photographs[label]
        top, left = np.random.default_rng(index).integers(
            np.array(photograph.shape[:2]) - self.side + 1
        )
        return {
            "images": photograph[top : top + self.side, left : left + self.side],
            "labels": label,
        }


@sources.register("photographs")
def photographs(request):
    request.choose("classification")
    request.refuse("train_split", "test_split", "num_classes")
    if not (request.argument or "32").isdecimal() or not 4 <= int(request.argument or 32) <= 128:
        raise ConfigError(
            "dataset",
            request.config.dataset,
            "the side of a patch must be from 4 to 128, e.g. photographs:24",
        )
    side, images = int(request.argument or 32), load_sample_images().images
    # No test patch lies in what was trained on.
    right = [image[:, image.shape[1] * 3 // 4 :] for image in images]
    left = [image[:, : image.shape[1] * 3 // 4] for image in images]
    return sources.Dataset(
        train=Patches(left, side, 1000), test=Patches(right, side, 200),
        num_classes=2, image_shape=(side, side, 3), class_names=("palace", "flower"),
        # Of each channel, in the units of the pixels.
        mean=tuple(np.mean([image.mean((0, 1)) for image in left], 0)),
        std=tuple(np.mean([image.std((0, 1)) for image in left], 0)),
        augment=("flip",), defaults={"epochs": 3},
    )  # fmt: skip


if __name__ == "__main__":  # what the user's flags leave open is set here
    sys.exit(train.main(["--dataset", "photographs", *sys.argv[1:]]))
