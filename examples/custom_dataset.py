"""Defines a dataset of patches of the two photographs that come with scikit-learn.

python examples/custom_dataset.py --model resnet --epochs 5
python -m jaxdp.train --plugins examples/custom_dataset.py --dataset photographs:24
"""

import dataclasses
import sys

import numpy as np
from sklearn.datasets import load_sample_images

from jaxdp import train
from jaxdp.data import sources
from jaxdp.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Patches:  # anything with a length and an index; several threads read it at once
    photographs: list[np.ndarray]
    side: int
    per_photograph: int

    def __len__(self):
        return self.per_photograph * len(self.photographs)

    def __getitem__(self, index):  # the same index is the same patch in every epoch and process
        label = index % len(self.photographs)
        photograph = self.photographs[label]
        corners = np.array(photograph.shape[:2]) - self.side + 1
        top, left = np.random.default_rng(index).integers(corners)
        patch = photograph[top : top + self.side, left : left + self.side]
        return {"images": patch, "labels": label}


@sources.register("photographs")
def photographs(request):
    request.choose("classification")
    request.refuse("train_split", "test_split", "num_classes")
    side, images = request.argument or "32", load_sample_images().images
    if not side.isdecimal() or not 4 <= int(side) <= 128:
        problem = "the side of a patch must be from 4 to 128, e.g. photographs:24"
        raise ConfigError("dataset", request.config.dataset, problem)
    left = [image[:, : image.shape[1] * 3 // 4] for image in images]
    right = [image[:, image.shape[1] * 3 // 4 :] for image in images]  # never trained on
    return sources.Dataset(
        train=Patches(left, int(side), 1000), test=Patches(right, int(side), 200),
        num_classes=2, image_shape=(int(side), int(side), 3), class_names=("palace", "flower"),
        # per channel, in units of the pixels
        mean=tuple(np.mean([image.mean((0, 1)) for image in left], 0)),
        std=tuple(np.mean([image.std((0, 1)) for image in left], 0)),
        augment=("flip",), defaults={"epochs": 3},
    )  # fmt: skip


if __name__ == "__main__":  # the user's flags come last and override the flags before them
    sys.exit(train.main(["--dataset", "photographs", *sys.argv[1:]]))
