"""Finds the weight of each class in the loss: as given, or so that the classes of the training set
are balanced.
"""

import numpy as np

from jaxdp.config import ClassWeights, TrainConfig
from jaxdp.data import class_counts
from jaxdp.data.dataset import IGNORE_LABEL, Dataset
from jaxdp.registry import ConfigError

_MOST_NAMES = 10  # that a line of an error has room for


def resolve(config: TrainConfig, dataset: Dataset) -> tuple[float, ...]:
    """Returns what `--class-weights` comes to: a weight for each class, or nothing where it is not
    given.

    Where objects are told apart the classes are balanced, unless weights are given: the first term
    of equation 2 of the U-Net paper.

    Raises:
        ConfigError: for data without classes, weights that are not one per class, a class that does
            not occur in the training set, and `balanced` where the sampler balances the classes
            already.
    """
    asked = config.class_weights
    if asked is None and not dataset.instances:
        return ()
    if dataset.instances:
        _check_loss(config)
        asked = asked or ClassWeights()
    assert asked is not None
    if dataset.kind == "regression":
        raise ConfigError(
            "class_weights",
            asked,
            "is for classification and segmentation; regression has no classes",
        )
    if asked.values is None and config.sampler == "balanced":
        raise ConfigError(
            "class_weights",
            asked,
            "--sampler balanced draws all classes equally often already; use one of them",
        )
    if asked.values is not None:
        if len(asked.values) != dataset.num_classes:
            names = (
                f": {', '.join(dataset.class_names)}"
                if 0 < len(dataset.class_names) <= _MOST_NAMES
                else ""
            )
            raise ConfigError(
                "class_weights",
                asked,
                f"must be {dataset.num_classes} numbers, one for each class{names}",
            )
        return asked.values
    counts = class_counts.count(dataset, int(config.task_kwargs.get("ignore_label", IGNORE_LABEL)))
    # Where no two objects touch, border does not occur, and its weight weighs nothing.
    if dataset.instances:
        counts = np.maximum(counts, 1)
    return class_counts.balanced_weights(counts, dataset.describe().class_names)


def _check_loss(config: TrainConfig) -> None:
    loss = config.loss or config.task_kwargs.get("loss")
    if loss == "dice":
        remedy = (
            "has no border weights, which --instances trains with; use cross_entropy or"
            " cross_entropy+dice"
        )
        raise ConfigError("loss", loss, remedy)
