"""Makes a task of a plain loss function, such as one of Optax's."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdp.data.sources import TARGET_FIELDS
from jaxdp.errors import ConfigError
from jaxdp.models.resampling import center_crop
from jaxdp.tasks.task import Batch, Losses, Sums, Task, ratio, weighted_sums
from jaxdp.text.messages import nearest

LossFunction = Callable[[Array, Array], Any]


@dataclasses.dataclass(frozen=True)
class BatchLoss:
    """What `batch_loss` returns.

    Attributes:
        function: (outputs, targets) -> a number, or losses (batch, ...).
    """

    function: LossFunction

    def __call__(self, outputs: Array, targets: Array) -> Any:
        return self.function(outputs, targets)


def batch_loss(function: LossFunction) -> BatchLoss:
    """Marks a loss that compares the examples of a batch, such as a contrastive loss, or that
    returns one number for all of them.

    It gets the outputs and the targets of the whole global batch on every device, so that the
    update does not depend on the number of devices. Microbatches are refused. In evaluations, the
    loss is the mean over all whole batches; examples beyond the last whole batch do not count.

    Args:
        function: (outputs, targets) -> a number, or losses (batch, ...), in JAX; or a pair of these
            and a dict of other values, as for `from_loss`.
    """
    return BatchLoss(function)


OVER_BATCH = "wrap a loss of the whole batch in jaxdp.tasks.batch_loss"
_EXTRA = "of_loss/"  # prefix of a value that the function returns with its losses


def from_loss(
    function: LossFunction,
    *,
    kind: str = "classification",
    num_classes: int,
    class_names: Sequence[str] = (),
    name: str | None = None,
) -> Task:
    """Makes a task of a loss function, e.g. `optax.softmax_cross_entropy_with_integer_labels`.

    The metrics are `loss` and, for classification, `accuracy`. With validation data and a run
    directory, the result is the state with the lowest validation `loss`. Otherwise it is the last
    state.

    Args:
        function: (outputs, targets) -> losses (batch, ...), in JAX; or a pair of losses and a dict
            of other values (batch, ...). The means of these values over the examples are metrics.
            A loss that compares examples is wrapped in `batch_loss`.
            Losses with more dims than one, such as one per pixel, are averaged per example. Targets
            are int32 labels (batch,), int32 masks (batch, height, width) or float32 images with
            values of 0 to 1 (batch, height, width, channels), according to `kind`. Masks and images
            are cropped to the outputs, which unpadded convolutions make smaller. If images are
            mixed, the losses of their labels are mixed in the same proportion.
        kind: `classification`, `segmentation` or `regression`, which determines the datasets and
            models that suit the task.
        num_classes: number of outputs of a model for this task.
        class_names: one per class; by default the classes are counted from "0".
        name: the task's name; by default the function's.

    Raises:
        ConfigError: for an unknown kind or a number of classes below 1. While a step is traced, the
            task raises it if the function does not return losses per example.
    """
    if kind not in TARGET_FIELDS:
        raise ConfigError("kind", kind, nearest(str(kind), list(TARGET_FIELDS)))
    plain: Any = function
    while (inner := getattr(plain, "func", getattr(plain, "__wrapped__", None))) is not None:
        plain = inner  # of a functools.partial or a decorator, such as jax.jit
    over_batch = isinstance(plain, BatchLoss)
    plain = plain.function if over_batch else plain
    return LossTask(
        num_classes,
        tuple(class_names),
        function=function,
        kind=kind,
        name=name or getattr(plain, "__name__", type(plain).__name__),
        over_batch=over_batch,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossTask(Task):
    """The task that `from_loss` returns.

    Attributes:
        function: (outputs, targets) -> losses (batch, ...).
        kind: the built-in task that this one resembles.
        name: of the task.
    """

    function: LossFunction
    kind: str  # pyright: ignore[reportGeneralTypeIssues]
    name: str
    over_batch: bool = False

    @property
    def mixes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the losses of two labels can be mixed."""
        return self.kind == "classification" and not self.over_batch

    def losses(self, outputs: Float[Array, "batch ..."], batch: Batch) -> Losses:
        losses = self._per_example(outputs, batch[TARGET_FIELDS[self.kind]])["loss"]
        if "partner_share" in batch:
            share = batch["partner_share"]
            partners = self._per_example(outputs, batch["partner_labels"])["loss"]
            losses = (1 - share) * losses + share * partners
        return losses

    def sums(
        self, outputs: Float[Array, "batch ..."], batch: Batch, *, training: bool
    ) -> dict[str, Float[Array, ""]]:
        targets = batch[TARGET_FIELDS[self.kind]]
        values = self._per_example(outputs, targets)
        if self.over_batch:  # an example that only fills a batch up would change the loss of others
            is_whole = jnp.all(batch["present"] > 0)
            values = {name: jnp.where(is_whole, value, 0) for name, value in values.items()}
            values["compared"] = is_whole.astype(float)
        if self.kind == "classification":
            values["correct"] = jnp.argmax(outputs, -1) == targets
        return weighted_sums(values, batch)

    def metrics(self, sums: Sums) -> dict[str, float]:
        compared = sums.get("compared", sums["examples"])
        means = {
            name.removeprefix(_EXTRA): float(ratio(sums[name], compared))
            for name in sums
            if name == "loss" or name.startswith(_EXTRA)
        }
        return super().metrics(sums) | means

    def _per_example(self, outputs: Array, targets: Array) -> dict[str, Losses]:
        """Returns the losses, and the other values that the function returns."""
        if self.kind != "classification":
            targets = center_crop(targets, outputs)
        returned = self.function(outputs, targets)
        values: dict[str, Any] = {"loss": returned}
        if isinstance(returned, tuple):
            values["loss"], extra = cast(tuple[Any, dict[str, Any]], returned)
            if taken := extra.keys() & {"loss", "examples"}:
                remedy = f"returns a value called {min(taken)}, as jaxdp does; rename it"
                raise ConfigError("task", self.name, remedy)
            values |= {f"{_EXTRA}{name}": value for name, value in extra.items()}
        for name, value in values.items():
            shape = jnp.shape(value)
            if self.over_batch and not shape:
                value = jnp.broadcast_to(value, len(outputs))
            elif shape[:1] != (len(outputs),):
                own = name.removeprefix(_EXTRA)
                what, all_of = ("loss", "losses") if own == "loss" else (f"value of {own}", own)
                given = f"{all_of} of shape {shape}" if shape else "a single number"
                remedy = (
                    f"returns {given}; it must return one {what} per example, of shape (batch,)"
                )
                raise ConfigError("task", self.name, f"{remedy}; {OVER_BATCH}")
            values[name] = jnp.mean(value.reshape(len(outputs), -1), -1)
        return values
