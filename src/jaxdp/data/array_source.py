"""Checks arrays of images and targets, and makes a source of examples of them."""

from typing import Any

import numpy as np

from jaxdp.data.dataset import DTYPES, TARGET_FIELDS, ArraySource, BadExample, native
from jaxdp.data.masks import to_class_numbers
from jaxdp.data.request import Request

TASKS = {field: task for task, field in TARGET_FIELDS.items()}
_FIELDS = {3: "masks", 4: "targets"}  # by the targets' dimensions; others are labels


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
    images, targets = (_as_array(*each, request) for each in zip(pair, names, strict=True))
    if not field:
        if not len(images):
            raise request.error(f"{names[0]} is empty")
        if targets.shape[3:] == (1,) and targets.dtype.kind in "iub" and targets.dtype != np.uint8:
            remedy = f"masks of class numbers are (N, H, W): use {names[1]}[..., 0]"
            raise request.error(f"{names[1]} has the shape {targets.shape}; {remedy}")
        field = _FIELDS.get(targets.ndim, "labels")
    _check(images, names[0], request, DTYPES if like is None else (like.images.dtype.name,))
    images = images if images.ndim == 4 else images[..., None]
    if len(images) != len(targets):
        raise request.error(f"{names[0]} has {len(images)} examples, but {names[1]} {len(targets)}")
    targets = _checked_targets(targets, images.shape[1:3], field, names[1], request)
    if like is not None:
        if field != like.field:
            training = f"the training targets are for {TASKS[like.field]}"
            raise request.error(f"{names[1]} is for {TASKS[field]}, but {training}")
        # Images that will be resized need not have the same size.
        first = 3 if request.config.image_size else 1
        pairs = ((names[0], images, like.images), (names[1], targets, like.targets))
        for name, mine, theirs in pairs:
            if mine.shape[first:] != theirs.shape[first:]:
                resizable = bool(request.flag) and mine.shape[3:] == theirs.shape[3:]
                raise request.error(
                    f"{name} has examples of the shape {mine.shape[1:]}, the training set"
                    f" {theirs.shape[1:]}" + "; make them one size by --image-size" * resizable
                )
    return ArraySource(images, targets, field, where)


def _as_array(values: Any, name: str, request: Request) -> np.ndarray:
    try:
        array = np.asarray(values)
    except Exception as error:  # whatever the object's own conversion raises
        problem = f"cannot be made an array: {' '.join(str(error).split())}"
        raise request.error(f"{name} {problem}") from error
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        kind = f"an array of {array.dtype}" if array.ndim else type(values).__name__
        remedy = (
            f"; of labels that are text, texts, numbers = np.unique({name}, return_inverse=True)"
            " gives numbers, and texts.tolist() the names of the classes"
        ) * (array.dtype.kind == "U" and "images" not in name)
        raise request.error(f"{name} must be an array of numbers, not {kind}{remedy}")
    return native(array)


def _check(
    images: np.ndarray, name: str, request: Request, dtypes: tuple[str, ...] = ("uint8",)
) -> None:
    """Raises ConfigError for arrays that are no images of one of these dtypes."""
    shape, dtype = images.shape, images.dtype
    problem = ""
    if images.ndim not in (3, 4) or 0 in shape[1:]:
        problem = f"has the shape {shape}, not (N, H, W, C) or (N, H, W)"
    elif images.ndim == 4 and shape[1] in (1, 3) and shape[2] == shape[3] > 4:
        remedy = f"channels come last: use {name}.transpose(0, 2, 3, 1)"
        problem = f"has the shape {shape}; {remedy}"
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


def _checked_targets(
    targets: np.ndarray, size: tuple[int, ...], field: str, name: str, request: Request
) -> np.ndarray:
    """Returns int32 labels or numbers of objects, uint8 masks, or images."""
    if field == "targets":
        _check(targets, name, request)
        targets = targets if targets.ndim == 4 else targets[..., None]
    elif targets.ndim == {"labels": 2, "masks": 4}[field] and targets.shape[-1] == 1:
        targets = targets[..., 0]
    shape = {"labels": (), "masks": size, "targets": (*size, *targets.shape[3:])}[field]
    if targets.shape[1:] != shape:
        last = len(shape) + 1
        one_hot = f": of one-hot rows, {name}.argmax({last})" * (targets.ndim == last + 1)
        wanted = f"for these images it must be {' x '.join(map(str, ('N', *shape)))}"
        raise request.error(f"{name} has the shape {targets.shape}; {wanted}{one_hot}")
    return targets if field == "targets" else _class_numbers(targets, field, name, request)


def _class_numbers(values: np.ndarray, field: str, name: str, request: Request) -> np.ndarray:
    if values.dtype.kind == "f":
        remedy = f"class numbers must be integers, e.g. {name}.astype('int32')"
        raise request.error(f"{name} is {values.dtype}; {remedy}")
    is_mask, declared = field == "masks", request.config.mask_values
    if is_mask and declared is not None:
        try:
            masks = [
                to_class_numbers(mask, declared, f"{name}[{index}]")
                for index, mask in enumerate(values)
            ]
        except BadExample as error:
            raise request.error(f"{error.where}: {error.problem}") from error
        return np.array(masks, np.uint8).reshape(values.shape)  # also for no mask
    has_classes = is_mask and not request.config.instances
    lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if lowest < 0 or highest > (255 if has_classes else 2**31 - 1):
        remedy = (
            "0 to 255; list the values that are classes by --mask-values, or give --mask-values"
            " binary, or --instances for numbers of objects"
        )
        limit = remedy if has_classes else "at least 0"
        held = f"{name} has values from {lowest} to {highest}"
        raise request.error(f"{held}; class numbers must be {limit}")
    return values.astype(np.uint8 if has_classes else np.int32, copy=False)
