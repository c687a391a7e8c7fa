"""Defines the task of regression from an image to numbers, such as an age."""

# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdp.errors import ConfigError
from jaxdp.tasks.regression import LOSSES, elementwise
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

Values = Float[Array, "batch values"]


@register("scalar_regression")
@dataclasses.dataclass(frozen=True)
class ScalarRegression(Task):
    """Mean absolute error, root mean squared error and R² of numbers.

    The model learns numbers with mean 0 and standard deviation 1; predictions and errors have the
    units of the data. The loss of an image is the mean over its numbers.

    Attributes:
        num_classes: how many numbers an image has.
        class_names: one per number.
        loss: `l2` (squared error), `l1` (absolute error) or `huber`, of standardized numbers.
        delta: the error, in standard deviations, beyond which the Huber loss grows linearly.
        mean, std: of each number over the training data, which a run measures; by default 0 and 1.

    Raises:
        ConfigError: for an unknown loss, or a value out of range.
    """

    loss: str = "l2"
    delta: float | int = 1.0
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    name, target = "scalar_regression", "values"
    best_metric = ("mae", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, LOSSES)
        if self.delta <= 0:
            raise ConfigError("task_kwargs", {"delta": self.delta}, "must be greater than 0")

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        given = (self.mean or (0.0,), self.std or (1.0,))
        mean, std = (np.resize(np.array(each, np.float32), self.num_classes) for each in given)
        return mean, std

    def _errors(self, outputs: Values, batch: Batch) -> tuple[Values, Values]:
        """Returns errors and truth of standardized numbers."""
        mean, std = self._moments()
        values = batch["values"].reshape(outputs.shape)  # of one number, also (batch,)
        truth = (values - mean) / std
        return outputs - truth, truth

    def probabilities(self, outputs: Values) -> Array:
        mean, std = self._moments()
        return outputs * std + mean

    def losses(self, outputs: Values, batch: Batch) -> Losses:
        errors, _ = self._errors(outputs, batch)
        return jnp.mean(elementwise(self.loss, errors, float(self.delta)), -1)

    def sums(self, outputs: Values, batch: Batch, *, training: bool) -> BatchSums:
        errors, truth = self._errors(outputs, batch)
        weights = batch["weights"]
        parts = {"absolute": jnp.abs(errors), "squared": jnp.square(errors)}
        parts |= {"truth": truth, "truth_squared": jnp.square(truth)}
        sums = weighted_sums({"loss": self.losses(outputs, batch)}, batch)
        return sums | {name: weights @ each for name, each in parts.items()}

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Returns `loss`, `mae`, `rmse` and `r2`, which are means over the numbers, and for several
        numbers also those of each.

        R² is 1 - squared error / squared difference from the mean of the evaluated data, and 0 if
        these are all equal.
        """
        _, std = self._moments()
        count = max(float(sums["examples"]), 1.0)
        absolute, squared, truth, truth_squared = (
            np.asarray(sums[name], np.float64) / count
            for name in ("absolute", "squared", "truth", "truth_squared")
        )
        variance = truth_squared - truth**2
        varies = variance > 1e-9
        each = {
            "mae": absolute * std,
            "rmse": np.sqrt(squared) * std,
            "r2": np.where(varies, 1 - squared / np.where(varies, variance, 1), 0),
        }
        metrics = {"loss": float(sums["loss"]) / count}
        metrics |= {name: float(values.mean()) for name, values in each.items()}
        if self.num_classes > 1:
            for name, values in each.items():
                named = zip(self.class_names, values.tolist(), strict=True)
                metrics |= {f"{name}/{number}": value for number, value in named}
        return metrics

    def columns(self) -> list[str]:
        return [*self.class_names]

    def cells(self, prediction: np.ndarray) -> list[str]:
        return [f"{value:.6g}" for value in prediction]

    def row(self, prediction: np.ndarray, top_k: int) -> dict[str, Any]:
        values = (float(f"{value:.6g}") for value in prediction)
        return {"values": dict(zip(self.class_names, values, strict=True))}

    def compare(self, prediction: np.ndarray, example: Mapping[str, Any]) -> tuple[float, str]:
        truth = np.atleast_1d(example["values"])
        _, std = self._moments()
        texts = (", ".join(f"{value:.4g}" for value in each) for each in (truth, prediction))
        return float(np.abs((truth - prediction) / std).mean()), ", predicted ".join(texts)
