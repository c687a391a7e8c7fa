"""Measures what training must know of a dataset and its source is not told: size, mean, standard deviation, range, classes."""

import concurrent.futures
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxdp.data.checking import NOT_FINITE, commonest, no_examples
from jaxdp.data.dataset import IGNORE_LABEL, BadExample, Dataset, Source
from jaxdp.data.sources import Request
from jaxdp.data.sources.fitting import Fitted, ImageSize, name
from jaxdp.data.sources.images import Size
from jaxdp.data.splits import draw_validation
from jaxdp.registry import ConfigError

_SAMPLE = 512  # examples that mean and standard deviation are taken over
_SMALL_SAMPLE = 16  # enough to see that a split cannot be read at all
_RANGE_PIXELS = 2**22  # drawn for the percentile range, over all examples of the sample
_PERCENTILES = (0.1, 99.9)
_MOST_CLASSES_FOUND = 200  # more values than that in masks are no classes, but shades
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
    mask: Callable[[int], np.ndarray] | None = None,
) -> Dataset:
    """Returns the dataset of these splits as `--image-size` and `--num-classes` want it.

    Args:
        splits: `train` and, where there are any, `validation` and `test`.
        known: spares the reading that would find it.
        mask: reads the mask of a training example by its number, without its image.

    Raises:
        ConfigError: for an empty training split, images of several sizes that nothing makes equal, classes that cannot be, or a
            split of which nothing can be read.
        BadExample: where `--on-bad-example` is error and one was met.
    """
    config = request.config
    if not len(splits["train"]):
        raise no_examples("train", config.dataset or "", config)
    skip = config.on_bad_example == "skip"
    num_classes, numbering = _classes(request, task, known.num_classes), known.numbering
    if task == "segmentation" and numbering is None and mask is not None and known.num_classes is None:
        num_classes, numbering = _mask_classes(request, mask, len(splits["train"]), skip)
    assert num_classes is not None
    share = request.validation_share
    if share is not None and "validation" in splits:
        raise ConfigError("validation", share, f"{config.dataset} has validation data of its own; leave the share out")
    if share is not None:
        train, validation = draw_validation(splits["train"], task, share, config.seed)
        splits = {**splits, "train": train, "validation": validation}
    fit = ImageSize.parse(config.image_size) if config.image_size else known.fit
    if fit is not None and fit.kind != "stretch" and task != "classification":
        raise ConfigError("image_size", config.image_size, f"is for classification, not for {task}; give N or HxW")
    splits = {split: Fitted(source, fit, numbering) for split, source in splits.items()}
    sample = None
    if skip or not known.moments or not (fit or known.size):
        samples = {
            split: _sample(request, (split, source), _SAMPLE if split == "train" else _SMALL_SAMPLE, known, skip)
            for split, source in splits.items()
            if split == "train" or (skip and len(source))
        }
        sample = samples["train"]
    pixel_range = sample.pixel_range() if sample and known.dtype != "uint8" else None
    mean, std = known.moments or (sample.moments(pixel_range) if sample else ((), ()))
    height, width = (fit.size if fit else None) or known.padded or known.size or (sample.shape[:2] if sample else (0, 0))
    if known.padded:
        splits = {split: dataclasses.replace(source, padded=known.padded) for split, source in splits.items()}
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
    found = f"{first_name} is {first[0]}x{first[1]} and {second_name} {second[0]}x{second[1]} pixels (height x width)"
    remedy = f"images differ in size: {found}; give one for all, e.g. --image-size {side // 32 * 32 or side}"
    raise ConfigError("image_size", _NOT_GIVEN, remedy)


