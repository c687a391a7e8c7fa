"""Defines the task of classification: one label per image."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxdp.errors import ConfigError
from jaxdp.tasks.task import (
    Batch,
    BatchSums,
    Losses,
    Task,
    check_class_weights,
    register,
    weighted_sums,
)

TOP = 5
Logits = Float[Array, "batch classes"]


@register("classification")
@dataclasses.dataclass(frozen=True)
class Classification(Task):
    """Cross-entropy, accuracy, top-5 accuracy with more than 5 classes, and the confusion matrix.

    Attributes:
        num_classes: number of logits.
        class_names: one per class; by default the classes are counted from "0".
        label_smoothing: share of the target that is spread evenly over all classes, in the training
            loss only; the reported `loss` is computed without it, so that runs can be compared.
            Source: Szegedy et al. 2016, section 7.
        class_weights: weight of each class in the training loss. The mean over the global batch is
            sum(weight * loss) / sum(weight), as in PyTorch's
            `CrossEntropyLoss(weight, label_smoothing=...)`. With smoothing, each class's share of
            the target has the class's weight, and the divisor sums the weights of the labels. If
            images are mixed, the weights in the divisor are mixed in the same proportion. The
            reported `loss` is computed without weights.

    Raises:
        ConfigError: for a value out of range.
    """

    label_smoothing: float | int = 0.0
    class_weights: tuple[float | int, ...] | list[float | int] = ()
    name = "classification"
    best_metric = ("accuracy", True)
    mixes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            given = {"label_smoothing": self.label_smoothing}
            raise ConfigError("task_kwargs", given, "must be at least 0 and below 1")
        check_class_weights(self.class_weights, self.num_classes)

    def losses(self, outputs: Logits, batch: Batch) -> Losses:
        """Returns the training loss of each example.

        If images are mixed, labels are mixed in the same proportion (Zhang et al. 2018, section 2).
        """
        targets = optax.smooth_labels(self._targets(outputs, batch), self.label_smoothing)
        if self.class_weights:
            targets *= jnp.asarray(self.class_weights)
        return optax.softmax_cross_entropy(outputs, targets)

    def divisors(self, outputs: Logits, batch: Batch) -> Losses:
        """Returns the class weight of each example. The mean of the weights divides the mean
        loss.
        """
        if not self.class_weights:
            return jnp.ones(len(outputs))
        return self._targets(outputs, batch) @ jnp.asarray(self.class_weights, jnp.float32)

    def _targets(self, outputs: Array, batch: Batch) -> Float[Array, "batch classes"]:
        targets = jax.nn.one_hot(batch["labels"], outputs.shape[-1])
        if "partner_share" in batch:
            share = batch["partner_share"][:, None]
            partners = jax.nn.one_hot(batch["partner_labels"], outputs.shape[-1])
            targets = (1 - share) * targets + share * partners
        return targets

    def sums(self, outputs: Logits, batch: Batch, *, training: bool) -> BatchSums:
        labels: Int[Array, "batch"] = batch["labels"]
        predicted = jnp.argmax(outputs, -1)
        values = {
            "loss": optax.softmax_cross_entropy_with_integer_labels(outputs, labels),
            "correct": predicted == labels,
        }
        if self.num_classes > TOP:
            # Counts larger logits instead of sorting. An equal logit of a lower class also counts,
            # as in argmax.
            own = jnp.take_along_axis(outputs, labels[:, None], -1)
            is_lower = jnp.arange(self.num_classes) < labels[:, None]
            ahead = (outputs > own) | ((outputs == own) & is_lower)
            # NaN has no rank.
            values["among_top5"] = (jnp.sum(ahead, -1) < TOP) & jnp.isfinite(own[:, 0])
        sums = weighted_sums(values, batch)
        if not training:
            actual = batch["weights"][:, None] * jax.nn.one_hot(labels, self.num_classes)
            sums["confusion"] = actual.T @ jax.nn.one_hot(predicted, self.num_classes)
        return sums
