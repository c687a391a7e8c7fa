"""Datasets of arrays: what images and targets may be, and `from_arrays`."""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data.checking import check_dataset
from jaxdp.data.dataset import DTYPES, TARGET_FIELDS, ArraySource, Dataset
from jaxdp.data.instances import CLASS_NAMES
from jaxdp.data.sources import Request, read_settings
from jaxdp.data.sources.masks import Distinct, number_arrays
from jaxdp.data.sources.sampling import moments_of
from jaxdp.data.sources.statistics import Properties, create_dataset
from jaxdp.data.splits import random_share
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError

Fail = Callable[[str], ConfigError]  # makes an error of what is wrong
_TASKS = {field: task for task, field in TARGET_FIELDS.items()}


@dataclasses.dataclass(frozen=True)
class NamedArrays(ArraySource):
    """Examples in arrays, which errors name by their split and index.

    Attributes:
        where: what errors call the split.
    """

    where: str = ""

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def distinct(self, index: int) -> Distinct:
        """Returns what the mask of an example holds."""
        return Distinct.of(self.targets[index], self.name(index))


def from_arrays(  # noqa: PLR0913 - each keyword says one more thing about the arrays
    images: Any,
    targets: Any,
    *,
    validation: float | Sequence[Any] | None = None,
    test: Sequence[Any] | None = None,
    class_names: Sequence[str] = (),
    num_classes: int | None = None,
    mask_values: str | None = None,
    instances: bool = False,
    augment: Sequence[str] = (),
    name: str = "arrays",
    seed: int = 0,
) -> Dataset:
    """Makes a dataset of arrays, of NumPy or whatever else `numpy.asarray` takes.

    Mean and standard deviation are those of the images that are left for training.

    Args:
        images: uint8, uint16 or float32 (N, H, W, C), or (N, H, W) for grey ones.
        targets: decide the task: integers (N,) are labels, integers (N, H, W) masks, with 255 for
            pixels to ignore; uint8 (N, H, W, C) are images to be learned.
        validation: a share between 0 and 1 of each class, which is drawn from the examples and no
            longer trained on; or a pair of images and targets.
        test: a pair of images and targets.
        class_names: one per class.
        num_classes: of labels or masks, if more than occur.
        mask_values: values of masks that are class 0, 1, ..., e.g. `"0,128,255"`, or `"binary"`: 0
            and everything else.
        instances: whether masks are numbers of objects, which are to be told apart, with 0 for
            background.
        augment: words as for `--augment`, e.g. `("pad_crop:4", "flip")`.
        name: for titles and errors.
        seed: of the draw of validation examples, which depends on it and the labels alone.

    Raises:
        ConfigError: for arrays of another kind or shape, or that do not fit each other.
    """
    settings = {
        "num_classes": num_classes,
        "mask_values": mask_values,
        "instances": instances,
        "augment": augment,
        "seed": seed,
    }
    config = read_settings({"dataset": name, **settings})
    request = Request(config, argument="", tasks=(), flag="")
    fail = request.error
    if isinstance(class_names, str):
        raise fail(f"class_names must be a list of names, not the text {class_names!r}")
    check = functools.partial(_checked_split, fail=fail, config=config)
    train = check((images, targets), ("images", "targets"), f"{name} train", None)
    _check_instances(instances, train, class_names, fail)
    splits = {"train": train}
    is_share = isinstance(validation, numbers.Real)
    for split, pair in {"validation": None if is_share else validation, "test": test}.items():
        if pair is not None:
            names = (f"{split}[0]", f"{split}[1]")
            splits[split] = check(_pair(split, pair, fail), names, f"{name} {split}", train)
    if is_share:
        splits |= _divided(train, validation, config.seed, name, fail)
    trained_on = splits["train"]
    height, width = train.images.shape[1:3]
    for split, source in splits.items():
        _check_finite(source.images, f"the images of {split}", fail)
    known = Properties(
        num_classes=count_classes(list(splits.values())),
        class_names=tuple(printable(str(each)) for each in class_names),
        size=(height, width),
        moments=moments_of(trained_on.images) if trained_on.images.dtype == np.uint8 else None,
        augment=config.augment or (),
        dtype=trained_on.images.dtype.name,
    )
    dataset = create_dataset(request, _TASKS[train.field], splits, known, trained_on.distinct)
    if dataset.class_names != (CLASS_NAMES if instances else known.class_names):
        raise fail(
            f"class_names has {len(known.class_names)} names for {dataset.num_classes} classes;"
            " give one for each"
        )
    dataset = check_dataset(dataset, config)
    if train.field == "masks":  # the classes were counted in the training masks, or given
        for source in dataset.splits().values():
            for index in range(len(source)):
                _ = source[index]
    return dataset


