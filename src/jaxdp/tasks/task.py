"""Defines what a task is, and the registry of tasks."""

# pyright: reportUnnecessaryIsInstance=false, reportUnknownMemberType=false

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import Registry, check_keywords
from jaxdp.text.messages import nearest
from jaxdp.text.parsing import is_finite

Batch = Mapping[str, Array]
Losses = Float[Array, "batch"]
# What `sums` of the tasks here return.
BatchSums = dict[str, Float[Array, "..."]]
Sums = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """A loss and its metrics: the base class of all tasks.

    A task returns sums instead of means. Sums add up over devices, processes and batches, and are
    divided once, at the end. Your own task has at least `name`, `best_metric`, `losses` and `sums`.

    Attributes:
        num_classes: number of outputs of a model: classes or channels.
        class_names: one per class; by default the classes are counted from "0".
        name: as in summary.json.
        best_metric: the metric by which checkpoints are ranked, and whether larger is better.
        kind: `classification`, `segmentation` or `regression`. Models and datasets for this kind of
            task also suit this task.
        target: the field of a batch that the task learns from, which `Dataset.targets` declares;
            empty for the field of its kind.
        means: metrics that are means over the examples, and the sums from which they are computed.
        over_batch: whether the loss compares the examples of a batch. `losses` and `sums` then get
            the outputs and the targets of the whole global batch on every device. In `sums`, the
            weights of other devices' examples are 0; `batch["present"]` has the weights of all.
        free_outputs: whether a model may return any tree of arrays (batch, ...). `probabilities`
            then returns what `predict` gives, one array.
        finds_instances: whether `label` returns instance labels.
        mixes: whether `losses` reads `partner_labels` and `partner_share` of mixed images.

    Raises:
        ConfigError: if `num_classes` is not a whole number of at least 1.
    """

    num_classes: int
    class_names: tuple[str, ...] = ()
    name = ""
    best_metric = ("loss", False)
    kind = "classification"
    target = ""
    over_batch = False
    free_outputs = False
    finds_instances = False
    mixes = False
    means: ClassVar[Mapping[str, str]] = {
        "loss": "loss",
        "accuracy": "correct",
        "top5_accuracy": "among_top5",
    }

    def __post_init__(self) -> None:
        count = self.num_classes
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ConfigError("num_classes", count, "must be a whole number of at least 1")
        names = tuple(self.class_names) or tuple(map(str, range(count)))
        object.__setattr__(self, "class_names", names)

    @property
    def has_pictures(self) -> bool:
        """Whether predictions can be drawn next to the truth: those of a built-in task, and those
        of a task with its own `compare`.
        """
        is_own = type(self).compare is not Task.compare
        return is_own or (not self.target and not self.free_outputs)

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        """Returns the training loss of each example."""
        raise NotImplementedError

    def divisors(self, outputs: Any, batch: Batch) -> Losses:
        """Returns one number per example. The sum of these numbers over the global batch divides
        the sum of `losses`, on any devices and in any microbatches.
        """
        return jnp.ones(len(batch["weights"]))

    def sums(self, outputs: Any, batch: Batch, *, training: bool) -> dict[str, Array]:
        """Returns sums over the examples, each weighted by `batch["weights"]`.

        Args:
            outputs: of the model.
            batch: fields of the examples, e.g. `labels`, and `weights`, 0 for padding.
            training: whether the step trains. In training, a task may leave out sums that take long
                to compute.

        Returns:
            Numbers or arrays by name, including `loss` and `examples`, the sum of the weights.
        """
        raise NotImplementedError

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Divides the sums, and returns `loss` and the metrics.

        A name with a slash, such as `iou/cell`, is a detail.
        """
        return {
            name: float(ratio(sums[part], sums["examples"]))
            for name, part in self.means.items()
            if part in sums
        }

    def probabilities(self, outputs: Any) -> Array:
        """Returns the values from which predictions are made, which are the outputs for
        regression.
        """
        return jax.nn.softmax(outputs)

    def moved_back(self, outputs: Any, turns: int, mirrored: bool) -> Any:
        """Returns outputs for images as outputs for the images before they were turned and
        mirrored, for test-time augmentation.

        Args:
            outputs: trees of arrays (batch, ...), for each pixel if `kind` is not classification.
            turns: quarter turns counterclockwise.
            mirrored: whether left and right were exchanged after the turns.
        """
        if self.kind == "classification":
            return outputs

        def back(leaf: Any) -> Any:
            return jnp.rot90(leaf[:, :, ::-1] if mirrored else leaf, -turns, (1, 2))

        return jax.tree.map(back, outputs)

    def label(self, prediction: np.ndarray) -> np.ndarray:
        """Returns the class of each pixel, uint8, or its instance label, uint16, for a task of
        segmentation.

        Args:
            prediction: what `probabilities` returns for an image.
        """
        return prediction.argmax(-1).astype(np.uint8)

    def calibrated(self, metrics: Mapping[str, float]) -> "Task":
        """Returns the task with what the validation data have chosen, such as thresholds.

        Args:
            metrics: of the validation data; empty if there are none.
        """
        return self

    def columns(self) -> list[str]:
        """Returns the titles of what `cells` returns."""
        return ["class", "probability", *self.class_names]

    def cells(self, prediction: np.ndarray) -> list[str]:
        """Returns a line of the CSV file of predictions, for a task with one prediction for an
        image.

        Args:
            prediction: what `probabilities` returns for an image.
        """
        best, every = int(prediction.argmax()), [f"{value:.6f}" for value in prediction]
        return [self.class_names[best], every[best], *every]

    def row(self, prediction: np.ndarray, top_k: int) -> dict[str, Any]:
        """Returns the prediction for an image for JSON and for the table, which shows a list of
        classes, and else each value by its name.

        Args:
            prediction: what `probabilities` returns for an image.
            top_k: how many classes to name.
        """
        most_likely = np.argsort(-prediction, kind="stable")[:top_k]
        return {
            "classes": [
                {"class": self.class_names[index], "probability": round(float(value), 6)}
                for index, value in zip(most_likely, prediction[most_likely], strict=True)
            ]
        }

    def compare(self, prediction: np.ndarray, example: Mapping[str, Any]) -> tuple[float, str]:
        """Returns the error of the prediction for an image, and a text with truth and prediction.

        Args:
            prediction: what `probabilities` returns for an image.
            example: the fields of the image, without a dim for the batch.
        """
        label, names = int(example["labels"]), self.class_names
        best = int(prediction.argmax())
        text = f"{names[label]}, predicted {names[best]} ({prediction[best]:.0%})"
        return float(1 - prediction[label]), text


_tasks: Registry[type[Task]] = Registry("task", "jaxdp.tasks")
register = _tasks.register
names = _tasks.entries


def class_of(name: str) -> type[Task]:
    """Returns the class of a task.

    Raises:
        ConfigError: for an unknown task.
    """
    found = _tasks[name]
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigError("task", name, "is no subclass of jaxdp.tasks.Task; make it one")
    return found


def kind_of(name: str) -> str:
    """Returns the built-in task that a task is, or resembles."""
    return class_of(name).kind


def candidates(name: str | None, served: Sequence[str]) -> tuple[str, ...]:
    """Returns the tasks that a dataset may be for, preferred first.

    Args:
        name: the requested task; None for any.
        served: the tasks that the model serves.

    Returns:
        Names of tasks; empty if the model does not serve the requested task.

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
    return (name,) if kind == name or class_of(name).target else (name, kind)


