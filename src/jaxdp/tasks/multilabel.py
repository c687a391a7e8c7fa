"""Defines the task of multi-label classification: any number of classes per image."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxdp.errors import ConfigError
from jaxdp.tasks.task import Batch, BatchSums, Losses, Sums, Task, ratio, register, weighted_sums
from jaxdp.text.parsing import is_finite

Logits = Float[Array, "batch classes"]
# Logits from -16 to 16 are counted in bins, so that the counts of batches and devices add up. A
# logit of 0, a probability of 0.5, is the edge of a bin.
_PER_LOGIT, _FARTHEST = 128, 16
_ROUNDING = 1e-3
_BINS = 2 * _FARTHEST * _PER_LOGIT
_EDGES = 1 / (1 + np.exp(_FARTHEST - np.arange(_BINS) / _PER_LOGIT))  # probabilities


@register("multilabel")
@dataclasses.dataclass(frozen=True)
class MultiLabel(Task):
    """Binary cross-entropy, mean average precision and F1 of images with any number of classes.

    The loss of an image is the mean over the classes. Average precision is the area under the steps
    of precision over recall, as in scikit-learn's `average_precision_score`, of logits rounded to
    1/128; `mean_average_precision` is the mean over the classes that occur. `f1` is the mean F1 of
    these classes. Steps of training only report the loss.

    At the end of a run with validation data, each class gets the threshold with the highest F1 on
    the validation data. While a run trains, and without validation data, thresholds are 0.5.

    Attributes:
        num_classes: number of logits.
        class_names: one per class; by default the classes are counted from "0".
        thresholds: the probability from which a class is predicted, one per class, rounded to the
            next bin of logits; empty for thresholds that validation data choose.

    Raises:
        ConfigError: for thresholds that are not one probability per class.
    """

    thresholds: tuple[float, ...] | list[float] = ()
    name, target = "multilabel", "present"
    best_metric = ("mean_average_precision", True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.thresholds
        fits = len(given) in (0, self.num_classes)
        if not (fits and all(is_finite(each) and 0 < each < 1 for each in given)):
            remedy = f"must be {self.num_classes} numbers between 0 and 1, one per class"
            raise ConfigError("task_kwargs", {"thresholds": given}, remedy)

    def _first_bins(self) -> np.ndarray:
        """Returns the first bin of each class in which a class is predicted, (classes,)."""
        thresholds = np.asarray(self.thresholds or [0.5] * self.num_classes)
        return np.abs(_EDGES - thresholds[:, None]).argmin(-1)

    def _predicted(self, prediction: np.ndarray) -> np.ndarray:
        """Returns the numbers of the predicted classes of an image, the most likely first."""
        order = np.argsort(-prediction, kind="stable")
        # A logit on the edge of a bin, as those of bfloat16 often are, comes back rounded.
        with np.errstate(divide="ignore"):
            logits = np.log(prediction, dtype=np.float64) - np.log1p(-prediction, dtype=np.float64)
        first = self._first_bins() / _PER_LOGIT - _FARTHEST - _ROUNDING
        return order[(logits >= first)[order]]

    def probabilities(self, outputs: Logits) -> Array:
        return jax.nn.sigmoid(outputs)

    def losses(self, outputs: Logits, batch: Batch) -> Losses:
        return jnp.mean(optax.sigmoid_binary_cross_entropy(outputs, batch["present"]), -1)

    def sums(self, outputs: Logits, batch: Batch, *, training: bool) -> BatchSums:
        sums = weighted_sums({"loss": self.losses(outputs, batch)}, batch)
        if not training:
            present = (batch["present"] > 0).astype(jnp.int32)
            weights = jnp.broadcast_to(batch["weights"][:, None], present.shape)
            places = (present, jnp.arange(self.num_classes), _bins(outputs))
            sums["scores"] = jnp.zeros((2, self.num_classes, _BINS)).at[places].add(weights)
        return sums

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Returns `loss`, `mean_average_precision`, `f1`, and for each class its average precision,
        its F1 and its threshold.
        """
        metrics = {"loss": float(ratio(sums["loss"], sums["examples"]))}
        if "scores" not in sums:
            return metrics
        # Of the images with at least the logits of a bin, (classes, bins).
        absent, present = np.flip(np.cumsum(np.flip(sums["scores"], -1), -1), -1)
        positives, found = present[:, 0], sums["scores"][1]
        averages = ratio((found * ratio(present, present + absent)).sum(-1), positives)
        f1 = ratio(2 * present, present + absent + positives[:, None])
        bins = self._first_bins()
        reached = np.take_along_axis(f1, bins[:, None], -1)[:, 0]
        if not self.thresholds:
            bins = _BINS - 1 - np.flip(f1, -1).argmax(-1)  # the highest of equal ones
        occurs = positives > 0
        metrics["mean_average_precision"] = float(averages[occurs].mean()) if occurs.any() else 0.0
        metrics["f1"] = float(reached[occurs].mean()) if occurs.any() else 0.0
        for index in np.flatnonzero(occurs):
            name = self.class_names[index]
            metrics[f"average_precision/{name}"] = float(averages[index])
            metrics[f"f1/{name}"] = float(reached[index])
            metrics[f"threshold/{name}"] = float(_EDGES[bins[index]])
        return metrics

    def calibrated(self, metrics: Mapping[str, float]) -> "MultiLabel":
        if self.thresholds or not any(name.startswith("threshold/") for name in metrics):
            return self
        chosen = (metrics.get(f"threshold/{name}", 0.5) for name in self.class_names)
        return dataclasses.replace(self, thresholds=tuple(chosen))

    def columns(self) -> list[str]:
        return ["labels", *self.class_names]

    def cells(self, prediction: np.ndarray) -> list[str]:
        labels: list[int] = sorted(self._predicted(prediction).tolist())
        names = ";".join(self.class_names[index] for index in labels)
        return [names, *(f"{value:.6f}" for value in prediction)]

    def row(self, prediction: np.ndarray, top_k: int) -> dict[str, Any]:
        return {
            "labels": [
                {"class": self.class_names[index], "probability": round(float(value), 6)}
                for index in self._predicted(prediction)
                for value in [prediction[index]]
            ]
        }

    def compare(self, prediction: np.ndarray, example: Mapping[str, Any]) -> tuple[float, str]:
        present = np.asarray(example["present"])
        numbers: tuple[list[int], ...] = (
            np.flatnonzero(present).tolist(),
            sorted(self._predicted(prediction).tolist()),
        )
        truth, found = (
            ", ".join(self.class_names[index] for index in each) or "none" for each in numbers
        )
        return float(np.abs(present - prediction).mean()), f"{truth}, predicted {found}"


def _bins(logits: Any) -> Any:
    """Returns the bin of each logit; NaN is in the first."""
    scaled = jnp.floor((jnp.nan_to_num(logits, nan=-_FARTHEST) + _FARTHEST) * _PER_LOGIT)
    return jnp.clip(scaled, 0, _BINS - 1).astype(jnp.int32)
