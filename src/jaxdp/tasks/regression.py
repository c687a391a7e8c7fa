"""Defines the task of regression from image to image."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxdp import tasks
from jaxdp.registry import ConfigError, nearest
from jaxdp.tasks.segmentation import center_crop

LOSSES = ("l2", "l1", "huber")


@tasks.register("regression")
@dataclasses.dataclass(frozen=True)
class Regression:
    """Mean squared error, mean absolute error and peak signal-to-noise ratio of images whose pixels
    lie in [0, 1].

    Attributes:
        num_classes: number of channels of the target.
        class_names: one per channel; no metric uses them.
        loss: `l2` (squared error), `l1` (absolute error) or `huber`; the mean over an image's
            pixels and channels.
        delta: the error beyond which the Huber loss grows linearly.

    Raises:
        ConfigError: for an unknown loss, or a value out of range.
    """

    num_classes: int
    class_names: tuple[str, ...] = ()
    loss: str = "l2"
    delta: float | int = 0.1
    name = "regression"
    best_metric = ("mse", False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "class_names", tasks.checked_names(self.num_classes, self.class_names)
        )
        if self.loss not in LOSSES:
            raise ConfigError("task_kwargs", {"loss": self.loss}, nearest(self.loss, list(LOSSES)))
        if self.delta <= 0:
            raise ConfigError("task_kwargs", {"delta": self.delta}, "must be greater than 0")

    def losses(
        self, outputs: Float[Array, "batch h w channels"], batch: Mapping[str, Array]
    ) -> Float[Array, "batch"]:
        targets = center_crop(batch["targets"], outputs.shape[1:3])
        if self.loss == "huber":
            errors = optax.huber_loss(outputs, targets, delta=float(self.delta))
        else:
            errors = (
                jnp.square(outputs - targets) if self.loss == "l2" else jnp.abs(outputs - targets)
            )
        return jnp.mean(errors, (1, 2, 3))

    def sums(
        self,
        outputs: Float[Array, "batch h w channels"],
        batch: Mapping[str, Array],
        *,
        training: bool,
    ) -> dict[str, Float[Array, "..."]]:
        errors = outputs - center_crop(batch["targets"], outputs.shape[1:3])
        weights = batch["weights"]
        return {
            "loss": jnp.sum(weights * self.losses(outputs, batch)),
            "examples": jnp.sum(weights),
            "squared": jnp.sum(weights * jnp.mean(jnp.square(errors), (1, 2, 3))),
            "absolute": jnp.sum(weights * jnp.mean(jnp.abs(errors), (1, 2, 3))),
        }

    def metrics(self, sums: tasks.Sums) -> dict[str, float]:
        """Returns `loss`, `mse`, `mae` and `psnr`, that of the whole set's mean squared error, in
        decibels.
        """
        loss, mse, mae = (
            float(tasks.ratio(sums[name], sums["examples"]))
            for name in ("loss", "squared", "absolute")
        )
        return {"loss": loss, "mse": mse, "mae": mae, "psnr": -10 * math.log10(max(mse, 1e-12))}
