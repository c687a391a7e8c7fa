"""Finds the weight of each class in the loss: as given, or so that the classes of the training set
are balanced.
"""

from collections.abc import Sequence

import numpy as np

from jaxdp.config import TrainConfig
from jaxdp.data.dataset import IGNORE_LABEL, VECTOR_FIELDS, Dataset
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError, flag

_MOST_NAMES = 10  # in an error
_READ_AT_ONCE = 64  # masks


def of_classes(config: TrainConfig, dataset: Dataset) -> tuple[float, ...]:
    """Returns a weight for each class, as `--class-weights` asks; nothing if it is not given.

    Raises:
        ConfigError: for data without classes, weights that are not one per class, a class that does
            not occur in the training set.
    """
    asked, classes = config.class_weights, dataset.num_classes
    if asked is None:
        return ()
    remedy = ""
    if dataset.instances:
        remedy = f"is for classes, and with {flag('instances')} there are none; leave it out"
    elif dataset.kind == "regression" or dataset.task in VECTOR_FIELDS:
        remedy = f"is for classification and segmentation, not for {dataset.task}; leave it out"
    elif asked.values is not None and len(asked.values) != classes:
        names = ", ".join(dataset.class_names) if len(dataset.class_names) <= _MOST_NAMES else ""
        remedy = f"must be {classes} numbers, one for each class" + f": {names}" * bool(names)
    if remedy:
        raise ConfigError("class_weights", asked, remedy)
    if asked.values is not None:
        return asked.values
    ignored = int(config.task_kwargs.get("ignore_label", IGNORE_LABEL))
    counts = count(dataset, ignored)
    names = dataset.describe().class_names
    if ignored < classes:  # a class that does not count needs no weight
        weights = balanced_weights(np.delete(counts, ignored), np.delete(names, ignored).tolist())
        return (*weights[:ignored], 0.0, *weights[ignored:])
    return balanced_weights(counts, names)


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
        missing = f"class {names[int(np.argmin(counts))]} does not occur in the training set"
        remedy = f"{missing}; give a weight for each class"
        raise ConfigError("class_weights", "balanced", remedy)
    return tuple((counts.sum() / (len(counts) * counts)).tolist())
