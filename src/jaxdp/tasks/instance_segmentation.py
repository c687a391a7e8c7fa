"""Defines the task of instance segmentation: which pixels belong to the same cell."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, UInt16

from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.errors import ConfigError
from jaxdp.models.resampling import center_crop
from jaxdp.tasks import instances, labelling
from jaxdp.tasks.task import Batch, BatchSums, Losses, Sums, Task, ratio, register, weighted_sums
from jaxdp.text.parsing import is_finite

REACH = 16  # pixels from the edge of a cell within which it has a direction
# Weight of the directions in the loss. Cellpose multiplies them by 5 and halves the squared error.
_DIRECTIONS = 12.5
SPLITTING, SMALLEST_AREA = 0.65, 16
# What validation data choose from; of equal ones the first is chosen.
_CHOICES = {
    "splitting": (SPLITTING, 0.35, 0.45, 0.55, 0.75, 0.85),
    "smallest_area": (SMALLEST_AREA, 32, 64, 128, 256),
}
Labels = Int[Array, "height width"]


@register("instance_segmentation")
@dataclasses.dataclass(frozen=True)
class InstanceSegmentation(Task):
    """Finds cells, or other objects, by the direction from the edge of a cell to its inside.

    A model has three outputs per pixel: the logit that the pixel is of a cell, and the direction
    away from the nearest pixel outside its cell, as steps down and to the right. The direction is a
    vector of length 1 in cells, shorter in their middle, and 0 more than 16 pixels inside. Where
    two cells touch, their directions are opposite. The loss of a pixel is the binary cross-entropy
    of the logit, plus 12.5 times the mean squared error of the direction. The loss of an image is
    the mean over its pixels.

    The metrics are those of `tasks.instances`, for which predictions of whole images are labelled.

    Attributes:
        num_classes: 3.
        splitting: from 0 to 1. Two parts of an object are two cells if the depth where they meet is
            less than this share of the depth in the middle of the smaller part. A larger number
            makes more cells. None for a number that validation data choose, or 0.65 without them.
        smallest_area: pixels of a cell; smaller objects are left out. None for a number that
            validation data choose, or 16 without them.

    Source: directions and their loss follow Stringer et al., Cellpose, 2021, and Cutler et al.,
    Omnipose, 2022, which computes directions from the distance to the edge.

    Raises:
        ConfigError: for a number out of range.
    """

    splitting: float | None = None
    smallest_area: int | None = None
    name = "instance_segmentation"
    kind = "segmentation"
    finds_instances = True
    best_metric = ("average_precision", True)

    def __post_init__(self) -> None:
        super().__post_init__()
        splitting, area = self.splitting, self.smallest_area
        if splitting is not None and not (is_finite(splitting) and 0 < splitting < 1):
            remedy = "must be a number between 0 and 1"
            raise ConfigError("task_kwargs", {"splitting": splitting}, remedy)
        if area is not None and not (is_finite(area) and area >= 1):
            remedy = "must be a number of pixels of at least 1"
            raise ConfigError("task_kwargs", {"smallest_area": area}, remedy)

    def losses(self, outputs: Float[Array, "batch h w 3"], batch: Batch) -> Losses:
        return self._losses(outputs, batch)[0]

    def divisors(self, outputs: Float[Array, "batch h w 3"], batch: Batch) -> Losses:
        return self._losses(outputs, batch)[1].astype(jnp.float32)

    def _losses(self, outputs: Array, batch: Batch) -> tuple[Losses, Bool[Array, "batch"]]:
        """Returns the loss of each image, and whether it has a pixel that counts."""
        labels = batch["masks"].astype(jnp.int32)
        # Unpadded convolutions make outputs smaller.
        wanted = center_crop(jax.vmap(directions)(labels), outputs)
        labels = center_crop(labels, outputs)
        counted = labels != IGNORE_LABEL
        losses = optax.sigmoid_binary_cross_entropy(outputs[..., 0], labels > 0)
        losses += _DIRECTIONS * jnp.mean(jnp.square(outputs[..., 1:] - wanted), -1)
        count = jnp.sum(counted, (1, 2))
        return jnp.sum(losses * counted, (1, 2)) / jnp.maximum(count, 1), count > 0

    def sums(self, outputs: Array, batch: Batch, *, training: bool) -> BatchSums:
        losses, scored = self._losses(outputs, batch)
        return weighted_sums({"loss": losses, "unscored": ~scored}, batch)

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Returns the loss and, if the objects of the images were counted, their scores, and how
        they were labelled.
        """
        scored = sums["examples"] - sums["unscored"]
        if sums["examples"] and not scored:
            return {}
        metrics = {"loss": float(ratio(sums["loss"], scored))}
        if "objects" not in sums:
            return metrics
        settings = {"splitting": self.splitting, "smallest_area": self.smallest_area}
        metrics |= instances.metrics(sums) or {"average_precision": 0.0}  # 0 as in StarDist
        return metrics | {f"setting/{name}": value for name, value in settings.items() if value}

    def calibrated(self, metrics: Mapping[str, float]) -> "InstanceSegmentation":
        names = ("splitting", "smallest_area")
        chosen: dict[str, Any] = {
            name: metrics[f"setting/{name}"]
            for name in names
            if getattr(self, name) is None and f"setting/{name}" in metrics
        }
        return dataclasses.replace(self, **chosen) if chosen else self

    def choices(self, name: str) -> "list[InstanceSegmentation]":
        """Returns tasks with each value of a setting from which validation data choose, the usual
        one first.
        """
        given = getattr(self, name)
        values = _CHOICES[name] if given is None else (given,)
        return [dataclasses.replace(self, **{name: value}) for value in values]

    def probabilities(self, outputs: Float[Array, "batch h w 3"]) -> Float[Array, "batch h w 3"]:
        """Returns the probability that a pixel is of a cell, and its direction."""
        cell, direction = jax.nn.sigmoid(outputs[..., :1]), jnp.clip(outputs[..., 1:], -1, 1)
        return jnp.concatenate([cell, direction], -1)

    def moved_back(self, outputs: Any, turns: int, mirrored: bool) -> Any:
        """Also turns the directions."""
        outputs = super().moved_back(outputs, turns, mirrored)
        cell, down, right = outputs[..., 0], outputs[..., 1], outputs[..., 2]
        right = -right if mirrored else right
        for _ in range(turns):
            down, right = right, -down
        return jnp.stack([cell, down, right], -1)

    def label(self, prediction: Float[np.ndarray, "height width 3"]) -> UInt16[np.ndarray, "h w"]:
        """Returns the number of the cell at each pixel, with 0 for background.

        A pixel is of a cell if its probability is above 0.5. Its depth in its cell is integrated
        from the directions. Seeds are the maxima of the depth that rise enough above the path to a
        higher one, and a watershed grows them. Holes of a cell are filled.

        Raises:
            ConfigError: for more cells than 16 bits can number.
        """
        cell = prediction[..., 0] > 0.5
        depth = labelling.integrate(cell, prediction[..., 1:])
        relative = np.log(np.maximum(depth, labelling.EDGE))  # a difference is now a ratio
        rise = -math.log(self.splitting or SPLITTING)
        smallest = self.smallest_area or SMALLEST_AREA
        grown = labelling.grow(relative, rise, cell, -depth, cell, smallest=smallest)
        return labelling.fill_holes(grown)


