"""Counts how often each class occurs in a training set, and weighs classes by that."""

from collections.abc import Sequence

import numpy as np

from jaxdp.data import splits
from jaxdp.data.checking import CheckedSource
from jaxdp.data.dataset import IGNORE_LABEL, Dataset
from jaxdp.registry import ConfigError

_READ_AT_ONCE = 64  # masks


def labels(dataset: Dataset) -> np.ndarray:
    """Returns the label of each training example, int64 (N,); -1 for one that cannot be read."""
    source = dataset.train
    return splits.labels(source.unchecked if isinstance(source, CheckedSource) else source)


def count(dataset: Dataset, ignore_label: int = IGNORE_LABEL) -> np.ndarray:
    """Returns how many training examples, or pixels of their masks, each class has, int64
    (classes,).

    Args:
        dataset: of labels or masks; the latter are all read once.
        ignore_label: pixels of this value do not count.
    """
    classes = dataset.num_classes
    if "masks" not in dataset.fields():
        found = labels(dataset)
        return np.bincount(found[found >= 0], minlength=classes)[:classes]
    source, counts = dataset.train, np.zeros(classes, np.int64)
    assert isinstance(source, CheckedSource)
    for start in range(0, len(source), _READ_AT_ONCE):
        batch = source.read(range(start, min(start + _READ_AT_ONCE, len(source))))
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
