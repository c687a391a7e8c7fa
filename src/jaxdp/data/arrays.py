"""Datasets of arrays: what images and targets may be, and `from_arrays`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxdp.data.dataset import DTYPES, TARGET_FIELDS, ArraySource, Dataset
from jaxdp.data.masks import number_arrays
from jaxdp.data.opening import complete
from jaxdp.data.pixel_statistics import moments_of
from jaxdp.data.request import Request
from jaxdp.data.sources import read_settings
from jaxdp.data.splits import choose_splits
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError

Fail = Callable[[str], ConfigError]  # makes an error of what is wrong
_TASKS = {field: task for task, field in TARGET_FIELDS.items()}


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
        "dataset": name,
        "num_classes": num_classes,
        "mask_values": mask_values,
        "instances": instances,
        "augment": augment,
        "seed": seed,
        "validation": _share(name, validation),
    }
    request = Request(read_settings(settings), flag="")
    if isinstance(class_names, str):
        remedy = f"class_names must be a list of names, not the text {class_names!r}"
        raise request.error(remedy)
    if instances and class_names:
        remedy = "the classes are background, cell and border; leave class_names out"
        raise request.error(f"with instances {remedy}")
    pairs = {"validation": validation, "test": test}
    splits = _array_splits((images, targets), pairs, request)
    names = tuple(printable(str(each)) for each in class_names)
    dataset = array_dataset(splits, names, request)
    dataset = dataclasses.replace(
        dataset, name=name, kind=dataset.task, augment=request.config.augment or ()
    )
    parts, images = choose_splits(dataset, request), splits["train"].images
    if images.dtype == np.uint8:  # all of them, since that takes no reading
        _, chosen = parts["train"]
        mean, std = moments_of(images if chosen is None else images[chosen])
        dataset = dataclasses.replace(dataset, mean=mean, std=std, measured=True)
    dataset = complete(dataset, parts, request)
    if names and not dataset.class_names:
        counts = f"class_names has {len(names)} names for {dataset.num_classes} classes"
        raise request.error(f"{counts}; give one for each")
    if dataset.task == "segmentation":  # the classes were counted in the training masks, or given
        for source in dataset.splits().values():
            for index in range(len(source)):
                _ = source[index]
    return dataset


def _share(name: str, validation: Any) -> str | None:
    scalar = isinstance(validation, np.generic)
    value: Any = validation.item() if scalar else validation  # pyright: ignore
    if not isinstance(value, bool | int | float):
        return None
    if isinstance(value, bool) or not 0 < value < 1:
        remedy = "must be a share between 0 and 1, or a pair of images and targets"
        raise ConfigError("", value, f"{name}: validation {remedy}, not {value}")
    return repr(value)


def _array_splits(
    train: tuple[Any, Any], pairs: Mapping[str, Any], request: Request
) -> dict[str, ArraySource]:
    name = request.config.dataset
    splits = {"train": array_source(train, ("images", "targets"), f"{name} train", request)}
    for split, pair in pairs.items():
        if pair is None or (split == "validation" and request.validation_share is not None):
            continue
        both = cast(list[Any], pair) if isinstance(pair, list | tuple) else []
        if len(both) != 2:
            share = "a share between 0 and 1, or " * (split == "validation")
            raise request.error(f"{split} must be {share}a pair of images and targets")
        names = (f"{split}[0]", f"{split}[1]")
        splits[split] = array_source(
            (both[0], both[1]), names, f"{name} {split}", request, like=splits["train"]
        )
    for split, source in splits.items():
        images = source.images
        if images.dtype.kind == "f" and not np.isfinite(images).all():
            first = _first_infinite(images)
            raise request.error(f"the images of {split} hold NaN or infinity, first in {first}")
    return splits


def array_dataset(
    splits: dict[str, ArraySource], class_names: tuple[str, ...], request: Request
) -> Dataset:
    """Returns a dataset of arrays whose statistics, and classes of masks, are still to be measured.

    Raises:
        ConfigError: for instances of anything but masks.
    """
    train, instances = splits["train"], request.config.instances
    if instances and train.field != "masks" and not request.flag:
        raise request.error("instances=True takes masks of object numbers, integers (N, H, W)")
    classes = 0
    if train.field == "targets":
        classes = train.targets.shape[3]
    elif train.field == "labels":
        labels = [source.targets for source in splits.values() if len(source)]
        classes = max((int(each.max()) + 1 for each in labels), default=0)
    parts: dict[str, Any] = dict(splits)
    return Dataset(
        **parts,
        task=_TASKS[train.field],
        num_classes=classes,
        image_shape=(*train.images.shape[1:3], train.images.shape[3]),
        class_names=class_names,
        dtype=train.images.dtype.name,
        instances=instances and train.field == "masks",
    )


def array_source(
    pair: tuple[Any, Any],
    names: tuple[str, str],
    where: str,
    request: Request,
    *,
    like: ArraySource | None = None,
    field: str = "",
) -> ArraySource:
    """Returns the images and targets of a split as a source of examples.

    Args:
        names: what errors call the two arrays.
        where: what errors call the split.
        like: the training split, which this one has to be like.
        field: `labels`, `masks` or `targets`; empty if the shape of the targets decides.

    Raises:
        ConfigError: if they are of another kind or shape or do not fit each other.
    """
    fail, config = request.error, request.config
    images, targets = (
        _as_array(values, name, fail) for values, name in zip(pair, names, strict=True)
    )
    if not field:
        _check_conventions(images, targets, names, fail)
        field = {1: "labels", 2: "labels", 3: "masks", 4: "targets"}[targets.ndim]
    if like is not None and field != like.field:
        raise fail(
            f"{names[1]} is for {_TASKS[field]}, but the training targets are for"
            f" {_TASKS[like.field]}"
        )
    if field == "masks" and config.mask_values is not None:
        targets = number_arrays(targets, config.mask_values, names[1], fail)
    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise fail(f"{names[0]} has the shape {images.shape}, not (N, H, W, C) or (N, H, W)")
    _check_pixels(images, names[0], fail, DTYPES if like is None else (like.images.dtype.name,))
    if len(images) != len(targets):
        raise fail(f"{names[0]} has {len(images)} examples, but {names[1]} {len(targets)}")
    images = images if images.ndim == 4 else images[..., None]
    targets = _checked_targets(targets, images.shape[1:3], field, names[1], request)
    if like is not None:
        pairs = ((names[0], images, like.images), (names[1], targets, like.targets))
        for name, mine, theirs in pairs:
            if mine.shape[1:] != theirs.shape[1:]:
                raise fail(
                    f"{name} has examples of the shape {mine.shape[1:]}, the training set"
                    f" {theirs.shape[1:]}"
                )
    return ArraySource(images, targets, field, where)


def _checked_targets(
    targets: np.ndarray, size: tuple[int, ...], field: str, name: str, request: Request
) -> np.ndarray:
    fail = request.error
    if field == "targets":
        targets = targets[..., None] if targets.ndim == 3 else targets
        _check_pixels(targets, name, fail, ("uint8",))
    if field == "masks" and targets.shape[3:] == (1,):
        targets = targets[..., 0]
    if field == "labels" and targets.shape[1:] == (1,):
        targets = targets[:, 0]
    if field != "targets":
        instances = request.config.instances and field == "masks"
        targets = _class_numbers(targets, "instances" if instances else field, name, fail)
    shape = {"labels": (), "masks": size, "targets": (*size, *targets.shape[3:])}[field]
    if targets.shape[1:] != shape or (field == "targets" and targets.ndim != 4):
        wanted = " x ".join(map(str, ("N", *shape)))
        raise fail(f"{name} has the shape {targets.shape}; for these images it must be {wanted}")
    return targets


def _check_conventions(
    images: np.ndarray, targets: np.ndarray, names: tuple[str, str], fail: Fail
) -> None:
    """Raises an error for arrays in the conventions of other libraries."""
    if not len(images):
        raise fail(f"{names[0]} is empty")
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[2] == images.shape[3] > 4:
        raise fail(
            f"{names[0]} has the shape {images.shape}; channels come last: use"
            f" {names[0]}.transpose(0, 2, 3, 1)"
        )
    name, shape = names[1], f"{names[1]} has the shape {targets.shape}"
    if targets.ndim == 2 and targets.shape[1] > 1:
        remedy = f"labels must be class numbers (N,): of one-hot rows, {name}.argmax(1)"
        raise fail(f"{shape}; {remedy}")
    if targets.shape[3:] == (1,) and targets.dtype.kind in "iub" and targets.dtype != np.uint8:
        raise fail(f"{shape}; masks of class numbers are (N, H, W): use {name}[..., 0]")
    if not 1 <= targets.ndim <= 4:
        forms = "(N,) for labels, (N, H, W) for masks or (N, H, W, C) for images"
        raise fail(f"{shape}, not {forms}")


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