def _check_instances(
    instances: bool, train: ArraySource, class_names: Sequence[str], fail: Fail
) -> None:
    """Raises an error if objects are to be told apart in targets that are no masks, or if their
    classes are to have other names.
    """
    if instances and train.field != "masks":
        raise fail("instances=True takes masks of object numbers, integers (N, H, W)")
    if instances and class_names:
        raise fail(
            "with instances the classes are background, cell and border; leave class_names out"
        )


def check_pair(
    images: np.ndarray,
    targets: np.ndarray,
    field: str,
    names: tuple[str, str],
    fail: Fail,
    dtypes: Sequence[str] = DTYPES,
    *,
    objects: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and targets in the form of an `ArraySource`.

    Args:
        field: `labels`, `masks` or `targets`.
        names: what errors call the two.
        dtypes: that images may have.
        objects: whether masks are numbers of objects.

    Raises:
        ConfigError: made by `fail`, if they are of another kind or shape or do not fit each other.
    """
    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise fail(f"{names[0]} has the shape {images.shape}, not (N, H, W, C) or (N, H, W)")
    _check_pixels(images, names[0], fail, dtypes)
    if len(images) != len(targets):
        raise fail(f"{names[0]} has {len(images)} examples, but {names[1]} {len(targets)}")
    images = images if images.ndim == 4 else images[..., None]
    if field == "targets":
        targets = targets[..., None] if targets.ndim == 3 else targets
        _check_pixels(targets, names[1], fail, ("uint8",))
    if field == "masks" and targets.shape[3:] == (1,):
        targets = targets[..., 0]
    if field == "labels" and targets.shape[1:] == (1,):
        targets = targets[:, 0]
    if field != "targets":
        targets = _class_numbers(
            targets, "objects" if objects and field == "masks" else field, names[1], fail
        )
    shape = {
        "labels": (),
        "masks": images.shape[1:3],
        "targets": (*images.shape[1:3], *targets.shape[3:]),
    }[field]
    if targets.shape[1:] != shape or (field == "targets" and targets.ndim != 4):
        wanted = " x ".join(map(str, ("N", *shape)))
        raise fail(
            f"{names[1]} has the shape {targets.shape}; for these images it must be {wanted}"
        )
    return images, targets


def _check_finite(images: np.ndarray, name: str, fail: Fail) -> None:
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise fail(f"{name} hold NaN or infinity, first in {_first_infinite(images)}")


def _check_pixels(values: np.ndarray, name: str, fail: Fail, dtypes: Sequence[str]) -> None:
    if values.dtype.name in dtypes:
        return
    if "uint8" not in dtypes:
        raise fail(f"{name} is {values.dtype}; those of the training set are {' or '.join(dtypes)}")
    wrong = f"{name} is {values.dtype}; pixels must be uint8, 0 to 255"
    if values.dtype.kind not in "fiub":
        raise fail(wrong)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise fail(f"{wrong}, and {name} holds NaN or infinity, first in {_first_infinite(values)}")
    lowest, highest = (values.min(), values.max()) if values.size else (0, 0)
    if lowest < 0 or highest > 255:
        wider = f", or {name}.astype('float32')" if "float32" in dtypes else ""
        raise fail(
            f"{wrong}; these go from {lowest:g} to {highest:g}: scale them to 0 to 255, then use"
            f" .astype('uint8'){wider}"
        )
    rounded = ".round()" * (values.dtype.kind == "f")
    scaled = f"({name} * 255)" if values.dtype.kind == "b" or (rounded and highest <= 1) else name
    wider = f", or {name}.astype('float32')" if rounded and "float32" in dtypes else ""
    raise fail(f"{wrong}: use {scaled}{rounded}.astype('uint8'){wider}")


def _class_numbers(values: np.ndarray, field: str, name: str, fail: Fail) -> np.ndarray:
    """Returns int32 labels or numbers of objects, or uint8 masks."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise fail(
            f"{name} holds NaN or infinity, first in {_first_infinite(values)}; class numbers must"
            " be integers"
        )
    if values.dtype.kind not in "iub":
        raise fail(
            f"{name} is {values.dtype}; class numbers must be integers, e.g. {name}.astype('int32')"
        )
    lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if lowest < 0 or highest > (255 if field == "masks" else 2**31 - 1):
        limit = "0 to 255" if field == "masks" else "at least 0"
        listed = "; list the values that are classes by --mask-values, or give --mask-values binary"
        remedy = f"{listed}, or --instances for numbers of objects" * (field == "masks")
        raise fail(
            f"{name} has values from {lowest} to {highest}; class numbers must be {limit}{remedy}"
        )
    return values.astype(np.uint8 if field == "masks" else np.int32, copy=False)


def _first_infinite(values: np.ndarray) -> str:
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    return f"example {int(np.argmin(finite))}"


