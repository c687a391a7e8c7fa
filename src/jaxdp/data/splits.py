"""Chooses the examples that are held out of training, where a dataset does not come in splits."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxdp.data.dataset import ArraySource, BadExample, Dataset, Example, Source
from jaxdp.registry import ConfigError

Fail = Callable[[str], ConfigError]
_HELD_OUT = 10  # one in so many examples, of a set that comes without a test split
_STREAM = 1  # of random numbers; the order of training is drawn from (seed, epoch)


@dataclasses.dataclass(frozen=True)
class Relabelled:
    """A source of labels under other class numbers: `numbers[label]` in place of `label`."""

    source: Source
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        example = self.source[index]
        return example | {"labels": self.numbers[int(example["labels"])]}

    def name(self, index: int) -> str:
        """Returns what errors call an example."""
        return _name_of(self.source, index)


def _name_of(source: Source, index: int) -> str:
    name: Any = getattr(source, "name", None)
    return name(index) if name is not None else f"example {index}"


def stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns a mask of `count` examples: of each class its share, rounded by largest remainder,
    evenly spaced.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    shares = sizes * count / len(labels)
    quotas = np.floor(shares).astype(int)
    quotas[np.argsort(quotas - shares, kind="stable")[: count - quotas.sum()]] += 1
    mask = np.zeros(len(labels), bool)
    for label, quota, size in zip(classes, quotas, sizes, strict=True):
        positions = (np.arange(quota) + 0.5) * size / quota
        mask[np.flatnonzero(labels == label)[positions.astype(int)]] = True
    return mask


def held_out(labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns a mask of the test examples of a set that comes as one: a tenth of each class, evenly
    spaced over its examples.
    """
    return stratified(np.asarray(labels), max(round(len(labels) / _HELD_OUT), 1))


def random_share(
    labels: np.ndarray, share: float, seed: int, fail: Fail, unit: str = "example"
) -> np.ndarray:
    """Returns a mask of `share` of the examples of each class, rounded to the nearest whole number
    and drawn at random.

    Args:
        labels: integers (N,), none below 0; all the same for examples without classes.
        fail: makes an error of what is wrong.
        unit: what they are called in it.

    Raises:
        ConfigError: if one side is left without an example of a class.
    """
    mask = np.zeros(len(labels), bool)
    classes, sizes = np.unique(labels, return_counts=True)
    for label, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        count = int(share * size + 0.5)
        if not 0 < count < size:
            side = "training" if count else "validation"
            of_class = (
                f"class {label}, which has {size}"
                if len(classes) > 1
                else f"the {size} that there are"
            )
            raise fail(f"leaves no {side} {unit} of {of_class}")
        drawn = np.random.default_rng((seed, label, _STREAM)).permutation(size)[:count]
        mask[np.flatnonzero(labels == label)[drawn]] = True
    return mask


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some of the examples of a source.

    Attributes:
        numbers: of its examples.
    """

    source: Source
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Example:
        return self.source[int(self.numbers[index])]

    def __getitems__(self, indices: Sequence[int]) -> Iterable[Example]:
        numbers = [int(self.numbers[index]) for index in indices]
        several: Any = getattr(self.source, "__getitems__", None)
        return several(numbers) if several is not None else map(self.source.__getitem__, numbers)

    def name(self, index: int) -> str:
        """Returns what errors call an example."""
        return _name_of(self.source, int(self.numbers[index]))


def with_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Returns a dataset of labels with the class numbers of a model, where classes have names, not
    numbers alone.

    Args:
        names: of the model's classes.

    Raises:
        ConfigError: for a class that the model does not know.
    """
    theirs, ours = dataset.describe().class_names, tuple(names)
    if theirs == ours or any(each == tuple(map(str, range(len(each)))) for each in (theirs, ours)):
        return dataset
    unknown = [name for name in theirs if name not in ours]
    if unknown:
        remedy = (
            f"has classes that the model does not know: {', '.join(unknown)}; it knows"
            f" {', '.join(ours)}"
        )
        raise ConfigError("dataset", dataset.name, remedy)
    numbers = tuple(ours.index(name) for name in theirs)
    splits = {
        split: getattr(source, "unchecked", source) for split, source in dataset.splits().items()
    }
    relabelled: dict[str, Any] = {
        split: Relabelled(source, numbers) for split, source in splits.items()
    }
    return dataclasses.replace(dataset, **relabelled, num_classes=len(ours), class_names=ours)


def draw_validation(train: Source, task: str, share: float, seed: int) -> tuple[Subset, Subset]:
    """Returns what is left to train on, and `share` of the examples of each class, drawn at random.

    A source may tell by `groups` which examples belong together, and what to call them: of these
    all are drawn or none. Pages of a stack are such.

    Args:
        task: which the examples have targets for; classes count for classification alone.

    Raises:
        ConfigError: if one side is left without an example of a class, or a file of one.
    """
    found = labels(train) if task == "classification" else np.zeros(len(train), np.int64)
    groups, unit = getattr(train, "groups", (np.arange(len(train)), "file"))
    # What cannot be read stays in the training set, which reports it.
    known = np.flatnonzero(found >= 0)
    _, first, belongs = np.unique(groups[known], return_index=True, return_inverse=True)
    together = len(first) < len(known)

    def fail(problem: str) -> ConfigError:
        why = f" (pages of a {unit} are never divided: neighbours look alike)" if together else ""
        return ConfigError("validation", share, f"{problem}{why}; choose another share, or none")

    chosen = random_share(found[known][first], share, seed, fail, unit if together else "example")
    drawn = np.zeros(len(found), bool)
    drawn[known] = chosen[belongs]
    return Subset(train, np.flatnonzero(~drawn)), Subset(train, np.flatnonzero(drawn))


def labels(source: Source) -> np.ndarray:
    """Returns the label of each example, -1 for one that cannot be read."""
    if isinstance(source, Subset):
        return labels(source.source)[source.numbers]
    # Others may know them without reading images.
    known: Any = (
        source.targets if isinstance(source, ArraySource) else getattr(source, "labels", None)
    )
    if known is not None:
        return np.asarray(known() if callable(known) else known, np.int64)

    def label(index: int) -> int:
        try:
            return int(source[index]["labels"])
        except BadExample:
            return -1

    return np.array([label(index) for index in range(len(source))], np.int64)
