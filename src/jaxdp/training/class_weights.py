"""Finds the weight of each class in the loss: as given, or so that the classes of the training set
are balanced.
"""

from collections.abc import Sequence

import numpy as np

from jaxdp.config import ClassWeights, TrainConfig
from jaxdp.data.dataset import IGNORE_LABEL, Dataset
from jaxdp.data.split import Split
from jaxdp.registry import ConfigError

_MOST_NAMES = 10  # in an error
_READ_AT_ONCE = 64  # masks


def resolve(config: TrainConfig, dataset: Dataset) -> tuple[float, ...]:
    """Returns what `--class-weights` comes to: a weight for each class, or nothing where it is not
    given.

    For instance segmentation the classes are balanced, unless weights are given: the first term
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
    counts = count(dataset, int(config.task_kwargs.get("ignore_label", IGNORE_LABEL)))
    # Where no two objects touch, border does not occur, and its weight weighs nothing.
    if dataset.instances:
        counts = np.maximum(counts, 1)
    return balanced_weights(counts, dataset.describe().class_names)


def _check_loss(config: TrainConfig) -> None:
    loss = config.loss or config.task_kwargs.get("loss")
    if loss == "dice":
        remedy = (
            "has no border weights, which --instances trains with; use cross_entropy or"
            " cross_entropy+dice"
        )
        raise ConfigError("loss", loss, remedy)


def count(dataset: Dataset, ignore_label: int = IGNORE_LABEL) -> np.ndarray:
    """Returns how many training examples, or pixels of their masks, each class has, int64
    (classes,).

    Args:
        dataset: of labels or masks; the latter are all read once.
        ignore_label: pixels of this value do not count.
    """
    classes, split = dataset.num_classes, dataset.train
    assert isinstance(split, Split)
    if "masks" not in dataset.fields():
        labels = split.labels()
        return np.bincount(labels[labels >= 0], minlength=classes)[:classes]
    counts = np.zeros(classes, np.int64)
    for start in range(0, len(split), _READ_AT_ONCE):
        batch = split.read(range(start, min(start + _READ_AT_ONCE, len(split))))
        masks = batch["masks"][batch["weights"] > 0]
        counts += np.bincount(masks[masks != ignore_label], minlength=classes)[:classes]
    return counts


def balanced_weights(counts: np.ndarray, names: Sequence[str]) -> tuple[float, ...]:
    """Returns N / (K * count) for each of K classes, as scikit-learn's
    `compute_class_weight("balanced", ...)` does.

    Args:
        counts: of the examples or pixels of each class, N in all.
        names: of the classes.

    Raises:
        ConfigError: for a class without any.

    Source: scikit-learn, after King and Zeng 2001, Logistic Regression in Rare Events Data.
    """
    if not counts.all():
        remedy = (
            f"class {names[int(np.argmin(counts))]} does not occur in the training set; give a"
            " weight for each class"
        )
        raise ConfigError("class_weights", "balanced", remedy)
    return tuple((counts.sum() / (len(counts) * counts)).tolist())
