"""Defines the task of regression from image to image."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxdp.errors import ConfigError
from jaxdp.models.resampling import center_crop
from jaxdp.tasks.task import (
    Batch,
    BatchSums,
    Losses,
    Sums,
    Task,
    check_choice,
    register,
    weighted_sums,
)

LOSSES = ("l2", "l1", "huber")


def elementwise(loss: str, errors: Array, delta: float) -> Array:
    """Returns the loss of each error, `delta` being the one beyond which Huber's grows linearly."""
    if loss == "huber":
        return optax.huber_loss(errors, delta=delta)
    return jnp.square(errors) if loss == "l2" else jnp.abs(errors)


@register("regression")
@dataclasses.dataclass(frozen=True)
class Regression(Task):
    """Mean squared error, mean absolute error and peak signal-to-noise ratio of images with pixels
    in [0, 1].

    Attributes:
        num_classes: number of channels of the target.
        class_names: one per channel; no metric uses them.
        loss: `l2` (squared error), `l1` (absolute error) or `huber`; the mean over an image's
            pixels and channels.
        delta: the error beyond which the Huber loss grows linearly.

    Raises:
        ConfigError: for an unknown loss, or a value out of range.
    """

    loss: str = "l2"
    delta: float | int = 0.1
    name = kind = "regression"
    best_metric = ("mse", False)
    means: ClassVar = {"loss": "loss", "mse": "squared", "mae": "absolute"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, LOSSES)
        if self.delta <= 0:
            raise ConfigError("task_kwargs", {"delta": self.delta}, "must be greater than 0")

    def losses(self, outputs: Float[Array, "batch h w channels"], batch: Batch) -> Losses:
        errors = outputs - center_crop(batch["targets"], outputs)
        return jnp.mean(elementwise(self.loss, errors, float(self.delta)), (1, 2, 3))

    def sums(
        self, outputs: Float[Array, "batch h w channels"], batch: Batch, *, training: bool
    ) -> BatchSums:
        errors = outputs - center_crop(batch["targets"], outputs)
        values = {
            "loss": self.losses(outputs, batch),
            "squared": jnp.mean(jnp.square(errors), (1, 2, 3)),
            "absolute": jnp.mean(jnp.abs(errors), (1, 2, 3)),
        }
        return weighted_sums(values, batch)

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Returns `loss`, `mse`, `mae` and `psnr`, in decibels, from the mean squared error of the
        whole set.
        """
        means = super().metrics(sums)
        return means | {"psnr": -10 * math.log10(max(means["mse"], 1e-12))}
