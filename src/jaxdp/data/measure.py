"""Measures what training must know of a dataset and its source does not say: classes, size, mean,
standard deviation and range.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from jaxdp.config.values import MOST_CLASSES
from jaxdp.data.dataset import BadExample, BaseSource, Dataset, Size, commonest
from jaxdp.data.instances import CLASS_NAMES
from jaxdp.data.masks import ClassFinder, UniqueMaskValues
from jaxdp.data.pixel_statistics import PixelStatistics
from jaxdp.data.request import Request
from jaxdp.data.split import NOT_FINITE, Split
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

_SAMPLE = 512  # examples that mean and standard deviation are taken over
_SMALL_SAMPLE = 16  # enough to see that a split cannot be read at all
_RANGE_PIXELS = 2**22  # drawn for the percentile range, over all examples of the sample
_NOT_GIVEN = "(not given)"

T = TypeVar("T")


def evenly(length: int, count: int) -> list[int]:
    """Returns at most `count` of `length` numbers, evenly spaced."""
    count = min(length, count)
    return [position * length // count for position in range(count)]


def look_through(
    look: Callable[[int], T], indices: Iterable[int], split: str, request: Request
) -> Iterator[T]:
    """Yields what `look` returns for each index, in order. Threads look: decoding releases the GIL.

    Raises:
        BadExample: for the first bad example, unless bad examples are left out.
        ConfigError: if all are bad.
    """

    def guarded(index: int) -> T | BadExample:
        try:
            return look(index)
        except BadExample as error:
            return error

    problems: list[BadExample] = []
    usable = 0
    pool = concurrent.futures.ThreadPoolExecutor(min(8, platform.cores()))
    try:
        for result in pool.map(guarded, indices):
            if not isinstance(result, BadExample):
                usable += 1
                yield result
            elif request.skip:
                problems.append(result)
            else:
                raise result
    finally:
        pool.shutdown(cancel_futures=True)  # an error does not wait for the other examples
    if problems and not usable:
        most = f"{commonest(problems)} (most often of its {split} examples)"
        raise request.error(f"nothing of it can be used; {most}")


def count_classes(
    dataset: Dataset, source: BaseSource, indices: np.ndarray, request: Request
) -> tuple[Dataset, np.ndarray | None]:
    """Returns the dataset with its number of classes, and the class of each stored value of a mask,
    or None if the values are the classes.

    Args:
        source, indices: examples to train on, before validation data are drawn from them.

    Raises:
        ConfigError: for settings that do not fit, and masks without clear classes.
        BadExample: for a mask that cannot be read, unless bad examples are left out.
    """
    config = request.config
    task = dataset.kind or dataset.task
    table = None
    values, name = config.mask_values, dataset.name
    if values is not None and task != "segmentation":
        raise ConfigError(
            "mask_values", str(values), f"is for segmentation, not for {task}; leave it out"
        )
    if config.instances and not dataset.instances:
        of = f"masks of object numbers; {name} is for {dataset.task} and has none"
        raise ConfigError(
            "instances", "", f"takes {of}; choose another --dataset or --model, or leave it out"
        )
    unknown, classes = not dataset.num_classes, dataset.num_classes
    if dataset.instances and unknown:
        _check_instances(source, indices, request)
        dataset = dataclasses.replace(dataset, class_names=CLASS_NAMES)
        classes = len(CLASS_NAMES)
    elif task == "segmentation" and (values is not None or unknown):
        finder = ClassFinder(request, dataset.class_names)
        chosen = evenly(len(indices), _SAMPLE) if finder.is_declared else range(len(indices))

        def look(position: int) -> UniqueMaskValues:
            return UniqueMaskValues.of(*source.stored_mask(int(indices[position])))

        for content in look_through(look, chosen, "train", request):
            finder.add(content)
        classes, table = finder.classes()
    if dataset.task in ("classification", "segmentation"):
        classes = _checked_classes(classes, request)
    elif task == "regression" and config.num_classes not in (None, classes):
        remedy = f"the targets of {name} have {classes} channels; leave it out"
        raise ConfigError("num_classes", config.num_classes, remedy)
    names = dataset.class_names if len(dataset.class_names) == classes else ()
    return dataclasses.replace(dataset, num_classes=classes, class_names=names), table


def _checked_classes(count: int, request: Request) -> int:
    """Returns what `--num-classes` says, or how many classes there are."""
    given, name = request.config.num_classes, request.config.dataset
    if given is not None and given < count:
        raise ConfigError(
            "num_classes", given, f"{name} has {count}; give at least that, or leave it out"
        )
    if count > MOST_CLASSES:
        remedy = (
            f"its highest class number is {count - 1}; number the classes from 0 on, {MOST_CLASSES}"
            " at most"
        )
        raise request.error(remedy)
    if given is None and count == 1:
        raise request.error("has one class only; there is nothing to tell apart")
    return given or count


def _check_instances(source: BaseSource, indices: np.ndarray, request: Request) -> None:
    """Raises ConfigError unless one of some masks has several instance labels."""

    def look(position: int) -> np.ndarray:
        mask, _ = source.stored_mask(int(indices[position]))
        return np.unique(mask[mask > 0])

    held = "hold no object"
    sample = evenly(len(indices), _SAMPLE)
    for labels in look_through(look, sample, "train", request):
        if len(labels) > 1:
            return
        held = "hold one number each beside 0" if len(labels) else held
    remedy = (
        f"the training masks of {request.config.dataset} {held}; give each object of a mask a"
        " number of its own, e.g. by skimage.measure.label"
    )
    raise ConfigError("instances", "", f"{remedy}, or leave --instances out")


def measure_pixels(dataset: Dataset, splits: Mapping[str, Split], request: Request) -> Dataset:
    """Returns the dataset with the size and the statistics of its images, before they are padded,
    as far as they are not known.

    Raises:
        ConfigError: for images of several sizes that nothing makes one, or a split without a
            readable example.
        BadExample: for an image that cannot be read, unless bad examples are left out.
    """
    resize = splits["train"].resize
    padded = resize is not None and resize.kind == "pad"
    size = resize.size if resize is not None else dataset.image_shape[:2]
    if not dataset.mean or not all(size):
        plain = splits
        if padded:
            plain = {name: split.revised(dataset, resize=None) for name, split in splits.items()}
        sample = _sample("train", plain["train"], dataset, request, several_sizes=padded)
        for name, split in plain.items() if request.skip else ():
            if name != "train" and len(split):
                _sample(name, split, dataset, request, several_sizes=padded)
        size = size if all(size) else (sample.shape[0], sample.shape[1])
        if not dataset.mean:
            pixel_range = sample.pixel_range() if dataset.dtype != "uint8" else None
            mean, std = sample.moments(pixel_range)
            dataset = dataclasses.replace(
                dataset, mean=mean, std=std, pixel_range=pixel_range, measured=True
            )
    shape = (*size, dataset.image_shape[2] or len(dataset.mean))
    return dataclasses.replace(dataset, image_shape=shape, padded=padded)


def _sample(
    name: str, split: Split, dataset: Dataset, request: Request, *, several_sizes: bool
) -> PixelStatistics:
    """Returns the sums over evenly spaced examples of a split."""
    indices = evenly(len(split), _SAMPLE if name == "train" else _SMALL_SAMPLE)
    drawn = -(-_RANGE_PIXELS // max(len(indices), 1)) if dataset.dtype != "uint8" else 0
    whole: PixelStatistics | None = None
    sizes: dict[Size, str] = {}

    def look(index: int) -> tuple[int, PixelStatistics]:
        image = split.unchecked(index)["images"]
        if image.dtype.kind == "f" and not np.isfinite(image).all():
            raise BadExample(split.name(index), NOT_FINITE)
        sums = PixelStatistics.of(image)
        if drawn:
            sums.draw(image, drawn, index)
        return index, sums

    for index, part in look_through(look, indices, name, request):
        if whole is not None and part.shape[-1] != whole.shape[-1]:
            if request.skip:
                continue
            wanted = (*part.shape[:2], whole.shape[-1])
            problem = f"its images have the shape {part.shape}, not {wanted}"
            raise BadExample(split.name(index), problem)
        sizes.setdefault((part.shape[0], part.shape[1]), split.name(index))
        if whole is None:
            whole = part
        else:
            whole.add(part)
    assert whole is not None
    if not several_sizes:
        check_sizes(request, sizes)
    return whole


def check_sizes(request: Request, sizes: Mapping[Size, str]) -> None:
    """Checks that all images have one size, or that the settings resize them.

    Args:
        sizes: of the images that were looked at, each with the name of an image that has it.

    Raises:
        ConfigError: if there are several and `--image-size` does not make them one.
    """
    if len(sizes) < 2 or request.config.image_size:
        return
    (first, first_name), (second, second_name) = list(sizes.items())[:2]
    side = int(np.median([min(size) for size in sizes]))
    found = (
        f"{first_name} is {first[0]}x{first[1]} and {second_name} {second[0]}x{second[1]} pixels"
        " (height x width)"
    )
    remedy = (
        f"images differ in size: {found}; give one for all, e.g. --image-size"
        f" {side // 32 * 32 or side}"
    )
    raise ConfigError("image_size", _NOT_GIVEN, remedy)
