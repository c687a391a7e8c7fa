"""Measures what training must know of a dataset and its source is not told: size, mean, standard
deviation, range, classes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdp.config.values import MOST_CLASSES
from jaxdp.data.checking import commonest, no_examples
from jaxdp.data.dataset import BadExample, Dataset, Source
from jaxdp.data.instances import CLASS_NAMES
from jaxdp.data.sources import Request
from jaxdp.data.sources.fitting import Fitted, ImageSize, name
from jaxdp.data.sources.images import Size
from jaxdp.data.sources.mask_classes import ReadMask, check_objects, find_classes
from jaxdp.data.sources.sampling import Sample, evenly, in_threads, measure
from jaxdp.data.splits import draw_validation
from jaxdp.registry import ConfigError

_SAMPLE = 512  # examples that mean and standard deviation are taken over
_SMALL_SAMPLE = 16  # enough to see that a split cannot be read at all
_RANGE_PIXELS = 2**22  # drawn for the percentile range, over all examples of the sample
_NOT_GIVEN = "(not given)"


@dataclasses.dataclass(frozen=True)
class Properties:
    """Properties of a dataset as far as its source knows them; what is None or empty is found out.

    Attributes:
        num_classes: classes of labels or masks, or channels of targets.
        size: height and width of all images.
        moments: mean and standard deviation per channel, in the units of the stored pixels.
        numbering: the class of each stored value of a mask, uint8 (256,).
        dtype: of the images.
        fit: how images are resized where `--image-size` does not say it.
        padded: height and width that images are filled up to.
        defaults: settings that suit the dataset, by name.
    """

    num_classes: int | None = None
    class_names: tuple[str, ...] = ()
    size: Size | None = None
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    numbering: np.ndarray | None = None
    augment: tuple[str, ...] = ()
    dtype: str = "uint8"
    fit: ImageSize | None = None
    padded: Size | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


def create_dataset(
    request: Request,
    task: str,
    splits: Mapping[str, Source],
    known: Properties,
    mask: ReadMask | None = None,
) -> Dataset:
    """Returns the dataset of these splits as `--image-size` and `--num-classes` want it.

    Args:
        splits: `train` and, where there are any, `validation` and `test`.
        known: spares the reading that would find it.
        mask: tells what the mask of a training example holds, by its number: stored values, or with
            `--mask-values` class numbers.

    Raises:
        ConfigError: for an empty training split, images of several sizes that nothing makes equal,
            classes that cannot be, or a split of which nothing can be read.
        BadExample: where `--on-bad-example` is error and one was met.
    """
    config = request.config
    if not len(splits["train"]):
        raise no_examples("train", config.dataset or "", config)
    skip = config.on_bad_example == "skip"
    instances = config.instances and task == "segmentation"
    if instances:
        known = dataclasses.replace(known, num_classes=len(CLASS_NAMES), class_names=CLASS_NAMES)
        check_objects(splits["train"], config.dataset or "", skip=skip)
    values = config.mask_values
    if values is not None and task != "segmentation":
        raise ConfigError(
            "mask_values", str(values), f"is for segmentation, not for {task}; leave it out"
        )
    num_classes, numbering = (
        _classes(request, task, values.num_classes if values else known.num_classes),
        known.numbering,
    )
    if (
        task == "segmentation"
        and numbering is None
        and mask is not None
        and (values or known.num_classes is None)
    ):
        found, numbering = find_classes(request, mask, len(splits["train"]), skip)
        num_classes = found or num_classes
    assert num_classes is not None
    share = request.validation_share
    if share is not None and "validation" in splits:
        raise ConfigError(
            "validation",
            share,
            f"{config.dataset} has validation data of its own; leave the share out",
        )
    if share is not None:
        train, validation = draw_validation(splits["train"], task, share, config.seed)
        splits = {**splits, "train": train, "validation": validation}
    fit = ImageSize.parse(config.image_size).check(task) if config.image_size else known.fit
    splits = {split: Fitted(source, fit, numbering) for split, source in splits.items()}
    sample = None
    if skip or not known.moments or not (fit or known.size):
        samples = {
            split: _sample(
                request,
                (split, source),
                _SAMPLE if split == "train" else _SMALL_SAMPLE,
                known,
                skip,
            )
            for split, source in splits.items()
            if split == "train" or (skip and len(source))
        }
        sample = samples["train"]
    pixel_range = sample.pixel_range() if sample and known.dtype != "uint8" else None
    mean, std = known.moments or (sample.moments(pixel_range) if sample else ((), ()))
    height, width = (
        (fit.size if fit else None)
        or known.padded
        or known.size
        or (sample.shape[:2] if sample else (0, 0))
    )
    if known.padded:
        splits = {
            split: dataclasses.replace(source, padded=known.padded)
            for split, source in splits.items()
        }
    return Dataset(
        **{"test": None, **splits},
        num_classes=num_classes,
        image_shape=(height, width, len(mean)),
        mean=mean,
        std=std,
        dtype=known.dtype,
        pixel_range=pixel_range,
        padded=known.padded is not None,
        defaults=known.defaults,
        task=task,
        augment=known.augment,
        class_names=known.class_names if len(known.class_names) == num_classes else (),
        instances=instances,
    )


def check_sizes(request: Request, sizes: Mapping[Size, str]) -> None:
    """Checks that all images have one size, or that the settings resize them.

    Args:
        sizes: of the images that were looked at, each with the name of one that has it.

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


def _sample(
    request: Request, named: tuple[str, Source], count: int, known: Properties, skip: bool
) -> Sample:
    """Returns the sums of evenly spaced examples of a split.

    The first readable one says how many channels there are.
    """
    whole: Sample | None = None
    sizes: dict[Size, str] = {}
    problems: list[BadExample] = []
    split, source = named
    each = -(-_RANGE_PIXELS // max(min(count, len(source)), 1))

    def indexed(index: int) -> tuple[int, Sample | BadExample]:
        return index, measure(source, index, each if known.dtype != "uint8" else 0)

    with in_threads(indexed, evenly(len(source), count)) as parts:
        for index, part in parts:
            if isinstance(part, Sample) and whole is not None and part.shape[-1] != whole.shape[-1]:
                wanted = (*part.shape[:2], whole.shape[-1])
                part = BadExample(
                    name(source, index), f"its images have the shape {part.shape}, not {wanted}"
                )
            if isinstance(part, BadExample):
                if not skip:
                    raise part
                problems.append(part)
                continue
            sizes.setdefault((part.shape[0], part.shape[1]), name(source, index))
            if whole is None:
                whole = part
            else:
                whole.add(part)
    if whole is None:
        raise request.error(
            f"nothing of it can be used; {commonest(problems)} (most often of its {split} examples)"
        )
    if known.padded is None:
        check_sizes(request, sizes)
    return whole


def _classes(request: Request, task: str, found: int | None) -> int | None:
    """Returns what `--num-classes` says, or what was found."""
    given = request.config.num_classes
    if task == "regression":
        if given not in (None, found):
            raise ConfigError(
                "num_classes",
                given,
                f"the targets of {request.config.dataset} have {found} channels; leave it out",
            )
        return found
    if given is not None and found is not None and given < found:
        raise ConfigError(
            "num_classes",
            given,
            f"{request.config.dataset} has {found}; give at least that, or leave it out",
        )
    if found is not None and found > MOST_CLASSES:
        remedy = (
            f"its highest class number is {found - 1}; number the classes from 0 on, {MOST_CLASSES}"
            " at most"
        )
        raise request.error(remedy)
    if given is None and found == 1:
        raise request.error("has one class only; there is nothing to tell apart")
    return given or found
