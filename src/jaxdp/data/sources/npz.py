"""Images and their targets as arrays in one file that `numpy.savez` wrote: `--dataset npz:PATH`."""

import pathlib
import sys

import numpy as np

from jaxdp.data import sources
from jaxdp.data.arrays import NamedArrays, check_pair, count_classes
from jaxdp.data.npz_file import NpzFile
from jaxdp.data.sources.masks import number_arrays
from jaxdp.data.sources.statistics import Properties, check_sizes, create_dataset
from jaxdp.data.splits import held_out
from jaxdp.registry import ConfigError
from jaxdp.units import bytes_text

_LARGE_BYTES = 2**30
_TASKS = {field: task for task, field in sources.TARGET_FIELDS.items()}
_FORM = (
    "train_images, train_labels, test_images, test_labels (or ..._masks or ..._targets instead of"
    " ..._labels; val_... too)"
)


@sources.register("npz")
def npz(request: sources.Request) -> sources.Dataset:
    """Returns the splits that the names of the arrays tell, or holds a tenth of each class out
    where there is only one.

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
        splits = _splits(arrays)
        class_names = arrays.class_names()
    train = splits["train"]
    task = _TASKS[train.field]
    request.choose(task)
    height, width = train.images.shape[1:3]
    check_sizes(
        request,
        {(split.images.shape[1], split.images.shape[2]): split.where for split in splits.values()},
    )
    known = Properties(
        count_classes(list(splits.values())),
        class_names,
        (height, width),
        augment=_augment(task),
        dtype=train.images.dtype.name,
    )
    return create_dataset(request, task, splits, known, train.distinct)


def _augment(task: str) -> tuple[str, ...]:
    return ("flip", "flip_vertical") if task == "segmentation" else ()


def _opened(request: sources.Request) -> NpzFile:
    path = pathlib.Path(request.argument).expanduser()
    if not path.is_file():
        raise request.error("there is no such file")
    try:
        return NpzFile(path)
    except ValueError as error:
        raise request.error(
            f"cannot be read: {error}; write one by numpy.savez with {_FORM}"
        ) from error
    except OSError as error:
        raise request.error(f"cannot be read: {error.strerror or error}") from error


def _splits(arrays: "_Arrays") -> dict[str, NamedArrays]:
    request, config = arrays.request, arrays.request.config
    chosen = {
        "train_split": config.train_split,
        "validation": request.validation_split,
        "test_split": config.test_split,
    }
    if "images" in arrays.names:
        for flag, value in chosen.items():
            if value:
                raise ConfigError(
                    flag, value, f"{config.dataset} is not split; it holds {arrays.listed}"
                )
        whole = arrays.split("", "")
        is_test = held_out(
            whole.targets if whole.field == "labels" else np.zeros(len(whole), np.int32)
        )
        return {
            split: NamedArrays(
                whole.images[part], whole.targets[part], whole.field, f"{config.dataset} {split}"
            )
            for split, part in (("train", ~is_test), ("test", is_test))
        }

    def present(*names: str) -> str | None:
        found = (
            name
            for name in names
            if f"{name}_images" in arrays.names or f"x_{name}" in arrays.names
        )
        return next((name for name in found if name not in chosen.values()), None)

    own = present("val", "validation") if config.validation is None else None
    validation, test = request.validation_split or own, config.test_split or present("test")
    found = {"train": arrays.split(config.train_split or "train", "train_split")}
    if validation is not None:
        found["validation"] = arrays.split(validation, "validation")
    if test is not None or (validation is None and request.validation_share is None):
        found["test"] = arrays.split(test or "test", "test_split")
    _check_alike(request, found)
    return found


def _check_alike(request: sources.Request, found: dict[str, NamedArrays]) -> None:
    """Raises ConfigError unless all splits have the same targets, dtype and channels."""
    train = found["train"]
    for split in found.values():
        if train.field != split.field:
            raise request.error(
                f"has {train.field} for training and {split.field} in {split.where}"
            )
        if train.images.dtype != split.images.dtype:
            dtypes = (
                f"{train.images.dtype}, those of {split.where} {split.images.dtype}; convert one of"
                " them"
            )
            raise request.error(f"the images of {train.where} are {dtypes}")
        if train.images.shape[3] != split.images.shape[3]:
            channels = (
                f"{train.images.shape[3]} channels, those of {split.where} {split.images.shape[3]}"
            )
            raise request.error(f"the images of {train.where} have {channels}")


class _Arrays:
    """The arrays of an opened file; each is read when it is asked for."""

    def __init__(self, request: sources.Request, file: NpzFile) -> None:
        self.request, self._file = request, file
        self.names = file.names
        self.listed = ", ".join(self.names) or "nothing"

    def split(self, name: str, flag: str) -> NamedArrays:
        """Returns the images and targets of a split.

        A name of "" stands for a file that is not split.
        """
        prefix = f"{name}_" if name else ""
        pairs = [(f"{prefix}images", f"{prefix}{field}", field) for field in _TASKS]
        if name:
            pairs.append((f"x_{name}", f"y_{name}", "labels"))
        for images, targets, field in pairs:
            if images in self.names and targets in self.names:
                return self._checked(images, targets, field, name)
        if flag and getattr(self.request.config, flag):
            known = sorted(
                other.removesuffix("_images") for other in self.names if other.endswith("_images")
            )
            raise ConfigError(
                flag, name, f"there is no such split; there are {', '.join(known) or 'none'}"
            )
        raise self.request.error(
            f"{prefix}images or what belongs to it is missing; it holds {self.listed}, but should"
            f" hold {_FORM}"
        )

    def class_names(self) -> tuple[str, ...]:
        if "class_names" not in self.names:
            return ()
        names = self._read("class_names")
        if names.ndim != 1 or names.dtype.kind != "U":
            raise self.request.error(
                "class_names must be one row of text, e.g. np.array(['cat', 'dog'])"
            )
        return tuple(map(str, names))

    def _checked(self, images_name: str, targets_name: str, field: str, split: str) -> NamedArrays:
        images, targets = self._read(images_name), self._read(targets_name)
        values = self.request.config.mask_values
        if field == "masks" and values is not None:
            targets = number_arrays(targets, values, targets_name, self.request.error)
        names, fail, objects = (
            (images_name, targets_name),
            self.request.error,
            self.request.config.instances,
        )
        images, targets = check_pair(images, targets, field, names, fail, objects=objects)
        return NamedArrays(
            images, targets, field, " ".join(filter(None, (self.request.config.dataset, split)))
        )

    def _read(self, name: str) -> np.ndarray:
        try:
            if (size := self._file.bytes_of(name)) > _LARGE_BYTES:
                sys.stderr.write(
                    f"note: {self.request.config.dataset}: {name} takes {bytes_text(size)} of"
                    " memory\n"
                )
            return self._file.read(name)
        except ValueError as error:
            if "Python objects" in str(error):
                raise self.request.error(
                    f"{name} {str(error).removeprefix('it ')}; store plain numbers or text"
                ) from error
            raise self.request.error(f"{name} cannot be read: {error}") from error