def create(
    name: str, *, num_classes: int, class_names: tuple[str, ...] = (), **kwargs: Any
) -> Task:
    """Creates a task by name.

    Args:
        name: a registered name, e.g. `segmentation`.
        num_classes: number of outputs of a model for this task.
        class_names: one per class; by default the classes are counted from "0".
        **kwargs: keywords of the task, e.g. `loss`.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that the task does not accept.
    """
    task = class_of(name)
    check_keywords("task_kwargs", task, kwargs, reserved=("num_classes", "class_names"))
    return task(num_classes, class_names, **kwargs)


def keywords_of(task: Task) -> dict[str, Any] | None:
    """Returns the keywords with which `create` makes a task again, in the types of YAML; None for a
    task of one's own, whose class is not registered under its name.
    """
    if names().get(task.name) is not type(task):
        return None
    fields = dataclasses.fields(task)[2:]  # without `num_classes` and `class_names`
    values = {each.name: getattr(task, each.name) for each in fields}
    changed = [each.name for each in fields if values[each.name] != each.default]
    return {name: np.asarray(values[name]).tolist() for name in changed}


def check_choice(keyword: str, value: str, choices: Sequence[str]) -> None:
    """Raises ConfigError if the value of a task's keyword is not among the choices."""
    if value not in choices:
        raise ConfigError("task_kwargs", {keyword: value}, nearest(value, list(choices)))


def check_class_weights(weights: Any, num_classes: int) -> None:
    """Raises ConfigError unless the weights are empty or have one number of at least 0 per class,
    with at least one above 0.
    """
    shown: dict[str, Any] = {"class_weights": weights}
    given: list[Any] = [*weights] if isinstance(weights, tuple | list) else [None]
    if not all(is_finite(weight) and weight >= 0 for weight in given):
        remedy = "must be numbers of at least 0, e.g. [1,2.5]"
        raise ConfigError("task_kwargs", shown, remedy)
    if given and (len(given) != num_classes or sum(given) == 0):
        remedy = f"must be {num_classes} numbers, one per class, not all 0"
        raise ConfigError("task_kwargs", shown, remedy)


def weighted_sums(values: Mapping[str, Array], batch: Batch) -> dict[str, Array]:
    """Returns the sums of values (batch,) over the examples by name, and the number of examples,
    weighted by `batch["weights"]`.
    """
    weights = batch["weights"]
    sums = {name: jnp.sum(weights * value) for name, value in values.items()}
    return sums | {"examples": jnp.sum(weights)}


def ratio(part: Any, whole: Any) -> Any:
    """Returns part / whole as float64, and 0 where the whole is 0."""
    whole = np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
