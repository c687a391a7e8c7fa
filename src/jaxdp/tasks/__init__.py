"""What is to be learned? A task turns outputs and a batch into a loss and metrics; it knows no device."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float


@runtime_checkable
class Task(Protocol):
    """Sums, not means, leave a task: they add up over devices, processes and batches, and are divided once, at the end."""

    @property
    def name(self) -> str:
        """As in summary.json."""
        ...

    @property
    def best_metric(self) -> tuple[str, bool]:
        """The figure by which checkpoints are ranked, and whether larger is better."""
        ...

    def losses(self, outputs: Array, batch: Mapping[str, Array]) -> Float[Array, "batch"]:
        """Returns each example's training loss."""
        ...

    def sums(self, outputs: Array, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Returns sums of metrics over the examples, each weighted by `batch["weights"]`, and `examples`, the sum of weights."""
        ...
