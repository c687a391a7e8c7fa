"""Defines the task of semantic segmentation: one label per pixel."""

# pyright: reportUnknownMemberType=false, reportUnnecessaryIsInstance=false
# pyright: reportMissingTypeStubs=false

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.errors import ConfigError
from jaxdp.models.resampling import center_crop
from jaxdp.tasks.task import (
    Batch,
    BatchSums,
    Losses,
    Sums,
    Task,
    check_choice,
    check_class_weights,
    ratio,
    register,
    weighted_sums,
)

LOSSES = ("cross_entropy", "dice", "cross_entropy+dice")
Logits = Float[Array, "batch h w classes"]


@register("segmentation")
@dataclasses.dataclass(frozen=True)
class Segmentation(Task):
    """Cross-entropy, Dice loss or both.

    Intersection over union (IoU) and Dice per class, and pixel accuracy.

    The metrics cover the whole set. Pixels are counted over all images first, so that an image
    without a class weighs less than an image full of the class. `iou` and `dice` are means over the
    classes that occur.

    Attributes:
        num_classes: number of logits per pixel.
        class_names: one per class; by default the classes are counted from "0".
        loss: `cross_entropy` (mean over an image's pixels), `dice` (1 - mean soft Dice of the
            classes of an image; Milletari et al. 2016, section 3, without squares) or
            `cross_entropy+dice`, their sum.
        class_weights: weight of each class in the cross-entropy of the training loss, which is then
            a weighted mean. The reported `loss` is computed without weights.
        weighted_over: which pixels share the divisor of the weighted mean, the sum of their
            weights. They are the pixels of an `image`, or of the whole `batch`, as in PyTorch's
            `CrossEntropyLoss(weight)`. A loss with `dice` is a loss of images and accepts only
            `image`.
        ignore_label: pixels with this value count in no loss and no metric. Pixels with the value
            255, which is the padding of masks, do not count either. An image without any pixel that
            counts has no loss, and is excluded from the mean loss.

    Raises:
        ConfigError: for an unknown loss, or weights that do not fit the classes.
    """

    loss: str = "cross_entropy"
    class_weights: tuple[float | int, ...] | list[float | int] = ()
    ignore_label: int = 255
    weighted_over: str = "image"
    name = kind = "segmentation"
    best_metric = ("iou", True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, LOSSES)
        check_class_weights(self.class_weights, self.num_classes)
        check_choice("weighted_over", self.weighted_over, ("image", "batch"))
        if self.weighted_over == "batch" and self.loss != "cross_entropy":
            remedy = f"is for loss=cross_entropy; with {self.loss} use image"
            raise ConfigError("task_kwargs", {"weighted_over": "batch"}, remedy)

    def losses(self, outputs: Logits, batch: Batch) -> Losses:
        masks, counted, weights = self._targets(outputs, batch)
        if self._pools:
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, masks)
            return jnp.mean(weights * losses, (1, 2))
        return self._loss(outputs, masks, counted, weights)

    def divisors(self, outputs: Logits, batch: Batch) -> Losses:
        """Returns the mean weight of each image's pixels if the batch shares the divisor of the
        loss. Otherwise returns 1, or 0 for an image without any pixel that counts.
        """
        _, counted, weights = self._targets(outputs, batch)
        if not self._pools:
            return jnp.any(counted, (1, 2)).astype(jnp.float32)
        return jnp.mean(weights, (1, 2))

    @property
    def _pools(self) -> bool:
        return bool(self.class_weights) and self.weighted_over == "batch"

    def _targets(
        self, outputs: Array, batch: Batch
    ) -> tuple[Int[Array, "batch h w"], Bool[Array, "batch h w"], Float[Array, "batch h w"]]:
        """Returns masks cropped to the outputs, which unpadded convolutions make smaller; which
        pixels count; and their weights in the training loss.
        """
        masks = center_crop(batch["masks"].astype(jnp.int32), outputs)
        counted = (masks != self.ignore_label) & (masks != IGNORE_LABEL)
        masks = jnp.where(counted, masks, 0)
        weights = jnp.asarray(self.class_weights or (1.0,) * self.num_classes, jnp.float32)[masks]
        return masks, counted, jnp.where(counted, weights, 0.0)

    def sums(self, outputs: Logits, batch: Batch, *, training: bool) -> BatchSums:
        masks, counted, _ = self._targets(outputs, batch)
        values = {
            # Without weights of classes, so that runs can be compared.
            "loss": self._loss(outputs, masks, counted, counted.astype(jnp.float32)),
            "unscored": ~jnp.any(counted, (1, 2)),
        }
        counts = counted * batch["weights"][:, None, None]
        predicted = jnp.argmax(outputs, -1)
        classes = jnp.arange(self.num_classes)
        is_actual, is_predicted = masks[..., None] == classes, predicted[..., None] == classes

        def count(pixels: Array) -> Array:
            return jnp.sum(counts[..., None] * pixels, (0, 1, 2))

        return weighted_sums(values, batch) | {
            "intersection": count(is_actual & is_predicted),
            "actual": count(is_actual),
            "predicted": count(is_predicted),
        }

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Divides the sums, and returns the metrics, or no metrics if no pixel counts."""
        intersection, actual, predicted = (
            np.asarray(sums[name]) for name in ("intersection", "actual", "predicted")
        )
        scored = sums["examples"] - sums.get("unscored", 0.0)  # sums of version 0.3 have none
        if sums["examples"] and not scored:
            return {}
        union = actual + predicted - intersection
        occurs = union > 0
        shares = {
            "iou": ratio(intersection, union),
            "dice": ratio(2 * intersection, actual + predicted),
        }
        metrics = {"loss": float(ratio(sums["loss"], scored))}
        for metric, values in shares.items():
            metrics[metric] = float(values[occurs].mean()) if occurs.any() else 0.0
        metrics["pixel_accuracy"] = float(ratio(intersection.sum(), actual.sum()))
        for metric, values in shares.items():
            for index in np.flatnonzero(occurs):
                metrics[f"{metric}/{self.class_names[index]}"] = float(values[index])
        return metrics

    def _loss(self, outputs: Array, masks: Array, counted: Array, weights: Array) -> Losses:
        """Returns the loss of each image. Its pixels have these weights in the cross-entropy."""
        loss = jnp.zeros(len(outputs))
        if "cross_entropy" in self.loss:
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, masks)
            divisor = jnp.sum(weights, (1, 2))
            # Both sums are 0 for an image without a pixel that counts.
            loss += jnp.sum(weights * losses, (1, 2)) / jnp.where(divisor > 0, divisor, 1.0)
        if "dice" in self.loss:
            probabilities = jax.nn.softmax(outputs) * counted[..., None]
            actual = jax.nn.one_hot(masks, self.num_classes) * counted[..., None]
            intersection = jnp.sum(probabilities * actual, (1, 2))
            both = jnp.sum(probabilities, (1, 2)) + jnp.sum(actual, (1, 2))
            # Adds one pixel to each count, so that a class that is neither present nor predicted
            # scores 1, and no count is divided by 0.
            dice = (2 * intersection + 1) / (both + 1)
            loss += 1 - jnp.mean(dice, -1)
        return loss
