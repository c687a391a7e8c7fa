"""Checks arrays of images and targets, and makes a source of examples of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.data.dataset import DTYPES, TARGET_FIELDS, ArraySource
from jaxdp.data.masks import number_arrays
from jaxdp.data.request import Request

TASKS = {field: task for task, field in TARGET_FIELDS.items()}


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
        _check_conventions(images, targets, names, request)
        field = {1: "labels", 2: "labels", 3: "masks", 4: "targets"}[targets.ndim]
    if like is not None and field != like.field:
        raise request.error(
            f"{names[1]} is for {TASKS[field]}, but the training targets are for"
            f" {TASKS[like.field]}"
        )
    if field == "masks" and request.config.mask_values is not None:
        targets = number_arrays(targets, request.config.mask_values, names[1], request.error)
    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise request.error(
            f"{names[0]} has the shape {images.shape}, not (N, H, W, C) or (N, H, W)"
        )
    dtypes = DTYPES if like is None else (like.images.dtype.name,)
    _check_pixels(images, names[0], request, dtypes)
    if len(images) != len(targets):
        raise request.error(f"{names[0]} has {len(images)} examples, but {names[1]} {len(targets)}")
    images = images if images.ndim == 4 else images[..., None]
    targets = _checked_targets(targets, images.shape[1:3], field, names[1], request)
    if like is not None:
        # What is resized need not have the same size.
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


def _checked_targets(
    targets: np.ndarray, size: tuple[int, ...], field: str, name: str, request: Request
) -> np.ndarray:
    if field == "targets":
        targets = targets[..., None] if targets.ndim == 3 else targets
        _check_pixels(targets, name, request, ("uint8",))
    else:
        if targets.ndim == {"labels": 2, "masks": 4}[field] and targets.shape[-1] == 1:
            targets = targets[..., 0]
        targets = _class_numbers(targets, field, name, request)
    shape = {"labels": (), "masks": size, "targets": (*size, *targets.shape[3:])}[field]
    if targets.shape[1:] != shape or (field == "targets" and targets.ndim != 4):
        wanted = " x ".join(map(str, ("N", *shape)))
        raise request.error(
            f"{name} has the shape {targets.shape}; for these images it must be {wanted}"
        )
    return targets


def _check_conventions(
    images: np.ndarray, targets: np.ndarray, names: tuple[str, str], request: Request
) -> None:
    """Raises ConfigError for arrays in the conventions of other libraries."""
    if not len(images):
        raise request.error(f"{names[0]} is empty")
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[2] == images.shape[3] > 4:
        raise request.error(
            f"{names[0]} has the shape {images.shape}; channels come last: use"
            f" {names[0]}.transpose(0, 2, 3, 1)"
        )
    name, remedy = names[1], ""
    if targets.ndim == 2 and targets.shape[1] > 1:
        remedy = f"; labels must be class numbers (N,): of one-hot rows, {name}.argmax(1)"
    elif targets.shape[3:] == (1,) and targets.dtype.kind in "iub" and targets.dtype != np.uint8:
        remedy = f"; masks of class numbers are (N, H, W): use {name}[..., 0]"
    elif not 1 <= targets.ndim <= 4:
        remedy = ", not (N,) for labels, (N, H, W) for masks or (N, H, W, C) for images"
    if remedy:
        raise request.error(f"{name} has the shape {targets.shape}{remedy}")


def _check_pixels(values: np.ndarray, name: str, request: Request, dtypes: Sequence[str]) -> None:
    if values.dtype.name in dtypes:
        return
    if "uint8" not in dtypes:
        raise request.error(
            f"{name} is {values.dtype}; those of the training set are {' or '.join(dtypes)}"
        )
    wrong, kind = f"{name} is {values.dtype}; pixels must be uint8, 0 to 255", values.dtype.kind
    if kind not in "fiub":
        raise request.error(wrong)
    check_finite(values, f"{wrong}, and {name} holds", request)
    lowest, highest = (values.min(), values.max()) if values.size else (0, 0)
    is_float = kind == "f"
    wider = f", or {name}.astype('float32')" if "float32" in dtypes else ""
    if lowest < 0 or highest > 255:
        raise request.error(
            f"{wrong}; these go from {lowest:g} to {highest:g}: scale them to 0 to 255, then use"
            f" .astype('uint8'){wider}"
        )
    scaled = f"({name} * 255)" if kind == "b" or (is_float and highest <= 1) else name
    rounded = ".round()" * is_float
    raise request.error(f"{wrong}: use {scaled}{rounded}.astype('uint8'){wider * is_float}")


def _class_numbers(values: np.ndarray, field: str, name: str, request: Request) -> np.ndarray:
    """Returns int32 labels or numbers of objects, or uint8 masks."""
    check_finite(values, f"{name} holds", request, "; class numbers must be integers")
    if values.dtype.kind not in "iub":
        raise request.error(
            f"{name} is {values.dtype}; class numbers must be integers, e.g. {name}.astype('int32')"
        )
    is_mask = field == "masks" and not request.config.instances
    lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if lowest < 0 or highest > (255 if is_mask else 2**31 - 1):
        limit = "class numbers must be at least 0"
        if is_mask:
            limit = (
                "class numbers must be 0 to 255; list the values that are classes by --mask-values,"
                " or give --mask-values binary, or --instances for numbers of objects"
            )
        raise request.error(f"{name} has values from {lowest} to {highest}; {limit}")
    return values.astype(np.uint8 if is_mask else np.int32, copy=False)


def check_finite(values: np.ndarray, held: str, request: Request, remedy: str = "") -> None:
    """Raises ConfigError for NaN and infinity.

    Args:
        held: what errors say before that.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        raise request.error(
            f"{held} NaN or infinity, first in example {int(np.argmin(finite))}{remedy}"
        )


def _as_array(values: Any, name: str, request: Request) -> np.ndarray:
    if values is None:
        raise request.error(f"{name} is None")
    try:
        array = np.asarray(values)
    except Exception as error:  # whatever the object's own conversion raises
        said = " ".join(str(error).split())
        raise request.error(f"{name} cannot be made an array: {said}") from error
    if array.dtype.kind == "O" or array.ndim == 0:
        raise request.error(
            f"{name} must be an array of numbers, not"
            f" {type(values).__name__}{' of objects' * array.ndim}"
        )
    return array
