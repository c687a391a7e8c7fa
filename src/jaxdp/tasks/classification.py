"""Classification: one label an image."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxdp import tasks
from jaxdp.registry import ConfigError

TOP = 5


@tasks.register("classification")
@dataclasses.dataclass(frozen=True)
class Classification:
    """Cross-entropy, accuracy, the share of labels among the 5 likeliest classes, and the confusion matrix.

    Attributes:
        num_classes: of the logits.
        class_names: one per class.
        label_smoothing: share of the target spread evenly over all classes, in the training loss alone; the reported `loss` is
            without it, so that runs compare. Source: Szegedy et al. 2016, section 7.
    """

    num_classes: int
    class_names: tuple[str, ...]
    label_smoothing: float | int = 0.0
    name = "classification"
    best_metric = ("accuracy", True)

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError("task_kwargs", {"label_smoothing": self.label_smoothing}, "must be at least 0 and below 1")

    def losses(self, outputs: Float[Array, "batch classes"], batch: Mapping[str, Array]) -> Float[Array, "batch"]:
        """Mixed images have mixed labels: the partner's counts by its share (Zhang et al. 2018, section 2)."""
        targets = jax.nn.one_hot(batch["labels"], outputs.shape[-1])
        if "partner_share" in batch:
            share = batch["partner_share"][:, None]
            targets = (1 - share) * targets + share * jax.nn.one_hot(batch["partner_labels"], outputs.shape[-1])
        return optax.softmax_cross_entropy(outputs, optax.smooth_labels(targets, self.label_smoothing))

    def sums(
        self, outputs: Float[Array, "batch classes"], batch: Mapping[str, Array], *, training: bool
    ) -> dict[str, Float[Array, "..."]]:
        labels: Int[Array, "batch"] = batch["labels"]
        weights = batch["weights"]
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
        predicted = jnp.argmax(outputs, -1)
        sums = {
            "loss": jnp.sum(weights * losses),
            "correct": jnp.sum(weights * (predicted == labels)),
            "examples": jnp.sum(weights),
        }
        if self.num_classes > TOP:
            # How many logits are larger, rather than a sort. An equal one of a lower class counts too, as in argmax.
            own = jnp.take_along_axis(outputs, labels[:, None], -1)
            ahead = (outputs > own) | ((outputs == own) & (jnp.arange(self.num_classes) < labels[:, None]))
            # A logit that is not a number ranks nowhere.
            among = (jnp.sum(ahead, -1) < TOP) & jnp.isfinite(own[:, 0])
            sums["among_top5"] = jnp.sum(weights * among)
        if not training:
            actual = weights[:, None] * jax.nn.one_hot(labels, self.num_classes)
            sums["confusion"] = actual.T @ jax.nn.one_hot(predicted, self.num_classes)
        return sums

    def figures(self, sums: tasks.Sums) -> dict[str, float]:
        shares = {"loss": "loss", "accuracy": "correct", "top5_accuracy": "among_top5"}
        return {name: float(tasks.ratio(sums[part], sums["examples"])) for name, part in shares.items() if part in sums}
