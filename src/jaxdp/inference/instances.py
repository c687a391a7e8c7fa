"""Counts the instances that a model finds in a split."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from jaxdp.data.instances import real_size
from jaxdp.data.sources import Split
from jaxdp.errors import ConfigError
from jaxdp.inference.predictor import Predictor
from jaxdp.step import metrics
from jaxdp.step.metrics import Sums
from jaxdp.tasks import InstanceSegmentation, instances


def require() -> None:
    """Raises ConfigError unless scikit-image, which has the watershed, is installed."""
    if importlib.util.find_spec("skimage") is None:
        raise ConfigError("instances", "", "needs scikit-image: pip install '.[instances]'")


def count(predictor: Predictor, source: Split, *tasks: Any) -> Iterator[list[Sums]]:
    """Yields, for each example of a split, the counts of the objects that each task finds.

    An example that is left out is passed over.

    Args:
        predictor: of a model for instance segmentation.
        tasks: which label predictions; by default the task of the predictor, whose labels equal its
            predictions for files.
    """
    for index in range(len(source)):
        # In several processes, another process may have found the errors.
        example: Any = source[index]
        if example["weights"]:
            height, width = real_size(example["masks"])
            [(_, prediction)] = predictor([example["images"][:height, :width]])
            actual = example["masks"][:height, :width]
            yield [
                instances.sums(actual, task.label(prediction)) for task in tasks or [predictor.task]
            ]


def choose(
    predictor: Predictor, source: Split, task: Any, example_done: Callable[[], None] = lambda: None
) -> Any:
    """Returns the task with the settings that find the objects of a split best, by average
    precision, one after the other; of equal ones the first.

    Args:
        example_done: is called after each example.
    """
    for name in ("splitting", "smallest_area") if isinstance(task, InstanceSegmentation) else ():
        choices = task.choices(name)
        if len(choices) > 1:
            counts = list[list[Sums]]()
            for each in count(predictor, source, *choices):
                counts.append(each)
                example_done()
            scores = [instances.metrics(metrics.add(*each)) for each in zip(*counts, strict=True)]
            precisions = [each.get("average_precision", 0.0) for each in scores]
            task = choices[precisions.index(max(precisions))]
    return task