@dataclasses.dataclass
class _Sample:
    """Sums over the pixels of some examples, of uint8 as integers; `add` in the order of the examples changes nothing otherwise.

    Attributes:
        drawn: some pixels of each example, where their range is wanted.
    """

    shape: tuple[int, ...]
    pixels: int = 0
    total: Any = 0
    squares: Any = 0
    drawn: list[np.ndarray] = dataclasses.field(default_factory=list[np.ndarray])

    def add(self, part: "_Sample") -> None:
        self.pixels, self.total, self.squares = self.pixels + part.pixels, self.total + part.total, self.squares + part.squares
        self.drawn += part.drawn

    def pixel_range(self) -> tuple[float, float]:
        """Returns the percentile range of the drawn pixels; never an empty one."""
        pixels = np.concatenate(self.drawn).astype(np.float64)
        low, high = map(float, np.percentile(pixels, _PERCENTILES))
        if low == high:  # hardly any pixel differs
            low, high = float(pixels.min()), float(pixels.max())
        return low, high if high > low else low + 1.0

    def moments(self, pixel_range: tuple[float, float] | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns mean and standard deviation of each channel; with a range, of pixels mapped from it to 0 to 255."""
        mean = self.total / self.pixels
        variance = self.squares / self.pixels - mean**2
        if pixel_range is not None:
            scale = 255 / (pixel_range[1] - pixel_range[0])
            mean, variance = (mean - pixel_range[0]) * scale, variance * scale**2
        # Without contrast there is nothing to divide by.
        std = [float(np.sqrt(value)) if value > 1e-6 else 1.0 for value in variance]
        return tuple(round(float(value), 3) for value in mean), tuple(round(value, 3) for value in std)


def moments_of(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel of uint8 images (N, H, W, C), over all of them."""
    whole = _sums(images[:_SAMPLE])
    for start in range(_SAMPLE, len(images), _SAMPLE):
        whole.add(_sums(images[start : start + _SAMPLE]))
    return whole.moments()


def _sums(images: np.ndarray) -> _Sample:
    """Returns the sums over an image (H, W, C), or several (N, H, W, C)."""
    pixels = images[..., 0].size
    if images.dtype != np.uint8:
        values = images.reshape(-1, images.shape[-1]).astype(np.float64)
        return _Sample(images.shape, pixels, values.sum(0), (values**2).sum(0))
    counts = [np.bincount(images[..., channel].ravel(), minlength=256) for channel in range(images.shape[-1])]
    values = np.arange(256)
    return _Sample(images.shape, pixels, np.dot(counts, values), np.dot(counts, values**2))


def _draw(image: np.ndarray, count: int, index: int) -> np.ndarray:
    """Returns at most `count` pixels of an image, those that the number of the example draws: the same in every run."""
    pixels = image.ravel()
    return pixels if len(pixels) <= count else pixels[np.random.default_rng(index).integers(0, len(pixels), count)]


def _measure(source: Source, index: int, drawn: int) -> _Sample | BadExample:
    """Returns the sums of an example, with at most so many of its pixels."""
    try:
        image = source[index]["images"]
    except BadExample as error:
        return error
    if image.dtype.kind == "f" and not np.isfinite(image).all():
        return BadExample(name(source, index), NOT_FINITE)
    sums = _sums(image)
    if drawn:
        sums.drawn.append(_draw(image, drawn, index))
    return sums


def _sample(request: Request, named: tuple[str, Source], count: int, known: Properties, skip: bool) -> _Sample:
    """Returns the sums of evenly spaced examples of a split; the first readable one says how many channels there are."""
    whole: _Sample | None = None
    sizes: dict[Size, str] = {}
    problems: list[BadExample] = []
    split, source = named
    each = -(-_RANGE_PIXELS // max(min(count, len(source)), 1))

    def measure(index: int) -> tuple[int, _Sample | BadExample]:
        return index, _measure(source, index, each if known.dtype != "uint8" else 0)

    with in_threads(measure, _evenly(len(source), count)) as parts:
        for index, part in parts:
            if isinstance(part, _Sample) and whole is not None and part.shape[-1] != whole.shape[-1]:
                wanted = (*part.shape[:2], whole.shape[-1])
                part = BadExample(name(source, index), f"its images have the shape {part.shape}, not {wanted}")
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
        raise request.error(f"nothing of it can be used; {commonest(problems)} (most often of its {split} examples)")
    if known.padded is None:
        check_sizes(request, sizes)
    return whole


def _evenly(length: int, count: int) -> list[int]:
    count = min(length, count)
    return [position * length // count for position in range(count)]


@contextlib.contextmanager
def in_threads(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Context of the results, in order: decoding leaves the interpreter's lock, so that it is worth several threads."""
    pool = concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        yield pool.map(function, values)
    finally:
        pool.shutdown(cancel_futures=True)  # an error does not wait for the examples that nobody asks for any more


def _classes(request: Request, task: str, found: int | None) -> int | None:
    """Returns what `--num-classes` says, or what was found."""
    given = request.config.num_classes
    if task == "regression":
        if given not in (None, found):
            raise ConfigError("num_classes", given, f"the targets of {request.config.dataset} have {found} channels; leave it out")
        return found
    if given is not None and found is not None and given < found:
        raise ConfigError("num_classes", given, f"{request.config.dataset} has {found}; give at least that, or leave it out")
    if given is None and found == 1:
        raise request.error("has one class only; there is nothing to tell apart")
    return given or found


def _mask_classes(request: Request, mask: Callable[[int], np.ndarray], length: int, skip: bool) -> tuple[int, np.ndarray | None]:
    """Returns how many classes the training masks have, and how their values are to be numbered.

    All masks are read once, unless `--num-classes` is given: then a sample of them shows whether 255 is a class.
    """
    given = request.config.num_classes

    def values(index: int) -> np.ndarray | BadExample:
        try:
            return np.bincount(mask(index).ravel(), minlength=256) > 0
        except BadExample as error:
            return error

    present = np.zeros(256, bool)
    with in_threads(values, _evenly(length, _SAMPLE) if given else range(length)) as parts:
        for found in parts:
            if not isinstance(found, BadExample):
                present |= found
            elif not skip:
                raise found
    if list(np.flatnonzero(present)) == [0, 255]:  # black and white: nobody ignores all that is not background
        return given or 2, np.where(np.arange(256) == 255, 1, np.arange(256)).astype(np.uint8)
    if given:
        return given, None
    classes = np.flatnonzero(present[:IGNORE_LABEL])
    count = int(classes.max(initial=-1)) + 1
    if count < 2:
        where = request.config.dataset
        raise ConfigError("num_classes", _NOT_GIVEN, f"the training masks of {where} hold one class only; give --num-classes")
    if count > min(2 * len(classes), _MOST_CLASSES_FOUND):
        listed = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
        remedy = f"the training masks hold {len(classes)} values up to {count - 1} ({listed}); number the classes 0, 1, 2, ... and "
        raise ConfigError("num_classes", _NOT_GIVEN, remedy + f"{IGNORE_LABEL} for ignored pixels, or give --num-classes {count}")
    return count, None
