"""Combines several tasks of one model, which returns a dict of outputs."""

# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdp.data.array_source import FIELDS
from jaxdp.errors import ConfigError
from jaxdp.tasks.task import Batch, Losses, Sums, Task
from jaxdp.text.parsing import is_finite


def heads(tasks: Mapping[str, Task], weights: Mapping[str, float] | None = None) -> "Heads":
    """Makes a task of several, e.g. `heads({"digit": Classification(10), "age":
    ScalarRegression(1, mean=[40.0], std=[12.5])})`.

    The model returns a dict with the outputs of each task, and the dataset has a field for each:
    `from_arrays(images, {"digit": digits, "age": ages})`. The loss is the weighted sum of the
    losses. Metrics begin with the name of their head, e.g. `digit_accuracy`.

    Args:
        tasks: with one prediction for an image: `Classification`, `MultiLabel`, `ScalarRegression`,
            or tasks of your own like these.
        weights: of the losses; 1 by default.

    Raises:
        ConfigError: for a task with masks or images, class weights, or a loss over the batch.
    """
    for name, task in tasks.items():
        problem = "has predictions for pixels" if task.kind != "classification" else ""
        problem = problem or ("has a loss over the batch" if task.over_batch else "")
        if not getattr(task, "mean", True):
            problem = "needs the mean and std of its training data, e.g. mean=[40.0], std=[12.5]"
        if getattr(task, "class_weights", ()):
            problem = "has class weights, which divide a loss by their sum"
        if problem:
            raise ConfigError("task", task.name, f"is the head {name}, and {problem}")
    given = dict(weights or {})
    if unknown := given.keys() - tasks.keys():
        raise ConfigError("weights", weights, f"there is no head {', '.join(sorted(unknown))}")
    if not tasks or not all(is_finite(weight) and weight >= 0 for weight in given.values()):
        raise ConfigError("weights", weights, "needs a head, and weights of at least 0")
    return Heads(
        sum(task.num_classes for task in tasks.values()),
        tuple(f"{name}.{each}" for name, task in tasks.items() for each in task.class_names),
        tuple(tasks.items()),
        tuple(float(given.get(name, 1)) for name in tasks),
    )


@dataclasses.dataclass(frozen=True)
class Heads(Task):
    """Several tasks of one model; `heads` makes it.

    Attributes:
        tasks: names and tasks.
        weights: of their losses.
    """

    tasks: tuple[tuple[str, Task], ...] = ()
    weights: tuple[float, ...] = ()
    name = target = "heads"
    free_outputs = True

    def _each(self, outputs: Any, batch: Batch) -> Iterator[tuple[str, Task, Any, Batch]]:
        """Yields each head, its task, its outputs, and the batch as its task expects it."""
        for name, task in self.tasks:
            field = task.target or FIELDS[task.kind]
            yield name, task, outputs[name], {**batch, field: batch[name]}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        losses = (task.losses(*given) for _, task, *given in self._each(outputs, batch))
        weighted = (weight * each for weight, each in zip(self.weights, losses, strict=True))
        return functools.reduce(jnp.add, weighted)

    def sums(self, outputs: Any, batch: Batch, *, training: bool) -> dict[str, Array]:
        sums = {"loss": batch["weights"] @ self.losses(outputs, batch)}
        for name, task, *given in self._each(outputs, batch):
            of_task = task.sums(*given, training=training)
            sums |= {f"{name}/{part}": value for part, value in of_task.items()}
        return sums | {"examples": jnp.sum(batch["weights"])}

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Returns `loss`, and the metrics of each head after its name."""
        metrics = {"loss": float(sums["loss"] / max(float(sums["examples"]), 1.0))}
        for name, task in self.tasks:
            of_task = {part: sums[key] for key in sums for part in _after(key, f"{name}/")}
            metrics |= {f"{name}_{each}": value for each, value in task.metrics(of_task).items()}
        return metrics

    def calibrated(self, metrics: Mapping[str, float]) -> "Heads":
        chosen = tuple(
            (
                name,
                task.calibrated(
                    {part: metrics[key] for key in metrics for part in _after(key, f"{name}_")}
                ),
            )
            for name, task in self.tasks
        )
        return self if chosen == self.tasks else dataclasses.replace(self, tasks=chosen)

    def probabilities(self, outputs: Any) -> Array:
        """Returns the values of all heads, one after another."""
        values = (task.probabilities(outputs[name]) for name, task in self.tasks)
        return jnp.concatenate([*values], -1)

    def _parts(self, prediction: np.ndarray) -> list[np.ndarray]:
        ends = itertools.accumulate(task.num_classes for _, task in self.tasks)
        return np.split(prediction, [*ends][:-1])

    def columns(self) -> list[str]:
        return [f"{name}.{each}" for name, task in self.tasks for each in task.columns()]

    def cells(self, prediction: np.ndarray) -> list[str]:
        parts = zip(self.tasks, self._parts(prediction), strict=True)
        return [cell for (_, task), part in parts for cell in task.cells(part)]

    def row(self, prediction: np.ndarray, top_k: int) -> dict[str, Any]:
        parts = zip(self.tasks, self._parts(prediction), strict=True)
        return {"heads": {name: task.row(part, top_k) for (name, task), part in parts}}

    def compare(self, prediction: np.ndarray, example: Mapping[str, Any]) -> tuple[float, str]:
        parts, errors, texts = self._parts(prediction), list[float](), list[str]()
        for part, weight, (name, task) in zip(parts, self.weights, self.tasks, strict=True):
            field = task.target or FIELDS[task.kind]
            error, text = task.compare(part, {**example, field: example[name]})
            errors.append(weight * error)
            texts.append(f"{name}: {text}")
        return sum(errors), "\n".join(texts)


def _after(text: str, prefix: str) -> list[str]:
    """Returns what follows the prefix, if a text begins with it."""
    return [text[len(prefix) :]] if text.startswith(prefix) else []
