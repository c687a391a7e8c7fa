"""Reads images and their targets as arrays from one file that `numpy.savez` wrote:
`--dataset npz:PATH`.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.array_source import FIELDS, array_source
from jaxdp.data.arrays import array_dataset
from jaxdp.data.dataset import Dataset
from jaxdp.data.npz_file import open_npz, read_array
from jaxdp.data.request import Request
from jaxdp.data.source import ArraySource
from jaxdp.data.split_selection import name_file_splits

_FORM = (
    "train_images, train_labels, test_images, test_labels (or ..._masks, ..._targets,"
    " ..._present or ..._values instead of ..._labels; val_... too)"
)


@sources.register("npz")
def npz(request: Request) -> Dataset:
    """Returns the splits according to the names of the arrays. If a file has no splits, a tenth is
    held out.

    Images are uint8, uint16 or float32 (N, H, W, C) or (N, H, W); labels integers (N,), masks
    integers (N, H, W), targets uint8 images, `present` 0 and 1 (N, classes) of multi-label images,
    and `values` numbers (N,) or (N, numbers). The names x_train, y_train, x_test, y_test are also
    accepted for labels. `class_names` may hold a string for each class.

    Raises:
        ConfigError: if the file cannot be read without unpickling, or if its arrays are missing,
            have another type or do not match.
    """
    request.refuse("channels", "tiff", "columns")
    path = pathlib.Path(request.argument).expanduser()
    if not path.is_file():
        raise request.error("there is no such file; write npz:PATH")
    try:
        file = open_npz(path)
    except ValueError as error:
        remedy = f"cannot be read: {error}; write one by numpy.savez with {_FORM}"
        raise request.error(remedy) from error
    except OSError as error:
        raise request.error(f"cannot be read: {error.strerror or error}") from error
    with file:
        splits: dict[str, ArraySource] = {}
        names = _names(request, file.files)
        for split, name in names.items():
            splits[split] = _split(request, file, name, next(iter(splits.values()), None))
        class_names: Any = ()
        if "class_names" in file.files:
            class_names = _read(request, file, "class_names")
            if class_names.ndim != 1 or class_names.dtype.kind != "U":
                remedy = "must be one row of text, e.g. np.array(['cat', 'dog'])"
                raise request.error(f"class_names {remedy}")
    has_masks = next(iter(splits.values())).field == "masks"
    return array_dataset(
        splits,
        request,
        class_names=tuple(map(str, class_names)),
        augment=("flip", "flip_vertical") if has_masks else (),
        whole="" in names.values(),
    )


def _names(request: Request, held: Sequence[str]) -> dict[str, str]:
    """Returns the prefix of the arrays of each split; "" for a file without splits."""
    if "images" in held and not any(request.named_splits.values()):
        return {"train": ""}
    available = [name.removesuffix("_images") for name in held if name.endswith("_images")]
    available += [name.removeprefix("x_") for name in held if name.startswith("x_")]
    return name_file_splits(request, available)


def _split(request: Request, file: Any, name: str, like: ArraySource | None) -> ArraySource:
    """Returns the images and targets of a split."""
    prefix = f"{name}_" if name else ""
    pairs = [(f"{prefix}images", f"{prefix}{field}", field) for field in FIELDS.values()]
    if name:
        pairs.append((f"x_{name}", f"y_{name}", "labels"))
    for images, targets, field in pairs:
        if images in file.files and targets in file.files:
            where = " ".join(filter(None, (request.config.dataset, name)))
            arrays = (_read(request, file, images), _read(request, file, targets))
            return array_source(arrays, (images, targets), where, request, like=like, field=field)
    raise request.error(
        f"{prefix}images or what belongs to it is missing; it holds"
        f" {', '.join(file.files) or 'nothing'}, but should hold {_FORM}"
    )


def _read(request: Request, file: Any, name: str) -> np.ndarray:
    try:
        return read_array(file, name)
    except ValueError as error:
        raise request.error(f"{name} cannot be read: {error}") from error
