"""Labels the predictions of version 0.3, which had three classes: background, cell and border."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Array, Float, UInt16

from jaxdp.tasks import instances, labelling
from jaxdp.tasks.task import Batch, BatchSums, Sums, Task, weighted_sums

CLASS_NAMES = ("background", "cell", "border")
_SMOOTHING = 1.5  # standard deviation in pixels, so that noise makes no seeds
# Pixels by which the depth in the middle of an object exceeds the depth where it meets another
# object.
_RISE = 0.75
_SMALLEST = 16  # pixels of an object


@dataclasses.dataclass(frozen=True)
class ThreeClasses(Task):
    """Predicts with models of version 0.3, and scores the objects. Nothing is trained."""

    name = "segmentation"
    kind = "segmentation"
    finds_instances = True
    best_metric = ("iou", True)

    def sums(self, outputs: Array, batch: Batch, *, training: bool) -> BatchSums:
        return weighted_sums({}, batch)

    def metrics(self, sums: Sums) -> dict[str, float]:
        return instances.metrics(sums)

    def label(self, prediction: Float[np.ndarray, "h w 3"]) -> UInt16[np.ndarray, "h w"]:
        """Returns the number of the object at each pixel, with 0 for background.

        Seeds are the maxima of the distance to the nearest pixel that is probably not cell. A
        watershed of the distance and the cell probability grows them over all pixels that are more
        likely cell or border than background.
        """
        import scipy.ndimage  # pyright: ignore  # 0.1 s, which few runs need

        gaussian: Any = scipy.ndimage.gaussian_filter  # pyright: ignore
        smooth = functools.partial(gaussian, sigma=_SMOOTHING)
        background, probability, _ = np.moveaxis(prediction, -1, 0)
        probability = smooth(probability)
        cell = probability > 0.5
        depth = smooth(scipy.ndimage.distance_transform_edt(cell))  # pyright: ignore
        # Where objects meet, the cell probability is lowest. A probability of 1 counts as 3 pixels
        # of depth.
        height, mask = -depth - 3 * probability, background < 0.5
        return labelling.grow(depth, _RISE, cell, height, mask, smallest=_SMALLEST)
