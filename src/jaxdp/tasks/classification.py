"""Classification: one label an image."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Classification:
    """Cross-entropy and accuracy.

    Attributes:
        label_smoothing: share of the target spread evenly over all classes, in the training loss alone; the reported `loss` is
            without it, so that runs compare. Source: Szegedy et al. 2016, section 7.
    """

    label_smoothing: float = 0.0
    name: str = "classification"
    best_metric: tuple[str, bool] = ("accuracy", True)

    def losses(self, outputs: Float[Array, "batch classes"], batch: Mapping[str, Array]) -> Float[Array, "batch"]:
        targets = jax.nn.one_hot(batch["labels"], outputs.shape[-1])
        return optax.softmax_cross_entropy(outputs, optax.smooth_labels(targets, self.label_smoothing))

    def sums(self, outputs: Float[Array, "batch classes"], batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
        labels: Int[Array, "batch"] = batch["labels"]
        weights = batch["weights"]
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
        correct = jnp.argmax(outputs, -1) == labels
        return {"loss": jnp.sum(weights * losses), "accuracy": jnp.sum(weights * correct), "examples": jnp.sum(weights)}
