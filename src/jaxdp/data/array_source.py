"""Checks arrays of images and targets, and makes a source of examples from them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdp.data.dataset import DTYPES, IGNORE_LABEL, TARGET_FIELDS, VECTOR_FIELDS, native
from jaxdp.data.layout import as_array, channels_last, is_tensor
from jaxdp.data.masks import MOST_LISTED, MOST_UNDECLARED, to_class_numbers
from jaxdp.data.request import Request
from jaxdp.data.source import ArraySource, BadExample, FieldsSource
from jaxdp.text.console import warn
from jaxdp.text.flags import flag
from jaxdp.text.messages import one_line, some

FIELDS = TARGET_FIELDS | {task: field for task, (field, _) in VECTOR_FIELDS.items()}
TASKS = {field: task for task, field in FIELDS.items()}
_MOST_COLOURS = 4  # channels of a picture
_FIELDS = {3: "masks", 4: "targets"}  # by the dims of the targets; others are labels


def array_source(
    pair: tuple[Any, Any],
    names: tuple[str, str],
    where: str,
    request: Request,
    *,
    like: Any = None,
    field: str = "",
) -> Any:
    """Returns the images and targets of a split as a source of examples.

    Args:
        names: what errors call the two arrays.
        where: what errors call the split.
        like: the training split, which this split must match.
        field: `labels`, `masks` or `targets`; empty if the shape of the targets determines it.

    Raises:
        ConfigError: if they have another type or shape, or do not match each other.
    """
    if isinstance(pair[1], Mapping):
        return _fields_source(pair, names, where, request, like)
    images, targets = _channels_last(pair, names, request)
    if not field:
        if not len(images):
            raise request.error(f"{names[0]} is empty")
        field = _field_of(targets, names[1], request, like)
    dtypes = DTYPES if like is None else (like.images.dtype.name,)
    images = _checked_images(images, names[0], request, dtypes)
    if len(images) != len(targets):
        raise request.error(f"{names[0]} has {len(images)} examples, but {names[1]} {len(targets)}")
    targets = _checked_targets(targets, images.shape[1:3], field, names[1], request)
    if like is not None:
        if field != like.field:
            raise request.error(
                f"{names[1]} is for {TASKS[field]}, but the training targets are for"
                f" {TASKS[like.field]}"
            )
        # Images that will be resized need not have the same size.
        first = 3 if request.config.image_size else 1
        pairs = ((names[0], images, like.images), (names[1], targets, like.targets))
        for name, mine, theirs in pairs:
            if mine.shape[first:] != theirs.shape[first:]:
                resizable = bool(request.flag) and mine.shape[3:] == theirs.shape[3:]
                remedy = f"; make them one size by {flag('image_size')}" * resizable
                raise request.error(
                    f"{name} has examples of the shape {mine.shape[1:]}, the training set"
                    f" {theirs.shape[1:]}{remedy}"
                )
    return ArraySource(images, targets, field, where)


def _fields_source(
    pair: tuple[Any, Mapping[str, Any]],
    names: tuple[str, str],
    where: str,
    request: Request,
    like: Any,
) -> FieldsSource:
    """Returns images and arrays by name as a source, with integers as int32 and numbers as
    float32.
    """
    images, _ = _channels_last((pair[0], np.zeros(1)), names, request)
    dtypes = DTYPES if like is None else (like.images.dtype.name,)
    images, fields = _checked_images(images, names[0], request, dtypes), dict[str, np.ndarray]()
    for field, values in pair[1].items():
        array = _as_array(values, f"{names[1]}[{field!r}]", request)
        if len(array) != len(images):
            held = f"{names[0]} has {len(images)} examples, but {names[1]}[{field!r}] {len(array)}"
            raise request.error(held)
        if array.dtype.kind in "iu" and array.size and int(array.max()) >= 2**31:
            raise request.error(f"{names[1]}[{field!r}] has integers of 2**31 and more")
        wide = {"i": np.int32, "u": np.int32, "f": np.float32, "b": np.uint8}[array.dtype.kind]
        fields[field] = array if array.dtype == np.uint8 else array.astype(wide)
    source = FieldsSource(images, fields, where)
    if like is not None and source.shapes() != like.shapes():
        raise request.error(f"{names[1]} has other fields than the training targets")
    return source


def _channels_last(
    pair: tuple[Any, Any], names: tuple[str, str], request: Request
) -> tuple[np.ndarray, np.ndarray]:
    images, targets = (_as_array(*each, request) for each in zip(pair, names, strict=True))
    if images.ndim == 4:
        try:
            images = channels_last(images, names[0], first=is_tensor(pair[0]))
        except ValueError as error:
            raise request.error(f"{names[0]} {error}") from error
        height, width, channels = images.shape[1:]
        if channels == width > _MOST_COLOURS:
            size = f"images of {height}x{width} pixels with {channels} channels"
            warn(f"{request.config.dataset}: {names[0]} are read as {size}, not as volumes")
    # Channels come first for certain in a tensor, and in one channel of the size of the images.
    if targets.ndim == 4 and (is_tensor(pair[1]) or targets.shape[1:] == (1, *images.shape[1:3])):
        targets = np.moveaxis(targets, 1, -1)
    return images, targets


def _field_of(targets: np.ndarray, name: str, request: Request, like: ArraySource | None) -> str:
    """Returns the field of the targets, from their dims and, with one channel, from other
    knowledge.

    Raises:
        ConfigError: for values that may be classes or pixels.
    """
    config, known = request.config, request.known
    if request.tasks:
        return FIELDS[request.tasks[0]]
    if targets.ndim <= 2:
        return _vector_field(targets, name, request, like)
    if targets.shape[3:] != (1,):
        return _FIELDS.get(targets.ndim, "labels")
    if known is not None:
        return TARGET_FIELDS[known.answer]
    if like is not None:
        return like.field
    declared = config.mask_values or config.num_classes or config.class_names or config.instances
    if declared or (targets.dtype.kind in "iub" and targets.dtype != np.uint8):
        return "masks"
    if targets.dtype != np.uint8:
        return "targets"
    held = np.flatnonzero(np.bincount(targets.ravel(), minlength=256))
    if len(held) > MOST_LISTED:
        return "targets"
    classes = held[held != IGNORE_LABEL]
    if len(classes) > 1 and classes[-1] < MOST_UNDECLARED:
        return "masks"
    ways = 'task="segmentation" if they are masks, or task="regression" if they are images to learn'
    raise request.error(f"{name} holds the values {some(held.tolist(), 6)} only; give {ways}")


def _vector_field(
    targets: np.ndarray, name: str, request: Request, like: ArraySource | None
) -> str:
    """Returns the field of targets (N,) or (N, C).

    Raises:
        ConfigError: for values that may be classes or numbers, or one class or several.
    """
    known = request.known
    if known is not None and known.task in VECTOR_FIELDS:
        return FIELDS[known.task]
    if like is not None and like.targets.ndim <= 2:
        return like.field
    is_whole = targets.dtype.kind in "iub" or not (targets % 1).any()
    if is_whole and (known is not None or targets.shape[1:] == (1,)):
        return "labels"
    if targets.ndim == 1:
        if is_whole and targets.dtype.kind == "f":
            ways = f"class numbers must be integers, e.g. {name}.astype('int32')"
            ways += '; numbers to predict need task="scalar_regression"'
            raise request.error(f"{name} is {targets.dtype}; {ways}")
        return "labels" if is_whole else "values"
    if not np.isin(targets, (0, 1)).all():
        if not is_whole:
            return "values"
        ways = f'{name} holds integers in {targets.shape[1]} columns; give task="scalar_regression"'
        raise request.error(f"{ways} if they are numbers to predict")
    if (targets.sum(-1) == 1).all():
        ways = f'{name}.argmax(1) if each image has one class, or task="multilabel"'
        raise request.error(f"{name} holds one-hot rows; give {ways}")
    return "present"


def _as_array(values: Any, name: str, request: Request) -> np.ndarray:
    try:
        array = as_array(values)
    except Exception as error:  # any exception of the object's own conversion
        raise request.error(f"{name} cannot be made an array: {one_line(error)}") from error
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        kind = f"an array of {array.dtype}" if array.ndim else type(values).__name__
        remedy = (
            f"; of labels that are text, texts, numbers = np.unique({name}, return_inverse=True)"
            " gives numbers, and texts.tolist() the names of the classes"
        ) * (array.dtype.kind == "U" and "images" not in name)
        raise request.error(f"{name} must be an array of numbers, not {kind}{remedy}")
    return native(array)


def _checked_images(
    images: np.ndarray, name: str, request: Request, dtypes: tuple[str, ...] = ("uint8",)
) -> np.ndarray:
    """Returns images (N, H, W, C).

    Raises:
        ConfigError: for arrays that are not images of one of these dtypes.
    """
    shape, dtype = images.shape, images.dtype
    problem = ""
    if images.ndim not in (3, 4) or 0 in shape[1:]:
        problem = f"has the shape {shape}, not (N, H, W, C) or (N, H, W)"
    elif dtype.name not in dtypes and "uint8" not in dtypes:
        problem = f"is {dtype}; pixels of the training set are {dtypes[0]}"
    elif dtype.name not in dtypes:
        lowest, highest = (images.min(), images.max()) if images.size else (0, 0)
        scaled = f"({name} * 255)" if dtype.kind in "fb" and highest <= 1 else name
        remedy = f"use {scaled}{'.round()' * (dtype.kind == 'f')}.astype('uint8')"
        if not 0 <= lowest <= highest <= 255:  # nor is NaN
            remedy = f"these go from {lowest:g} to {highest:g}: scale them, then use .astype"
        wider = f", or {name}.astype('float32')" * (dtype.kind == "f" and "float32" in dtypes)
        problem = f"is {dtype}; pixels must be uint8, 0 to 255: {remedy}{wider}"
    if problem:
        raise request.error(f"{name} {problem}")
    return images if images.ndim == 4 else images[..., None]


def _checked_targets(
    targets: np.ndarray, size: tuple[int, ...], field: str, name: str, request: Request
) -> np.ndarray:
    """Returns int32 labels or instance labels, uint8 masks, images, or vectors."""
    if field in ("present", "values"):
        return _vectors(targets, field, name, request)
    if field == "targets":
        targets = _checked_images(targets, name, request)
    elif targets.ndim == {"labels": 2, "masks": 4}[field] and targets.shape[-1] == 1:
        targets = targets[..., 0]
    shape = {"labels": (), "masks": size, "targets": (*size, *targets.shape[3:])}[field]
    if targets.shape[1:] != shape:
        last = len(shape) + 1
        wanted = f"for these images it must be {' x '.join(map(str, ('N', *shape)))}"
        if targets.ndim == last + 1:
            is_one_hot = field == "masks" or ((targets != 0).sum(-1) == 1).all()
            several = 'several classes of an image need task="multilabel"'
            wanted += f": of one-hot rows, {name}.argmax({last})" if is_one_hot else f"; {several}"
        raise request.error(f"{name} has the shape {targets.shape}; {wanted}")
    return targets if field == "targets" else _class_numbers(targets, field, name, request)


def _vectors(targets: np.ndarray, field: str, name: str, request: Request) -> np.ndarray:
    """Returns 0 and 1 as uint8 (N, classes), or numbers as float32 (N, numbers)."""
    if targets.ndim == 1 and field == "values":
        targets = targets[:, None]
    problem = ""
    if targets.ndim != 2 or not targets.shape[1]:
        wanted = "N x classes" if field == "present" else "N, or N x numbers"
        problem = f"has the shape {targets.shape}; for {TASKS[field]} it must be {wanted}"
    elif field == "present" and not np.isin(targets, (0, 1)).all():
        problem = "must hold 1 for each class that an image has, and otherwise 0"
    elif not np.isfinite(targets).all():
        problem = "holds NaN or infinity"
    if problem:
        raise request.error(f"{name} {problem}")
    return targets.astype(VECTOR_FIELDS[TASKS[field]][1])


def _class_numbers(values: np.ndarray, field: str, name: str, request: Request) -> np.ndarray:
    if values.dtype.kind == "f":
        is_whole = not (values % 1).any()
        remedy = f"class numbers must be integers, e.g. {name}.astype('int32')"
        if not is_whole:
            ways = 'numbers to predict need task="scalar_regression"'
            remedy = f"class numbers have no fractions; {ways}"
        raise request.error(f"{name} is {values.dtype}; {remedy}")
    is_mask, declared = field == "masks", request.config.mask_values
    if is_mask and declared is not None:
        try:
            masks = [
                to_class_numbers(mask, declared, f"{name}[{index}]")
                for index, mask in enumerate(values)
            ]
        except BadExample as error:
            raise request.error(f"{error.where}: {error.problem.template}") from error
        return np.array(masks, np.uint8).reshape(values.shape)  # also for no mask
    has_classes = is_mask and not request.config.instances
    lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if lowest < 0 or highest > (255 if has_classes else 2**31 - 1):
        remedy = (
            f"0 to 255; list the values that are classes by {flag('mask_values')}, or give"
            f" {flag('mask_values', 'binary')}, or {flag('instances')} for numbers of objects"
        )
        limit = remedy if has_classes else "at least 0"
        raise request.error(
            f"{name} has values from {lowest} to {highest}; class numbers must be {limit}"
        )
    return values.astype(np.uint8 if has_classes else np.int32, copy=False)


def warn_without_0(labels: Any, request: Request) -> None:
    """Warns if training labels seem to count from 1."""
    if len(labels) and np.min(labels) > 0:
        remedy = "number the classes from 0 on, e.g. by labels - labels.min()"
        warn(f"{request.config.dataset}: no training label is 0: class 0 is empty; {remedy}")
