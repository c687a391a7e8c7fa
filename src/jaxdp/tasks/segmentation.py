"""Defines the task of semantic segmentation: one label per pixel."""

# pyright: reportUnknownMemberType=false, reportUnnecessaryIsInstance=false
# pyright: reportMissingTypeStubs=false

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from jaxdp import tasks
from jaxdp.registry import ConfigError, nearest
from jaxdp.tasks import instances

LOSSES = ("cross_entropy", "dice", "cross_entropy+dice")


@tasks.register("segmentation")
@dataclasses.dataclass(frozen=True)
class Segmentation:
    """Cross-entropy, Dice loss or both.

    Intersection over union (IoU) and Dice per class, and pixel accuracy.

    The metrics are those of the whole set: pixels are counted over all images first, so that an
    image without a class does not weigh as much as one full of it. `iou` and `dice` are means over
    the classes that occur. Where objects are told apart, the sums may count those that were found,
    and then `f1` and `average_precision` are among the metrics (`tasks.instances`).

    A batch with `border_weights` (batch, height, width) has them added to the class weight of each
    pixel: the two terms of equation 2 of the U-Net paper.

    Attributes:
        num_classes: number of logits per pixel.
        class_names: one per class; by default the classes are counted from "0".
        loss: `cross_entropy` (mean over an image's pixels), `dice` (1 - mean soft Dice of the
            classes of an image; Milletari et al. 2016, section 3, without squares) or
            `cross_entropy+dice`, their sum.
        class_weights: weight of each class in the cross-entropy of the training loss, which is then
            a weighted mean; the reported `loss` is computed without them.
        weighted_over: which pixels share the divisor of that mean, the sum of their weights: those
            of an `image`, or of the whole `batch`, as in PyTorch's `CrossEntropyLoss(weight)`. A
            loss with `dice` is one of images and takes `image` only.
        ignore_label: pixels of this value count in no loss and no metric.

    Raises:
        ConfigError: for an unknown loss, or weights that do not fit the classes.
    """

    num_classes: int
    class_names: tuple[str, ...] = ()
    loss: str = "cross_entropy"
    class_weights: tuple[float | int, ...] | list[float | int] = ()
    ignore_label: int = 255
    weighted_over: str = "image"
    name = "segmentation"
    best_metric = ("iou", True)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "class_names", tasks.checked_names(self.num_classes, self.class_names)
        )
        if self.loss not in LOSSES:
            raise ConfigError("task_kwargs", {"loss": self.loss}, nearest(self.loss, list(LOSSES)))
        tasks.check_class_weights(self.class_weights, self.num_classes)
        if self.weighted_over not in ("image", "batch"):
            raise ConfigError(
                "task_kwargs", {"weighted_over": self.weighted_over}, "must be image or batch"
            )
        if self.weighted_over == "batch" and self.loss != "cross_entropy":
            raise ConfigError(
                "task_kwargs",
                {"weighted_over": "batch"},
                f"is for loss=cross_entropy; with {self.loss} use image",
            )

    def losses(
        self, outputs: Float[Array, "batch h w classes"], batch: Mapping[str, Array]
    ) -> Float[Array, "batch"]:
        masks, counted = self._masks(outputs, batch)
        loss = jnp.zeros(len(outputs))
        if self._pools:
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, masks)
            return jnp.mean(self._pixel_weights(batch, masks, counted) * losses, (1, 2))
        if "cross_entropy" in self.loss:
            loss += self._cross_entropy(outputs, masks, self._pixel_weights(batch, masks, counted))
        if "dice" in self.loss:
            loss += self._dice_loss(outputs, masks, counted)
        return loss

    def divisors(
        self, outputs: Float[Array, "batch h w classes"], batch: Mapping[str, Array]
    ) -> Float[Array, "batch"]:
        """Returns the mean weight of each image's pixels, where the batch shares the divisor of the
        loss, and otherwise 1.
        """
        return (
            jnp.mean(self._pixel_weights(batch, *self._masks(outputs, batch)), (1, 2))
            if self._pools
            else jnp.ones(len(outputs))
        )

    @property
    def _pools(self) -> bool:
        return bool(self.class_weights) and self.weighted_over == "batch"

    def _pixel_weights(
        self, batch: Mapping[str, Array], masks: Array, counted: Array
    ) -> Float[Array, "batch h w"]:
        weights = jnp.asarray(self.class_weights or (1.0,) * self.num_classes, jnp.float32)[masks]
        if "border_weights" in batch:
            weights += center_crop(batch["border_weights"], masks.shape[1:3])
        return jnp.where(counted, weights, 0.0)

    def sums(
        self,
        outputs: Float[Array, "batch h w classes"],
        batch: Mapping[str, Array],
        *,
        training: bool,
    ) -> dict[str, Float[Array, "..."]]:
        masks, counted = self._masks(outputs, batch)
        weights = batch["weights"]
        # Without weights of classes or borders, so that runs can be compared.
        losses = self._cross_entropy(outputs, masks, counted.astype(jnp.float32))
        if self.loss != "cross_entropy":
            losses = self._dice_loss(outputs, masks, counted) + (
                losses if "cross_entropy" in self.loss else 0
            )
        counts = counted * weights[:, None, None]
        predicted = jnp.argmax(outputs, -1)
        classes = jnp.arange(self.num_classes)
        is_actual, is_predicted = masks[..., None] == classes, predicted[..., None] == classes
        axes = (0, 1, 2)
        return {
            "loss": jnp.sum(weights * losses),
            "examples": jnp.sum(weights),
            "intersection": jnp.sum(counts[..., None] * (is_actual & is_predicted), axes),
            "actual": jnp.sum(counts[..., None] * is_actual, axes),
            "predicted": jnp.sum(counts[..., None] * is_predicted, axes),
        }

    def metrics(self, sums: tasks.Sums) -> dict[str, float]:
        intersection, actual, predicted = (
            np.asarray(sums[name]) for name in ("intersection", "actual", "predicted")
        )
        union, both = actual + predicted - intersection, actual + predicted
        iou = tasks.ratio(intersection, union)
        dice = tasks.ratio(2 * intersection, both)
        occurs = union > 0
        metrics = {
            "loss": float(tasks.ratio(sums["loss"], sums["examples"])),
            "iou": float(iou[occurs].mean()) if occurs.any() else 0.0,
            "dice": float(dice[occurs].mean()) if occurs.any() else 0.0,
            "pixel_accuracy": float(tasks.ratio(intersection.sum(), actual.sum())),
        } | instances.metrics(sums)
        details = {"iou": iou, "dice": dice}
        return metrics | {
            f"{metric}/{name}": float(values[index])
            for metric, values in details.items()
            for index, name in enumerate(self.class_names)
            if occurs[index]
        }

    def _masks(
        self, outputs: Array, batch: Mapping[str, Array]
    ) -> tuple[Int[Array, "batch h w"], Bool[Array, "batch h w"]]:
        """Returns masks cropped to the outputs, which unpadded convolutions make smaller, and which
        pixels count.
        """
        masks = center_crop(batch["masks"].astype(jnp.int32), outputs.shape[1:3])
        counted = masks != self.ignore_label
        return jnp.where(counted, masks, 0), counted

    def _cross_entropy(self, outputs: Array, masks: Array, weights: Array) -> Float[Array, "batch"]:
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, masks)
        return _divide(jnp.sum(weights * losses, (1, 2)), jnp.sum(weights, (1, 2)))

    def _dice_loss(self, outputs: Array, masks: Array, counted: Array) -> Float[Array, "batch"]:
        probabilities = jax.nn.softmax(outputs) * counted[..., None]
        actual = jax.nn.one_hot(masks, self.num_classes) * counted[..., None]
        intersection = jnp.sum(probabilities * actual, (1, 2))
        # One more pixel of each: a class that is neither present nor predicted scores 1, and
        # nothing is divided by 0.
        dice = (2 * intersection + 1) / (
            jnp.sum(probabilities, (1, 2)) + jnp.sum(actual, (1, 2)) + 1
        )
        return 1 - jnp.mean(dice, -1)


def _divide(part: Array, whole: Array) -> Array:
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)


def center_crop(dense: Any, size: tuple[int, ...]) -> Any:
    """Crops an array (batch, height, width, ...), of JAX or NumPy, to the `size` (height, width) in
    its centre.
    """
    top, left = ((have - want) // 2 for have, want in zip(dense.shape[1:3], size, strict=True))
    return dense[:, top : top + size[0], left : left + size[1]]
