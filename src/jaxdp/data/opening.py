"""Completes a dataset that a source has found. Chooses its splits, determines the size of images,
measures unknown facts, and checks declared facts.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data.dataset import Dataset, Description, kind_of
from jaxdp.data.measure import check_masks, count_classes, measure_pixels, measure_values
from jaxdp.data.request import Request
from jaxdp.data.resize import Resize, default_of_photos, plan_resize
from jaxdp.data.split import Split
from jaxdp.data.split_selection import choose_splits
from jaxdp.errors import ConfigError
from jaxdp.text.console import say
from jaxdp.text.messages import composed, some

_NARROWEST = 1e-30  # range of pixels, with an inverse, times 255, that is finite in float32


def complete(dataset: Dataset, request: Request) -> Dataset:
    """Returns a dataset of `Split`s with all facts that a run requires.

    Raises:
        ConfigError: for settings that do not fit the data, and for data that cannot be trained on.
        BadExample: for an example that cannot be read, unless bad examples are left out.
    """
    request.choose(dataset.task)
    parts = choose_splits(dataset, request)
    first = next(iter(parts))  # "train", except for evaluation data
    source, indices = parts[first]
    drawn_from, drawn = parts.get("validation", (None, indices))
    if drawn_from is source:  # validation data also have classes
        indices = np.union1d(indices, drawn)
    dataset = count_classes(dataset, source, indices, request)
    if request.known is None:
        dataset = measure_values(dataset, source, parts[first][1])
        dataset = _with_class_names(dataset, request)
        for split, (other, of) in parts.items() if dataset.mask_values else ():
            if split != "train":
                check_masks(split, other, of, dataset, request)
    resize, dataset = plan_resize(dataset, source.sizes, request.config)
    if request.config.augment is not None:
        dataset = dataclasses.replace(dataset, augment=request.config.augment)

    def create(resize: Resize | None) -> dict[str, Split]:
        return {
            split: Split(
                source,
                dataset,
                where=f"{dataset.name} {split}",
                skip=request.skip,
                indices=of,
                resize=resize,
            )
            for split, (source, of) in parts.items()
        }

    padded = resize is not None and resize.kind == "pad"
    dataset = measure_pixels(dataset, create(None if padded else resize), resize, request)
    _check_promises(dataset, request)
    return _of_splits(dataset, create(resize))


def _of_splits(dataset: Dataset, splits: Mapping[str, Any]) -> Dataset:
    every = {"train": None, "validation": None, "test": None} | dict(splits)
    return dataclasses.replace(dataset, **every, kind=dataset.answer, whole=False)


def check_dataset(
    dataset: Dataset,
    config: DataConfig,
    kind_of: Callable[[str], str] = kind_of,
    tasks: Sequence[str] = (),
) -> Dataset:
    """Returns the dataset with images of the size that `config` specifies and a `Split` for each
    source.

    A split stays the same object unless its examples change. Bad examples that it skips stay
    skipped.

    Args:
        kind_of: returns the built-in task that your own task resembles.
        tasks: the accepted tasks; empty for any task.

    Raises:
        ConfigError: for a task for which the dataset has no targets, or a split without examples.
    """
    name = dataset.name or config.dataset or ""
    request = Request(config.replace(dataset=name), tasks=tuple(tasks))
    _check_promises(dataset, request)
    request.choose(dataset.task)
    dataset = dataclasses.replace(dataset, kind=kind_of(dataset.task), name=name)
    splits = _splits_of(dataset)
    resize, before = Resize.of(config, dataset.kind), next(iter(splits.values())).resize
    fits = before is None and resize is not None and resize.keeps(dataset.image_shape[:2])
    is_resized = resize is not None and resize != before and not fits
    if is_resized:
        splits = {split: each.revised(dataset, resize=resize) for split, each in splits.items()}
        if dataset.measured:
            dataset = dataclasses.replace(dataset, mean=(), std=(), pixel_range=None)
        if "image_size" in dataset.defaults:  # the defaults are for the previous size
            given = dataset.settings.augment if dataset.settings is not None else None
            others = {name: each for name, each in dataset.defaults.items() if name != "image_size"}
            if given is None and resize is not None and "image_size" in config.filled:  # by weights
                given = default_of_photos(resize, config)
            dataset = dataclasses.replace(dataset, augment=given or (), defaults=others)
    if dataset.train is not None:
        dataset = measure_values(dataset, splits["train"].source, splits["train"].indices)
    if is_resized or not (dataset.mean and dataset.std):
        dataset = measure_pixels(dataset, splits, resize if is_resized else None, request)
    revised = {split: each.revised(dataset, skip=request.skip) for split, each in splits.items()}
    return _of_splits(dataset, revised)


def _check_promises(dataset: Dataset, request: Request) -> None:
    if dataset.dtype != "uint8" and dataset.pixel_range is None:
        raise ConfigError(
            "",
            dataset.dtype,
            f"{request.config.dataset}: a dataset of {dataset.dtype} needs a pixel_range, which"
            " becomes 0 to 255",
        )
    low, high = dataset.pixel_range or (0.0, 255.0)
    if not _NARROWEST <= high - low <= 1 / _NARROWEST:
        raise request.error(
            f"its pixels are {low:g} to {high:g}, which float32 cannot normalize; scale them, e.g."
            " to 0 to 1"
        )
    for each in dataset.std:
        if not 0 < each < math.inf:
            raise request.error(f"its std is {each}; it must be a positive number for each channel")
    request.check_not_empty(dataset.splits())


def _splits_of(dataset: Dataset) -> dict[str, Split]:
    return {
        split: source
        if isinstance(source, Split)
        else Split(source, dataset, where=f"{dataset.name} {split}")
        for split, source in dataset.splits().items()
    }


def _with_class_names(dataset: Dataset, request: Request) -> Dataset:
    """Returns the dataset with the names of `--class-names`.

    Raises:
        ConfigError: for a wrong number of names, equal or empty names, and a dataset without
            classes or with other names for them.
    """
    names, name = request.config.class_names, request.config.dataset
    found, remedy = dataset.class_names, ""
    if names is None and found:
        if len(found) < dataset.num_classes and request.config.num_classes is None:
            raise request.error(
                f"has {dataset.num_classes} classes, but names for {len(found)}: {some(found)};"
                " give a name to each"
            )
        # More names than this are refused.
        more = [f"class {number}" for number in range(len(found), dataset.num_classes)]
        names = (*found, *(f"{each} (unnamed)" if each in found else each for each in more))
    if names is None or (names == found and len(found) == dataset.num_classes):
        return dataset
    if found and names[: len(found)] != found:
        known = some(found)
        remedy = f"the classes of {name} have names already ({known}); leave it out"
    elif dataset.answer == "regression":
        remedy = f"{name} has no classes, but targets for {dataset.task}; leave it out"
    elif len(names) != dataset.num_classes:
        remedy = (
            f"has {len(names)} names for the {dataset.num_classes} classes of {name}; give one for"
            " each, in their order"
        )
    elif len(set(names)) < len(names) or not all(names):
        remedy = "must be names that differ and are not empty"
    if remedy:
        raise ConfigError("class_names", ",".join(names), remedy)
    return dataclasses.replace(dataset, class_names=names)


def with_classes(dataset: Dataset, known: Description) -> Dataset:
    """Returns a dataset of labels or masks with the class numbers of a model, matched by name.

    Prints how classes match, if their numbers differ.

    Args:
        known: what the model knows about its own dataset.

    Raises:
        ConfigError: for a class that the model does not know.
    """
    if dataset.instances and known.instances:  # version 0.3 named the outputs otherwise
        dataset = dataclasses.replace(dataset, class_names=known.class_names)
    theirs, ours, name = dataset.class_names, known.names, dataset.name
    counted = tuple(map(str, range(known.num_classes)))
    if dataset.task == "scalar_regression" and dataset.num_classes != known.num_classes:
        remedy = f"has {dataset.num_classes} numbers, and the model {known.num_classes}"
        raise ConfigError("dataset", name, remedy)
    # Numbers name the classes of a model without class names.
    by_name = bool(theirs) and bool(ours or {*theirs} & {*counted})
    classes = dataset.num_classes
    table = np.arange(classes)
    if by_name:
        places = {composed(each): place for place, each in enumerate(ours or counted)}
        if unknown := [each for each in theirs if composed(each) not in places]:
            held = f"has classes that the model does not know: {', '.join(unknown)}"
            raise ConfigError("dataset", name, f"{held}; it knows {', '.join(ours or counted)}")
        table = np.array([places[composed(each)] for each in theirs])
        if theirs != (ours or counted):
            say(f"note: {name}: its classes are the model's by name: {some(theirs)}")
    elif classes > known.num_classes:
        remedy = f"its num_classes is {classes}, and the model's {known.num_classes}"
        raise ConfigError("dataset", name, remedy)
    elif theirs or (ours != counted and any(map(str.isdecimal, ours))):
        pairs = zip(theirs or counted, ours or counted, strict=False)
        say(f"note: {name}: its classes are the model's by number: {some(map(' is '.join, pairs))}")
    relabelled = dataclasses.replace(
        dataset, num_classes=known.num_classes, class_names=known.names
    )
    same = np.array_equal(table, np.arange(classes))
    class_table = None if same else np.append(table, np.arange(classes, 256))
    splits = {
        split: dataclasses.replace(each, dataset=relabelled, class_table=class_table)
        for split, each in _splits_of(dataset).items()
    }
    return _of_splits(relabelled, splits)
