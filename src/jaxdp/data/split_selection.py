"""Chooses the splits of a dataset: its own splits, a tenth held out for tests, and a share drawn
for validation.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxdp.data.dataset import Dataset
from jaxdp.data.find_images import USUAL
from jaxdp.data.request import NOT_GIVEN, Request
from jaxdp.data.source import BaseSource, as_source
from jaxdp.errors import ConfigError, flag
from jaxdp.text.console import say

_HELD_OUT = 10  # one in this many examples, for a dataset without a test split
_SECTIONS = 10  # of consecutive pages, if one file holds all
_STREAM = 1  # stream of random numbers; the order of training is drawn from (seed, epoch)
# A source, and the indices of its examples in a split.
Part = tuple[BaseSource, np.ndarray]


def usual_names(usual: Sequence[str], available: Collection[str]) -> list[str]:
    """Returns the available names that are usual names, without regard to case, the most usual
    first.
    """
    ordered = sorted(available, reverse=True)  # lower case first
    return [name for each in usual for name in ordered if name.lower() == each]


def name_splits(request: Request, available: Collection[str]) -> dict[str, str]:
    """Returns the available splits for training, validation and tests. These are the splits that
    the settings name, which are not checked, or else splits with usual names; none if there are no
    such splits.

    Prints how names are read, if this is not obvious.

    Raises:
        ConfigError: if there are no training or no evaluation data.
    """
    named, chosen = request.named_splits, dict[str, str]()
    said = list[str]()
    for split, name in named.items():
        # Training data may also be named as test data. No other split is used twice.
        taken = () if split == "train" else named.values()
        usual = [
            each for each in usual_names(USUAL["splits"][split], available) if each not in taken
        ]
        if name or (usual and not (split == "validation" and request.config.validation == "none")):
            chosen[split] = name or usual[0]
            if chosen[split] not in (split, "val", name):
                said.append(f"{usual[0]} is read as {split}")
        said += [f"{each} is not read" for each in usual[1:]]
    lacks, splits = f"{request.config.dataset} has no", ", ".join(available) or "none"
    if request.known is not None:
        pass  # any split will do
    elif chosen and "train" not in chosen:
        remedy = f"training data (its splits: {splits}); add or name one or put classes in train/"
        raise ConfigError("train_split", NOT_GIVEN, f"{lacks} {remedy}")
    elif chosen.keys() == {"train"} and request.validation_share is None:
        ways = f"add or name a split, or give {flag('validation', 0.1)}"
        remedy = f"{lacks} test data (its splits: {splits}); {ways}"
        raise ConfigError("test_split", NOT_GIVEN, remedy)
    if said:
        say(f"note: {request.config.dataset}: {', '.join(said)}")
    return chosen


def name_file_splits(request: Request, available: Collection[str]) -> dict[str, str]:
    """Returns the splits of a file or a prepared dataset, by `name_splits`: at least training data,
    and no validation data if a share of the training data replaces them.
    """
    chosen = name_splits(request, available) or {"train": "train"}
    if request.validation_share is not None:
        chosen.pop("validation", None)
    return chosen


def choose_splits(dataset: Dataset, request: Request) -> dict[str, Part]:
    """Returns the examples of each used split.

    Raises:
        ConfigError: for a split that does not exist or has no examples, or if no examples are left
            for evaluation.
    """
    wanted, share = request.config.validation, request.validation_share
    name, splits = dataset.name, dataset.splits()
    request.check_not_empty(splits)
    parts: dict[str, Part] = {
        split: (as_source(source), np.arange(len(source))) for split, source in splits.items()
    }
    if request.known is not None:
        return parts
    if dataset.whole:
        source, indices = parts["train"]
        is_test = _held_out(source, dataset.task, request)
        parts["train"], parts["test"] = (source, indices[~is_test]), (source, indices[is_test])
    problem = ""
    if wanted == "none":
        parts.pop("validation", None)
        if "test" not in parts:
            problem = f"{name} has no test data, so that nothing is left to evaluate"
    elif share is not None and "validation" in parts:
        problem = f"{name} has validation data of its own; leave the share out"
    elif share is not None:
        parts["train"], parts["validation"] = _drawn(parts["train"], dataset, share, request)
    elif wanted is not None and "validation" not in parts:
        problem = f"{name} has no such split; give a share, e.g. 0.1, or none"
    if problem:
        raise ConfigError("validation", wanted, problem)
    return parts


def stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns a mask of `count` examples, evenly spaced, with the share of each class rounded by
    largest remainder.
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


def _held_out(source: BaseSource, task: str, request: Request) -> np.ndarray:
    """Returns a mask of the test examples: a tenth of the files of each class, evenly spaced, or
    the last tenth of the pages of a single file. Pages of one file are similar, and stay together.

    Raises:
        ConfigError: for a single example, or a class without another file.
    """
    if len(source) == 1:
        raise request.error("holds one image only, and needs another as test data; add others")
    groups = source.groups()
    files = _numbered(groups, len(source))
    _, first = np.unique(files, return_index=True)
    if len(first) == 1:
        return np.arange(len(source)) >= len(source) - max(len(source) // _HELD_OUT, 1)
    labels = _labels(source, task)[first]
    is_test = stratified(labels, max(round(len(labels) / _HELD_OUT), 1))
    lost = ~np.isin(labels, labels[~is_test])
    if groups is not None and lost.any():
        name = groups[int(first[np.argmax(lost)])]
        remedy = (
            "the only file of its class; add others, or divide them by folders train/ and test/"
        )
        raise request.error(f"{name} would be held out as test data, {remedy}")
    return is_test[files]


def _drawn(part: Part, dataset: Dataset, share: float, request: Request) -> tuple[Part, Part]:
    """Returns the remaining training examples, and `share` of the examples of each class, drawn at
    random. The pages of a file stay together.

    Raises:
        ConfigError: if one side has no example of a class, or no file of a class.
    """
    source, indices = part
    labels, groups = _labels(source, dataset.task)[indices], source.groups()
    files, unit = _numbered(groups, len(source))[indices], "file"
    if groups is not None and len(np.unique(files)) == 1:
        files, unit = np.arange(len(indices)) * _SECTIONS // len(indices), "section"
    # An example that cannot be read stays in the training set, which reports it.
    known = np.flatnonzero(labels >= 0)
    _, first, belongs = np.unique(files[known], return_index=True, return_inverse=True)
    unit = unit if len(first) < len(known) else "example"
    names = request.config.class_names or dataset.class_names
    picked = random_share(labels[known][first], share, request.config.seed, unit, names)
    is_drawn = np.zeros(len(indices), bool)
    is_drawn[known] = picked[belongs]
    return (source, indices[~is_drawn]), (source, indices[is_drawn])


def random_share(
    labels: np.ndarray, share: float, seed: int, unit: str, names: Sequence[str] = ()
) -> np.ndarray:
    """Returns a mask of `share` of the examples of each class, rounded to the nearest whole number
    and drawn at random.

    Args:
        labels: integers (N,), at least 0; all equal for examples without classes.
        unit: the word for an example in errors. The pages of a file or section are similar, and
            stay together.

        names: of the classes, if they have any.

    Raises:
        ConfigError: if one side has no example of a class.
    """
    mask = np.zeros(len(labels), bool)
    classes, sizes = np.unique(labels, return_counts=True)
    for label, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        count = int(share * size + 0.5)
        if not 0 < count < size:
            side = "training" if count else "validation"
            several = len(classes) > 1
            name = names[label] if label < len(names) else label
            which = f"class {name}, which has {size}" if several else f"the {size} that there are"
            remedy = f"leaves no {side} {unit} of {which}; choose another share, or none"
            raise ConfigError("validation", share, remedy)
        drawn = np.random.default_rng((seed, label, _STREAM)).permutation(size)[:count]
        mask[np.flatnonzero(labels == label)[drawn]] = True
    return mask


def _labels(source: BaseSource, task: str) -> np.ndarray:
    """Returns the label of each example, with -1 for an unreadable example, or zeros without
    classes.
    """
    if task != "classification":
        return np.zeros(len(source), np.int64)
    return np.asarray(source.labels(), np.int64)


def _numbered(groups: Sequence[Any] | None, count: int) -> np.ndarray:
    """Returns the number of the group of each example, in the order of their first examples."""
    numbers: dict[Any, int] = {}
    members = range(count) if groups is None else groups
    return np.array([numbers.setdefault(group, len(numbers)) for group in members], np.int64)
