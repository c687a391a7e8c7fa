"""Defines what a task is, what the built-in tasks share, and the registry of tasks."""

# pyright: reportUnnecessaryIsInstance=false

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from jaxdp.data.sources import TARGET_FIELDS
from jaxdp.registry import ConfigError, Registry, check_keywords, nearest

Batch = Mapping[str, Array]
Losses = Float[Array, "batch"]
Sums = Mapping[str, Any]


@runtime_checkable
class Task(Protocol):
    """A loss and its metrics.

    A task returns sums, not means: sums add up over devices, processes and batches, and are divided
    once, at the end.

    A task other than the three built-in ones may have further attributes of its class, and a
    method:

    - `kind`: `classification` (the default), `segmentation` or `regression`, whose models and
      datasets serve this task, too.
    - `target`: the field of a batch that it learns from, if it is not that of its kind;
      `Dataset.targets` then declares it.
    - `probabilities(outputs)`: what predictions are made from, where that is not the softmax (for
      regression: the outputs).
    - `divisors(outputs, batch)`: one number per example, where the training loss of a batch is not
      the mean of `losses` but their sum divided by the sum of these: over the global batch,
      whatever devices and microbatches it is computed in.
    """

    @property
    def name(self) -> str:
        """The name, as in summary.json."""
        ...

    @property
    def best_metric(self) -> tuple[str, bool]:
        """The metric by which checkpoints are ranked, and whether larger is better."""
        ...

    def losses(self, outputs: Array, batch: Batch) -> Losses:
        """Returns the training loss of each example."""
        ...

    def sums(self, outputs: Array, batch: Batch, *, training: bool) -> dict[str, Array]:
        """Returns sums over the examples, each weighted by `batch["weights"]`.

        Args:
            outputs: of the model.
            batch: fields of the examples, e.g. `labels`, and `weights`, 0 for padding.
            training: whether the step trains; then sums that take long may be left out.

        Returns:
            Numbers or arrays by name; among them `loss` and `examples`, the sum of the weights.
        """
        ...

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Divides the sums, and returns `loss` and the metrics.

        A name with a slash, such as `iou/cell`, is a detail.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ClassTask:
    """A task of classes or channels, which have names.

    Attributes:
        num_classes: number of outputs of a model.
        class_names: one per class; by default the classes are counted from "0".

    Raises:
        ConfigError: if `num_classes` is no whole number of at least 1.
    """

    num_classes: int
    class_names: tuple[str, ...] = ()
    # Metrics that are means over the examples, and the sums that they are made from.
    means: ClassVar[Mapping[str, str]] = {
        "loss": "loss",
        "accuracy": "correct",
        "top5_accuracy": "among_top5",
    }

    def __post_init__(self) -> None:
        names = checked_names(self.num_classes, self.class_names)
        object.__setattr__(self, "class_names", names)

    def metrics(self, sums: Sums) -> dict[str, float]:
        return {
            name: float(ratio(sums[part], sums["examples"]))
            for name, part in self.means.items()
            if part in sums
        }


_tasks: Registry[Callable[..., Task]] = Registry("task", "jaxdp.tasks")
register = _tasks.register
names = _tasks.entries


def kind_of(name: str) -> str:
    """Returns which of the three built-in tasks a task is, or resembles.

    Raises:
        ConfigError: for an unknown task.
    """
    return name if name in TARGET_FIELDS else getattr(_tasks[name], "kind", "classification")


def candidates(name: str | None, served: Sequence[str]) -> tuple[str, ...]:
    """Returns the tasks that a dataset may be for, preferred first.

    Args:
        name: the requested task; None for any.
        served: the tasks that the model serves.

    Returns:
        Names of tasks; none if the model does not serve the requested one.

    Raises:
        ConfigError: for an unknown task.
    """
    if name is None:
        return (
            *served,
            *(other for other in names() if other not in served and kind_of(other) in served),
        )
    kind = kind_of(name)
    if not {name, kind} & set(served):
        return ()
    return (name,) if kind == name or hasattr(_tasks[name], "target") else (name, kind)


def create(
    name: str, *, num_classes: int, class_names: tuple[str, ...] = (), **kwargs: Any
) -> Task:
    """Creates a task by name.

    Args:
        name: a registered name, e.g. `segmentation`.
        num_classes: number of outputs of a model for this task.
        class_names: one per class; by default the classes are counted from "0".
        **kwargs: keywords of that task, e.g. `loss`.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that the task does not accept.
    """
    kind = _tasks[name]
    check_keywords("task_kwargs", kind, kwargs, reserved=("num_classes", "class_names"))
    return kind(
        num_classes=num_classes, class_names=checked_names(num_classes, class_names), **kwargs
    )


def checked_names(num_classes: int, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of a task's classes: those given or, where there are none, "0", "1" and so
    on.

    Raises:
        ConfigError: if `num_classes` is no whole number of at least 1.
    """
    if (
        isinstance(num_classes, bool)
        or not isinstance(num_classes, int | np.integer)
        or num_classes < 1
    ):
        raise ConfigError("num_classes", num_classes, "must be a whole number of at least 1")
    return tuple(class_names) or tuple(map(str, range(num_classes)))


def check_choice(keyword: str, value: str, choices: Sequence[str]) -> None:
    """Raises ConfigError for a value of a task's keyword that is none of the choices."""
    if value not in choices:
        raise ConfigError("task_kwargs", {keyword: value}, nearest(value, list(choices)))


def check_class_weights(weights: Any, num_classes: int) -> None:
    """Raises ConfigError for weights that are neither none nor one number of at least 0 per class,
    not all 0.
    """
    shown: dict[str, Any] = {"class_weights": weights}
    given: list[Any] = [*weights] if isinstance(weights, tuple | list) else [None]
    if not all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight < np.inf
        for weight in given
    ):
        remedy = "must be numbers of at least 0, e.g. [1,2.5]"
        raise ConfigError("task_kwargs", shown, remedy)
    if given and (len(given) != num_classes or sum(given) == 0):
        remedy = f"must be {num_classes} numbers, one per class, not all 0"
        raise ConfigError("task_kwargs", shown, remedy)


def ratio(part: Any, whole: Any) -> Any:
    """Returns part / whole as float64, and 0 where nothing was counted."""
    whole = np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
