"""What is to be learned? A task turns outputs and a batch into a loss and metrics; it knows no device. One file each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from jaxdp.data.sources import TARGET_FIELDS
from jaxdp.registry import Registry, check_keywords

Sums = Mapping[str, Any]


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

    def sums(self, outputs: Array, batch: Mapping[str, Array], *, training: bool) -> dict[str, Array]:
        """Returns sums over the examples, each weighted by `batch["weights"]`: `examples` (of the weights), `loss`, and others,
        numbers or arrays.

        Args:
            training: whether the step trains; it may leave out what takes long.
        """
        ...

    def figures(self, sums: Sums) -> dict[str, float]:
        """Divides; returns `loss` and the metrics. Names with a slash, as in `iou/cell`, are details."""
        ...

    # A task that is none of the three here says more about itself, by attributes of its class and a method, as it needs:
    #   kind: `classification` (if it says nothing), `segmentation` or `regression`, whose models and datasets serve this one, too.
    #   target: the field of a batch that it learns from, if it is not that of its kind; `Dataset.targets` then declares it.
    #   probabilities(outputs): what predictions are made from, where it is not the softmax (regression: the outputs).


_tasks: Registry[Callable[..., Task]] = Registry("task", "jaxdp.tasks")
register = _tasks.register
names = _tasks.entries


def kind_of(name: str) -> str:
    """Returns which of the three tasks here a task is, or is like.

    Raises:
        ConfigError: for an unknown task.
    """
    return name if name in TARGET_FIELDS else getattr(_tasks[name], "kind", "classification")


def candidates(name: str | None, served: Sequence[str]) -> tuple[str, ...]:
    """Returns what a dataset may be for, preferred first: empty if the model does not serve the task.

    Args:
        name: the task that is asked for, if any.
        served: the tasks that the model serves.
    """
    if name is None:
        return (*served, *(other for other in names() if other not in served and kind_of(other) in served))
    kind = kind_of(name)
    if not {name, kind} & set(served):
        return ()
    return (name,) if kind == name or hasattr(_tasks[name], "target") else (name, kind)


def create(name: str, *, num_classes: int, class_names: tuple[str, ...] = (), **kwargs: Any) -> Task:
    """Creates a task.

    Args:
        num_classes: how many outputs a model has for it.
        class_names: one per class, or none, which counts them.
        **kwargs: keywords of that task, e.g. `loss`.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that the task does not have.
    """
    kind = _tasks[name]
    check_keywords("task_kwargs", kind, kwargs, reserved=("num_classes", "class_names"))
    return kind(num_classes=num_classes, class_names=class_names or tuple(map(str, range(num_classes))), **kwargs)


def ratio(part: Any, whole: Any) -> Any:
    """Returns part / whole, and 0 where nothing was counted."""
    whole = np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