def directions(labels: Labels) -> Float[Array, "height width 2"]:
    """Returns the direction away from the nearest pixel outside its cell at each pixel of a cell,
    down and to the right; 0 for background.

    It is the gradient of the distance to the edge, made as long as 1 unless it is below 1/2.

    Args:
        labels: numbers of cells, 0 for background, IGNORE_LABEL for padding.
    """
    height, width = labels.shape
    depth: Any = jnp.where(labels > 0, distances(labels), 0.0)
    depth, numbers = (jnp.pad(each, 1, mode="edge") for each in (depth, labels))
    gradient: Any = jnp.zeros((height, width, 2))
    for down, right in itertools.product((-1, 0, 1), repeat=2):  # Sobel's filter
        window = slice(1 + down, 1 + down + height), slice(1 + right, 1 + right + width)
        # Across the edge of a cell, the distance goes on below 0.
        signed = jnp.where(numbers[window] == labels, 1.0, -1.0) * depth[window]
        step = jnp.array([down, right]) * (2 - abs(down * right)) / 8
        gradient += signed[..., None] * step
    length = jnp.linalg.norm(gradient, axis=-1, keepdims=True)
    return jnp.where(labels[..., None] > 0, gradient / jnp.maximum(length, 0.5), 0.0)


def distances(labels: Labels) -> Float[Array, "height width"]:
    """Returns the distance of each pixel to the nearest pixel with another number, in pixels, at
    most 16. Neither the padding nor the outside of the image has another number.
    """
    height, width = labels.shape
    far = 2 * REACH

    def differs(other: Labels) -> Bool[Array, "height width"]:
        return (other != labels) & (other != IGNORE_LABEL)

    def window(padded: Array, top: Any, left: Any) -> Array:
        return jax.lax.dynamic_slice(padded, (top, left), (height, width))

    rows = jnp.pad(labels, ((REACH, REACH), (0, 0)), constant_values=IGNORE_LABEL)

    def look_down(index: Any, nearest: Array) -> Array:
        step = REACH - index  # the nearest comes last
        found = differs(window(rows, REACH - step, 0)) | differs(window(rows, REACH + step, 0))
        return jnp.where(found, step, nearest)

    # Made of the labels, so that a loop in shard_map varies over the devices from the start.
    nothing = 0 * labels
    nearest: Any = jax.lax.fori_loop(0, REACH, look_down, nothing + far)
    nearest = jnp.where(labels == IGNORE_LABEL, far, nearest)
    sides = ((0, 0), (REACH, REACH))
    below = jnp.pad(nearest, sides, constant_values=far)
    columns = jnp.pad(labels, sides, constant_values=IGNORE_LABEL)

    def look_right(step: Any, squared: Array) -> Array:
        # In a column with the same number, the nearest other pixel is above or below.
        down = jnp.where(differs(window(columns, 0, step)), 0, window(below, 0, step))
        return jnp.minimum(squared, down**2 + (step - REACH) ** 2)

    squared: Any = jax.lax.fori_loop(0, 2 * REACH + 1, look_right, nothing + REACH**2)
    return jnp.sqrt(squared.astype(jnp.float32))
