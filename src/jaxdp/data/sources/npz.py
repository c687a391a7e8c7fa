"""Images and their targets as arrays in one file that `numpy.savez` wrote: `--dataset npz:PATH`."""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping

import numpy as np

from jaxdp.data import sources
from jaxdp.data.array_source import array_source
from jaxdp.data.arrays import array_dataset
from jaxdp.data.dataset import TARGET_FIELDS, ArraySource, Dataset
from jaxdp.data.measure import check_sizes
from jaxdp.data.npz_file import NpzFile
from jaxdp.data.request import Request
from jaxdp.data.splits import name_splits
from jaxdp.registry import ConfigError
from jaxdp.units import bytes_text

_LARGE_BYTES = 2**30
_FORM = (
    "train_images, train_labels, test_images, test_labels (or ..._masks or ..._targets instead of"
    " ..._labels; val_... too)"
)


@sources.register("npz")
def npz(request: Request) -> Dataset:
    """Returns the splits that the names of the arrays say; if a file is not split, a
    tenth is held out.

    Images are uint8, uint16 or float32 (N, H, W, C) or (N, H, W); labels integers (N,), masks
    integers (N, H, W), targets uint8 images. The spelling x_train, y_train, x_test, y_test will do
    for labels. `class_names` may hold text, one for each class.

    Raises:
        ConfigError: if the file cannot be read without unpickling, or its arrays are missing, of
            another kind or do not fit.
    """
    if not request.argument:
        raise request.error("name the file: npz:PATH")
    request.refuse("channels", "tiff")
    with _opened(request) as file:
        arrays = _Arrays(request, file)
        splits, class_names = arrays.splits(), arrays.class_names()
    _check_alike(request, splits)
    dataset = array_dataset(splits, class_names, request)
    request.choose(dataset.task)
    augment = ("flip", "flip_vertical") if dataset.task == "segmentation" else ()
    return dataclasses.replace(dataset, augment=augment, whole="images" in arrays.names)


def _opened(request: Request) -> NpzFile:
    path = pathlib.Path(request.argument).expanduser()
    if not path.is_file():
        raise request.error("there is no such file")
    try:
        return NpzFile(path)
    except ValueError as error:
        remedy = f"cannot be read: {error}; write one by numpy.savez with {_FORM}"
        raise request.error(remedy) from error
    except OSError as error:
        raise request.error(f"cannot be read: {error.strerror or error}") from error


def _check_alike(request: Request, splits: Mapping[str, ArraySource]) -> None:
    """Raises ConfigError unless all splits have the same targets, dtype, channels and size."""
    train = splits["train"]
    for split in splits.values():
        if train.field != split.field:
            fields = f"{train.field} for training and {split.field} in {split.where}"
            raise request.error(f"has {fields}")
        mine, theirs = train.images, split.images
        if mine.dtype != theirs.dtype:
            dtypes = f"are {mine.dtype}, those of {split.where} {theirs.dtype}; convert one of them"
            raise request.error(f"the images of {train.where} {dtypes}")
        if mine.shape[3] != theirs.shape[3]:
            counts = f"have {mine.shape[3]} channels, those of {split.where} {theirs.shape[3]}"
            raise request.error(f"the images of {train.where} {counts}")
    check_sizes(
        request,
        {(each.images.shape[1], each.images.shape[2]): each.where for each in splits.values()},
    )


class _Arrays:
    """The arrays of an opened file; each is read when it is asked for."""

    def __init__(self, request: Request, file: NpzFile) -> None:
        self._request = request
        self._file = file
        self.names = file.names
        self._listed = ", ".join(file.names) or "nothing"

    def splits(self) -> dict[str, ArraySource]:
        """Returns the images and targets of each split that is used."""
        request, config = self._request, self._request.config
        if "images" in self.names:
            flags = {
                "train_split": config.train_split,
                "validation": request.validation_split,
                "test_split": config.test_split,
            }
            for flag, value in flags.items():
                if value:
                    remedy = f"{config.dataset} is not split; it holds {self._listed}"
                    raise ConfigError(flag, value, remedy)
            return {"train": self._split("", "")}
        available = [name.removesuffix("_images") for name in self.names]
        available += [name.removeprefix("x_") for name in self.names if name.startswith("x_")]
        found = {"train": "train"} | name_splits(request, available)
        if request.validation_share is not None:
            found.pop("validation", None)
        elif len(found) == 1:
            found["test"] = "test"
        flags = {"train": "train_split", "validation": "validation", "test": "test_split"}
        return {split: self._split(name, flags[split]) for split, name in found.items()}

    def _split(self, name: str, flag: str) -> ArraySource:
        """Returns the images and targets of a split.

        A name of "" stands for a file that is not split.
        """
        prefix, request = f"{name}_" if name else "", self._request
        pairs = [(f"{prefix}images", f"{prefix}{field}", field) for field in TARGET_FIELDS.values()]
        if name:
            pairs.append((f"x_{name}", f"y_{name}", "labels"))
        for images, targets, field in pairs:
            if images in self.names and targets in self.names:
                where = " ".join(filter(None, (request.config.dataset, name)))
                arrays = (self._read(images), self._read(targets))
                return array_source(arrays, (images, targets), where, request, field=field)
        if flag and getattr(request.config, flag):
            suffix = "_images"
            known = sorted(
                other.removesuffix(suffix) for other in self.names if other.endswith(suffix)
            )
            remedy = f"there is no such split; there are {', '.join(known) or 'none'}"
            raise ConfigError(flag, name, remedy)
        raise request.error(
            f"{prefix}images or what belongs to it is missing; it holds {self._listed}, but should"
            f" hold {_FORM}"
        )

    def class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes, if the file has any."""
        if "class_names" not in self.names:
            return ()
        names = self._read("class_names")
        if names.ndim != 1 or names.dtype.kind != "U":
            remedy = "class_names must be one row of text, e.g. np.array(['cat', 'dog'])"
            raise self._request.error(remedy)
        return tuple(map(str, names))

    def _read(self, name: str) -> np.ndarray:
        try:
            if (size := self._file.bytes_of(name)) > _LARGE_BYTES:
                dataset = self._request.config.dataset
                sys.stderr.write(f"note: {dataset}: {name} takes {bytes_text(size)} of memory\n")
            return self._file.read(name)
        except ValueError as error:
            problem = f"{name} cannot be read: {error}"
            if "Python objects" in str(error):
                reason = str(error).removeprefix("it ")
                problem = f"{name} {reason}; store plain numbers or text"
            raise self._request.error(problem) from error
