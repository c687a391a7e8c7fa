"""Finds the weight of each class in the loss: as given, or so that the classes of the training set are balanced."""

from jaxdp.config import TrainConfig
from jaxdp.data import class_counts
from jaxdp.data.dataset import IGNORE_LABEL, Dataset
from jaxdp.registry import ConfigError

_MOST_NAMES = 10  # that a line of an error has room for


def resolve(config: TrainConfig, dataset: Dataset) -> tuple[float, ...]:
    """Returns what `--class-weights` comes to: a weight for each class, or nothing where it is not given.

    Raises:
        ConfigError: for data without classes, weights that are not one per class, a class that does not occur in the training set,
            and `balanced` where the sampler balances the classes already.
    """
    asked = config.task.class_weights
    if asked is None:
        return ()
    if dataset.kind == "regression":
        raise ConfigError("class_weights", asked, "is for classification and segmentation; regression has no classes")
    if asked.values is None and config.learning.sampler == "balanced":
        raise ConfigError("class_weights", asked, "--sampler balanced draws all classes equally often already; use one of them")
    if asked.values is not None:
        if len(asked.values) != dataset.num_classes:
            names = f": {', '.join(dataset.class_names)}" if 0 < len(dataset.class_names) <= _MOST_NAMES else ""
            raise ConfigError("class_weights", asked, f"must be {dataset.num_classes} numbers, one for each class{names}")
        return asked.values
    counts = class_counts.count(dataset, int(config.task.kwargs.get("ignore_label", IGNORE_LABEL)))
    return class_counts.balanced_weights(counts, dataset.describe().class_names)
