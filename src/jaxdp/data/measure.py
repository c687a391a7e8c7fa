"""Measures facts of a dataset that training requires and its source does not know: classes, size,
mean, standard deviation and range.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxdp.config.values import MOST_CLASSES
from jaxdp.data.dataset import IGNORE_LABEL, NOT_FINITE, Dataset, pixel_problem
from jaxdp.data.instances import OUTPUT_NAMES
from jaxdp.data.masks import BLACK_AND_WHITE, Found, check_like, find_classes, unique_values
from jaxdp.data.pixel_statistics import PixelStatistics
from jaxdp.data.request import NOT_GIVEN, Request
from jaxdp.data.resize import Resize
from jaxdp.data.source import BadExample, BaseSource, Size
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform
from jaxdp.text.console import warn

_SAMPLE = 512  # number of examples for mean and standard deviation
_SMALL_SAMPLE = 16  # enough to detect that a split cannot be read at all
_SAME_SIZE = 0.01  # relative difference of pixel sizes
_RANGE_PIXELS = 2**22  # drawn for the percentile range, over all examples of the sample

T = TypeVar("T")


def _evenly(indices: Sequence[int], count: int) -> list[int]:
    """Returns at most `count` of these indices, evenly spaced."""
    count = min(len(indices), count)
    return [indices[position * len(indices) // count] for position in range(count)]


def look_through(
    look: Callable[[int], T], indices: Iterable[int], split: str, request: Request
) -> Iterator[T]:
    """Yields the result of `look` for each index, in order. Threads call `look`, because decoding
    releases the GIL.

    Raises:
        BadExample: for the first bad example, unless bad examples are left out.
        ConfigError: if all are bad.
    """

    def guarded(index: int) -> T | BadExample:
        try:
            return look(index)
        except BadExample as error:
            return error

    problem, usable = None, False
    pool = concurrent.futures.ThreadPoolExecutor(min(8, platform.cores()))
    try:
        for result in pool.map(guarded, indices):
            if not isinstance(result, BadExample):
                usable = True
                yield result
            elif request.skip:
                problem = problem or result
            else:
                raise result
    finally:
        pool.shutdown(cancel_futures=True)  # an error is raised before the other examples are read
    if problem and not usable:
        raise request.error(
            f"nothing of it can be used; {problem.where}: {problem.problem.template}, and all other"
            f" {split} examples are also bad"
        )


def count_classes(
    dataset: Dataset, source: BaseSource, indices: np.ndarray, request: Request
) -> Dataset:
    """Returns the dataset with its number of classes, and the values of its masks.

    Args:
        source, indices: examples to train on, before validation data are drawn from them.

    Raises:
        ConfigError: for settings that do not fit the data, and for masks without clear classes.
        BadExample: for a mask that cannot be read, unless bad examples are left out.
    """
    config, name = request.config, dataset.name
    values, task = config.mask_values, dataset.answer
    if values is not None and task != "segmentation":
        remedy = f"is for segmentation, not for {task}; leave it out"
        raise ConfigError("mask_values", str(values), remedy)
    if config.instances and not dataset.instances:
        remedy = (
            f"takes masks of object numbers; {name} is for {dataset.task} and has none; choose"
            f" another {flag('dataset')} or {flag('model')}, or leave it out"
        )
        raise ConfigError("instances", "", remedy)
    classes, names, known = dataset.num_classes, dataset.class_names, request.known
    held = dataset.mask_values
    if dataset.instances and not classes:
        if known is None:
            _check_instances(source, indices, request)
        classes, names = len(OUTPUT_NAMES), OUTPUT_NAMES
    elif task == "segmentation" and (values is not None or not classes):
        classes, held = _mask_classes(source, indices, request, names)
    if dataset.task in ("classification", "segmentation"):
        classes = _checked_classes(max(classes, len(names)), request)
    elif config.num_classes not in (None, classes):
        unit = "channels" if task == "regression" else "columns"
        remedy = f"the targets of {name} have {classes} {unit}; leave it out"
        raise ConfigError("num_classes", config.num_classes, remedy)
    return dataclasses.replace(dataset, num_classes=classes, class_names=names, mask_values=held)


def measure_values(dataset: Dataset, source: BaseSource, indices: np.ndarray) -> Dataset:
    """Returns the dataset with mean and standard deviation of the numbers that it is for, of the
    examples to train on, if it is for numbers and does not know them.
    """
    if dataset.task != "scalar_regression" or dataset.value_mean:
        return dataset
    values = np.asarray(source.values(), np.float64)[indices]
    values = values[np.isfinite(values).all(-1)]
    if not len(values):
        return dataset  # reading them reports the problem
    std = values.std(0)
    std[std == 0] = 1.0
    facts: dict[str, Any] = {"value_mean": values.mean(0), "value_std": std}
    return dataclasses.replace(
        dataset, **{name: tuple(fact.tolist()) for name, fact in facts.items()}
    )


def _mask_classes(
    source: BaseSource, indices: np.ndarray, request: Request, names: Sequence[str]
) -> tuple[int, tuple[int, ...]]:
    """Returns the number of classes of masks, and their values if no setting declares the
    classes.
    """
    config, known = request.config, request.known
    if known is not None and (known.mask_values or config.mask_values is not None):
        return known.num_classes, known.mask_values * (config.mask_values is None)
    # A sample suffices if the user declares the values of the classes.
    declared = config.num_classes is not None or config.mask_values is not None
    chosen = _evenly(indices.tolist(), _SAMPLE if declared else len(indices))

    def look(index: int) -> Found:
        return unique_values(*source.stored_mask(index))

    masks = look_through(look, chosen, "train", request)
    if known is not None:  # of a run of version 0.3, or with its own class numbers
        numbers = {value for each in masks for value in each.values.tolist()}
        return known.num_classes, BLACK_AND_WHITE if numbers == {*BLACK_AND_WHITE} else ()
    return find_classes(masks, request, names)


def check_masks(
    split: str, source: BaseSource, indices: np.ndarray, dataset: Dataset, request: Request
) -> None:
    """Finds problems of the masks of another split before training.

    Raises:
        BadExample: for a mask that differs from the training masks, unless bad examples are left
            out.
        ConfigError: if all pixels are ignored.
    """

    def look(index: int) -> set[int]:
        found = unique_values(*source.stored_mask(index))
        check_like(found.values, dataset.mask_values, found.where)
        return {*found.values.tolist()}

    held = set[int]().union(*look_through(look, indices.tolist(), split, request))
    if held == {IGNORE_LABEL} and dataset.mask_values != BLACK_AND_WHITE:
        raise request.error(f"no pixel of its {split} masks counts: all are 255, which is ignored")


def _checked_classes(count: int, request: Request) -> int:
    """Returns the value of `--num-classes`, or the number of classes in the data."""
    if request.known is not None:
        return count
    given, name = request.config.num_classes, request.config.dataset
    if given is not None and given < count:
        remedy = f"{name} has {count}; give at least that, or leave it out"
        raise ConfigError("num_classes", given, remedy)
    if count > MOST_CLASSES:
        remedy = f"number the classes from 0 on, {MOST_CLASSES} at most"
        raise request.error(f"its highest class number is {count - 1}; {remedy}")
    if given is None and count == 1:
        raise request.error("has one class only; there is nothing to learn")
    return given or count


def _check_instances(source: BaseSource, indices: np.ndarray, request: Request) -> None:
    """Raises ConfigError unless at least one of the sampled masks has several instance labels."""

    def look(index: int) -> int:
        mask, _ = source.stored_mask(index)
        return len(np.unique(mask[mask > 0]))

    most = 0
    for count in look_through(look, _evenly(indices.tolist(), _SAMPLE), "train", request):
        if count > 1:
            return
        most = max(most, count)
    held = "one number each but for 0" if most else "no object"
    remedy = (
        f"the training masks of {request.config.dataset} hold {held}; give each object of a mask a"
        f" number of its own, e.g. by skimage.measure.label, or leave {flag('instances')} out"
    )
    raise ConfigError("instances", "", remedy)


def measure_pixels(
    dataset: Dataset, splits: Mapping[str, Split], resize: Resize | None, request: Request
) -> Dataset:
    """Returns the dataset with the size and the statistics of its images, if they are not yet
    known.

    Args:
        splits: splits with images that are not yet padded.
        resize: how the images are brought to one size; None if they already have one size.

    Raises:
        ConfigError: for images of several sizes without a resize, or a split without a readable
            example.
        BadExample: for an image that cannot be read, unless bad examples are left out.
    """
    padded = resize is not None and resize.kind == "pad"
    size = resize.size if resize is not None else dataset.image_shape[:2]
    if not dataset.mean or not all(size):
        # The first is "train", except for evaluation data. The others are read to find a split of
        # which nothing is left.
        looked_at = [*splits] if request.skip else [*splits][:1]
        samples = [_sample(name, splits[name], dataset, request, resize) for name in looked_at]
        sample = samples[0]
        size = size if all(size) else (sample.shape[0], sample.shape[1])
        if not dataset.mean:
            pixel_range = sample.pixel_range() if dataset.dtype != "uint8" else None
            mean, std = sample.moments(pixel_range)
            dataset = dataclasses.replace(
                dataset,
                mean=mean,
                std=std,
                pixel_range=pixel_range,
                spread=sample.spread(),
                measured=True,
            )
    shape = (*size, dataset.image_shape[2] or len(dataset.mean))
    first = next(iter(splits.values()))
    pixel_size = _pixel_size(first) if resize is None or padded else ()
    return dataclasses.replace(dataset, image_shape=shape, padded=padded, pixel_size=pixel_size)


def _pixel_size(split: Split) -> tuple[float, ...]:
    """Returns the median of height and width of a pixel, or nothing if examples differ in it."""
    sizes = [split.source.pixel_size(each) for each in _evenly(split.indices.tolist(), _SAMPLE)]
    if not all(map(len, sizes)):
        return ()
    median = np.median(sizes, 0)
    return tuple(median.tolist()) if np.allclose(sizes, median, _SAME_SIZE, 0) else ()


def _without_outliers(
    parts: Mapping[int, PixelStatistics],
    pixel_range: tuple[float, float],
    split: Split,
    request: Request,
) -> PixelStatistics:
    """Returns the sums over the examples without pixels far outside the range of all pixels.

    Raises:
        BadExample: for any other example, unless bad examples are left out.
    """
    kept: list[PixelStatistics] = []
    for index, part in parts.items():
        problem = pixel_problem(*part.extremes, pixel_range)
        if not problem:
            kept.append(part)
        elif not request.skip:
            raise BadExample(split.name(index), problem)
    # If no example is left, the first example gives the reason.
    return functools.reduce(PixelStatistics.add, kept or parts.values())


def _sample(
    name: str, split: Split, dataset: Dataset, request: Request, resize: Resize | None
) -> PixelStatistics:
    """Returns the sums over evenly spaced examples of a split. Without a resize, all images must
    have one size.
    """
    indices = _evenly(range(len(split)), _SAMPLE if name == "train" else _SMALL_SAMPLE)
    constant = list[str]()
    drawn = -(-_RANGE_PIXELS // len(indices)) if dataset.dtype != "uint8" else 0

    def look(index: int) -> tuple[int, PixelStatistics]:
        image = split.unchecked(index)["images"]
        if image.size and not np.ptp(image):
            constant.append(split.name(index))
        if image.dtype.kind == "f" and not np.isfinite(image).all():
            raise BadExample(split.name(index), NOT_FINITE)
        return index, PixelStatistics.of(image, drawn, index)

    parts: dict[int, PixelStatistics] = {}
    sizes: dict[Size, str] = {}
    channels = 0
    for index, part in look_through(look, indices, name, request):
        channels = channels or part.shape[-1]
        if part.shape[-1] == channels:
            sizes.setdefault((part.shape[0], part.shape[1]), split.name(index))
            parts[index] = part
        elif not request.skip:
            wanted = (*part.shape[:2], channels)
            problem = f"its images have the shape {part.shape}, not {wanted}"
            raise BadExample(split.name(index), problem)
    whole = functools.reduce(PixelStatistics.add, parts.values())
    if drawn:
        pixel_range = dataset.pixel_range or whole.pixel_range()
        whole = _without_outliers(parts, pixel_range, split, request)
    if constant and request.known is None:
        warn(
            f"{dataset.name}: {len(constant)} of {len(indices)} images have equal pixels only,"
            f" e.g. {min(constant)}; nothing can be learned from them"
        )
    if len(sizes) > 1 and resize is None:
        examples = [f"{each} is {height}x{width}" for (height, width), each in sizes.items()]
        side = int(np.median([min(size) for size in sizes]))
        remedy = (
            f"images differ in size: {' and '.join(examples[:2])} pixels (height x width); give"
            f" one for all, e.g. {flag('image_size', side // 32 * 32 or side)}"
        )
        raise ConfigError("image_size", NOT_GIVEN, remedy)
    return whole