def _pair(split: str, pair: Any, fail: Fail) -> tuple[Any, Any]:
    if isinstance(pair, list | tuple) and len(both := cast(list[Any], pair)) == 2:
        return both[0], both[1]
    raise fail(
        f"{split} must be {'a share between 0 and 1, or ' * (split == 'validation')}a pair of"
        " images and targets"
    )


def _checked_split(
    pair: tuple[Any, Any],
    names: tuple[str, str],
    where: str,
    train: ArraySource | None,
    fail: Fail,
    config: DataConfig,
) -> NamedArrays:
    """Checks the images and targets of a split, and returns them as a source of examples.

    Args:
        names: what errors call the two arrays.
        train: the training split, which this one has to be like; None if this is it.
        config: says which values of masks are the classes, or that they are numbers of objects.
    """
    images, targets = (
        _as_array(values, name, fail) for values, name in zip(pair, names, strict=True)
    )
    if not len(images):
        raise fail(f"{names[0]} is empty")
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[2] == images.shape[3] > 4:
        raise fail(
            f"{names[0]} has the shape {images.shape}; channels come last: use"
            f" {names[0]}.transpose(0, 2, 3, 1)"
        )
    field = _field_of(targets, names[1], fail)
    if train is not None and field != train.field:
        raise fail(
            f"{names[1]} is for {_TASKS[field]}, but the training targets are for"
            f" {_TASKS[train.field]}"
        )
    if field == "masks" and config.mask_values is not None:
        targets = number_arrays(targets, config.mask_values, names[1], fail)
    dtypes = DTYPES if train is None else (train.images.dtype.name,)
    images, targets = check_pair(
        images, targets, field, names, fail, dtypes, objects=config.instances
    )
    if train is not None:
        for name, mine, theirs in (
            (names[0], images, train.images),
            (names[1], targets, train.targets),
        ):
            if mine.shape[1:] != theirs.shape[1:]:
                raise fail(
                    f"{name} has examples of the shape {mine.shape[1:]}, the training set"
                    f" {theirs.shape[1:]}"
                )
    return NamedArrays(images, targets, field, where)


def _as_array(values: Any, name: str, fail: Fail) -> np.ndarray:
    if values is None:
        raise fail(f"{name} is None")
    try:
        array = np.asarray(values)
    except Exception as error:  # whatever the object's own conversion raises
        raise fail(f"{name} cannot be made an array: {' '.join(str(error).split())}") from error
    if array.dtype.kind == "O" or array.ndim == 0:
        raise fail(
            f"{name} must be an array of numbers, not"
            f" {type(values).__name__}{' of objects' * array.ndim}"
        )
    return array


def _field_of(targets: np.ndarray, name: str, fail: Fail) -> str:
    if targets.ndim == 2 and targets.shape[1] > 1:
        raise fail(
            f"{name} has the shape {targets.shape}; labels must be class numbers (N,): of one-hot"
            f" rows, {name}.argmax(1)"
        )
    if targets.shape[3:] == (1,) and targets.dtype.kind in "iub" and targets.dtype != np.uint8:
        raise fail(
            f"{name} has the shape {targets.shape}; masks of class numbers are (N, H, W): use"
            f" {name}[..., 0]"
        )
    fields = {1: "labels", 2: "labels", 3: "masks", 4: "targets"}
    if targets.ndim not in fields:
        raise fail(
            f"{name} has the shape {targets.shape}, not (N,) for labels, (N, H, W) for masks or (N,"
            " H, W, C) for images"
        )
    return fields[targets.ndim]


def _divided(
    whole: ArraySource, share: Any, seed: int, name: str, fail: Fail
) -> dict[str, NamedArrays]:
    if isinstance(share, bool) or not 0 < share < 1:
        raise fail(
            "validation must be a share between 0 and 1, or a pair of images and targets, not"
            f" {share}"
        )
    labels = whole.targets if whole.field == "labels" else np.zeros(len(whole), np.int32)
    remedy = "choose another share, or give validation as a pair of images and targets"
    drawn = random_share(
        labels,
        share,
        seed,
        lambda problem: ConfigError("", share, f"validation {share} {problem}; {remedy}"),
    )
    parts = {"train": ~drawn, "validation": drawn}
    return {
        split: NamedArrays(whole.images[part], whole.targets[part], whole.field, f"{name} {split}")
        for split, part in parts.items()
    }


def count_classes(splits: Sequence[ArraySource]) -> int | None:
    """Returns the classes of labels or the channels of target images.

    None for masks, whose values are looked through later.
    """
    if splits[0].field == "targets":
        return splits[0].targets.shape[3]
    if splits[0].field == "masks":
        return None
    return max((int(split.targets.max()) + 1 for split in splits if len(split)), default=None)
