"""Makes datasets from objects of other libraries that have a length and an index."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.array_source import FIELDS, warn_without_0
from jaxdp.data.arrays import request_for
from jaxdp.data.conversion import convert
from jaxdp.data.dataset import VECTOR_FIELDS, Dataset
from jaxdp.data.find_images import USUAL
from jaxdp.data.image_file import read_image, read_mask
from jaxdp.data.instances import instance_labels
from jaxdp.data.layout import as_array, channels_last, is_tensor
from jaxdp.data.masks import to_class_numbers
from jaxdp.data.measure import look_through
from jaxdp.data.opening import complete
from jaxdp.data.request import Request
from jaxdp.data.source import BadExample, BaseSource, Example
from jaxdp.errors import ConfigError
from jaxdp.text.messages import one_line

_COMPARED = 16  # items that must have the labels that their dataset lists


def from_dataset(  # noqa: PLR0913 - each keyword says one more thing about the items
    train: Any,
    *,
    validation: Any = None,
    test: Any = None,
    task: str = "classification",
    class_names: Sequence[str] = (),
    augment: Sequence[str] = (),
    name: str = "dataset",
    seed: int = 0,
    image_size: str | int | None = None,
    num_classes: int | None = None,
    mask_values: str | None = None,
    instances: bool = False,
    on_bad_example: str = "error",
) -> Dataset:
    """Makes a dataset of objects with a length and an index: a PyTorch or Hugging Face dataset, a
    Grain source, a list.

    Each item is a dict of `image` and `label`, `mask` or `target`, or a pair of image and target.
    The target is a vector of 0 and 1 for `multilabel`, and of numbers for `scalar_regression`.
    A list or a tuple is read once, and may be placed on the devices. Other objects are asked for
    their items in each epoch, since they may draw them at random.
    Images are Pillow's, or arrays (H, W, C) or (H, W); PyTorch's tensors, and those of classes
    derived from them, are (C, H, W). Masks and labels may have an additional dim of size 1. Threads
    read the items. Labels, mean and standard deviation are read from the training items.

    Args:
        train: what to train on.
        validation: a share between 0 and 1 of each class, which is drawn from `train`; or another
            object.
        test: another object.
        task: `classification`, `multilabel`, `scalar_regression`, `segmentation` or `regression`,
            which specifies the targets.
        class_names: one per class; by default those that a Hugging Face dataset (`features`) or a
            dataset of torchvision (`classes`) knows, otherwise counted from "0".
        augment: words as for `--augment`, e.g. `("pad_crop:4", "flip")`.
        name: for titles and errors.
        seed: of the draw of validation examples.
        image_size, num_classes, mask_values, instances, on_bad_example: as the flags with these
            names.

    Raises:
        ConfigError: for an object without a length or an index, and for an item that cannot be
            used; the error names its number.
    """
    request, validation = request_for(
        str(task),
        validation,
        dataset=name,
        image_size=image_size,
        num_classes=num_classes,
        mask_values=mask_values,
        instances=instances,
        on_bad_example=on_bad_example,
        augment=augment,
        seed=seed,
        class_names=tuple(class_names) or None,
    )
    splits: dict[str, Any] = {
        split: Items(items, FIELDS[task], f"{name} {split}", request.config)
        for split, items in {"train": train, "validation": validation, "test": test}.items()
        if items is not None
    }
    request.check_not_empty(splits)
    objects, train, names = train, splits["train"], ()
    first = _first(train, request)
    classes = first["targets"].shape[2] if task == "regression" else 0
    if task in VECTOR_FIELDS:
        classes = len(first[FIELDS[task]])
        names = _known_names(objects, classes) if task == "multilabel" and not class_names else ()
    if task == "classification":
        labels = [source.labels() for source in splits.values()]
        classes = 1 + max(max(each, default=0) for each in labels)
        warn_without_0(labels[0], request)
        if not class_names and num_classes is None:
            names = _known_names(objects, classes)
    dataset = Dataset(
        **splits,
        task=task,
        num_classes=len(names) or classes,
        class_names=names,
        dtype=first["images"].dtype.name,
        name=name,
        instances=request.config.instances and task == "segmentation",
    )
    return complete(dataset, request)


def _first(train: BaseSource, request: Request) -> Example:
    """Returns the first example that can be used, and reads no example after it."""
    for index in range(len(train)):
        try:
            return train[index]
        except BadExample:
            if not request.skip:
                raise
    # Raises the error of a dataset of which nothing can be used.
    return next(look_through(train.__getitem__, range(len(train)), "train", request))


def _known_names(items: Any, classes: int) -> tuple[str, ...]:
    """Returns the names that an object of another library has for its classes; none if they cannot
    be meant, since there are fewer than classes, or some are equal.
    """
    features: Any = getattr(items, "features", None)
    known = [getattr(items, "classes", None)]
    if isinstance(features, Mapping):
        fields = [features.get(key) for key in USUAL["fields"]["labels"]]
        known += [getattr(field, "names", None) for field in fields]
    names = next((each for each in known if isinstance(each, list | tuple) and each), ())
    names = tuple(map(str, names))
    return names if len(set(names)) == len(names) >= classes else ()


class Items(BaseSource):
    """The items of an object of another library, as examples.

    Args:
        items: has a length and an index.
        field: `labels`, `masks`, `targets`, `present` or `values`.
        where: its name in errors.
        config: determines which mask values are classes.
    """

    def __init__(self, items: Any, field: str, where: str, config: DataConfig) -> None:
        if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
            remedy = "has no length or no index; make a list of its items, or from_arrays of them"
            raise ConfigError("", type(items).__name__, f"{where}: {type(items).__name__} {remedy}")
        self._items = items
        self.may_change = not isinstance(items, list | tuple)
        self._field = field
        self._where = where
        self._config = config

    def __len__(self) -> int:
        return len(self._items)

    def labels(self) -> list[int]:
        return self._labels

    @functools.cached_property
    def _labels(self) -> list[int]:
        """All labels. Without a list of them, every item is read, with its image."""
        listed = getattr(self._items, "targets", None)
        if isinstance(listed, list | tuple | np.ndarray) or is_tensor(listed):
            labels = as_array(listed)
            if labels.shape == (len(self),) and labels.dtype.kind in "iu":
                # `target_transform` or `__getitem__` may give the items other labels.
                indices = np.linspace(0, len(self) - 1, _COMPARED).round().astype(int).tolist()
                if all(self._label(index) == labels[index] for index in {*indices}):
                    return labels.tolist()
        return super().labels()

    def __getitem__(self, index: int) -> Example:
        where = self.name(index)
        try:
            image, target = self._pair(self._items[index])
            return {"images": _pixels(image, where), self._field: self._target(target, where)}
        except BadExample:
            raise
        except Exception as error:  # any exception of the object
            raise BadExample(where, f"{type(error).__name__}: {one_line(error)}") from error

    def name(self, index: int) -> str:
        return f"{self._where}[{index}]"

    def _pair(self, item: Any) -> tuple[Any, Any]:
        if not isinstance(item, Mapping):
            image, target = item
            return image, target
        wanted = (USUAL["fields"]["images"], USUAL["fields"][self._field])
        keys = [next((key for key in each if key in item), None) for each in wanted]
        if None in keys:
            missing = " or ".join(wanted[keys.index(None)])
            raise KeyError(f"has {', '.join(map(str, item))}, but no {missing}")
        return item[keys[0]], item[keys[1]]

    def _target(self, target: Any, where: str) -> Any:
        if self._field == "labels":
            return _label(target, where)
        if self._field == "targets":
            return _pixels(target, where)
        if self._field in ("present", "values"):
            vector = np.atleast_1d(as_array(target))
            if self._field == "present" and not np.isin(vector, (0, 1)).all():
                raise BadExample(where, "its target is no vector of 0 and 1")
            return vector.astype(dict(VECTOR_FIELDS.values())[self._field])
        is_picture = isinstance(target, Image.Image)
        values = self._config.mask_values
        mask = read_mask(target, where, values) if is_picture else as_array(target)
        if mask.ndim == 3 and 1 in (mask.shape[0], mask.shape[2]):  # the channel of masks
            mask = mask[..., 0] if mask.shape[2] == 1 else mask[0]
        if self._config.instances:
            return instance_labels(mask, where)
        if values is not None:
            return to_class_numbers(mask, values, where)
        fits = 0 <= mask.min(initial=0) <= mask.max(initial=0) < 256
        whole = mask.dtype.kind in "biu" or (fits and not (mask % 1).any())
        return mask.astype(np.uint8) if fits and whole else mask


def _pixels(image: Any, where: str) -> np.ndarray:
    """Returns an image as an array (H, W, C); tensors of PyTorch have the channels first."""
    if isinstance(image, Image.Image):
        return read_image(image, where)[0]
    array = as_array(image)
    if array.ndim not in (2, 3):
        raise ValueError(f"its image is a {type(image).__name__} of the shape {array.shape}")
    if array.ndim == 3:
        try:
            array = channels_last(array, "image", first=is_tensor(image))
        except ValueError as error:
            raise BadExample(where, f"its image {error}") from error
    return convert(np.atleast_3d(array), None, where)


def _label(target: Any, where: str) -> int:
    """Returns a class number, which may be the only element of an array."""
    label = as_array(target)
    if label.size != 1 or label.dtype.kind not in "biu":  # a float is no class number
        kind = f"{label.dtype} of the shape {label.shape}" if label.ndim else repr(target)
        raise BadExample(where, f"its label is {kind}, not a class number: an integer from 0 on")
    return int(label.item())
