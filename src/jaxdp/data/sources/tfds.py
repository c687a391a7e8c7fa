"""Reads images from TensorFlow Datasets without TensorFlow: `--dataset tfds:NAME`, or the bare
names of a few datasets.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.dataset import Dataset
from jaxdp.data.image_file import Data
from jaxdp.data.image_source import ImageSource
from jaxdp.data.request import SPLIT_FLAGS, Request
from jaxdp.data.source import BadExample, Example
from jaxdp.data.split_selection import name_file_splits
from jaxdp.errors import ConfigError
from jaxdp.text.messages import brief, closest, one_line

# Settings that suit a dataset, which TensorFlow Datasets lacks. Mean and standard deviation are
# given if the published values were reproduced, together with the spread of the training images.
_SGD = {"optimizer": "nesterov"}
KNOWN: dict[str, dict[str, Any]] = {
    "cifar10": {
        "mean": (125.3, 123.0, 113.9),
        "std": (63.0, 62.1, 66.7),
        "spread": (7.9, 252.3, 9.6, 115.0),
        "augment": ("pad_crop:4", "flip"),
    },
    "cifar100": {"augment": ("pad_crop:4", "flip")},
    "mnist": {
        "mean": (33.3,),
        "std": (78.6,),
        "spread": (6.5, 101.4, 31.8, 119.2),
        "augment": ("shift:2",),
        "defaults": _SGD | {"epochs": 3},
    },
    "fashion_mnist": {"augment": ("pad_crop:2", "flip")},
    "oxford_iiit_pet": {"augment": ("flip",)},
}
# Classes of masks with values from 1.
_MASK_NAMES = {"oxford_iiit_pet": ("pet", "background", "border")}


@sources.register("tfds")
def tfds(request: Request, bare_name: str = "") -> Dataset:
    """Returns any dataset of images with labels or masks, which is prepared at its first use.

    Splits use the syntax of TFDS.

    Raises:
        ConfigError: for an unknown name, version or split, a dataset of another type, or a dataset
            that can be neither found nor prepared.
    """
    config = request.config
    name = ":".join(filter(None, (bare_name, request.argument)))
    request.refuse("channels", "tiff", "columns", "instances")
    builder = _find_builder(name, request)
    image, targets = _find_features(request, builder.info)
    task = request.choose(*targets)  # before a useless download
    builder = _prepared(builder, name, request)
    height, width, channels = builder.info.features[image].shape
    feature = builder.info.features[targets[task]]
    classes, names = getattr(feature, "num_classes", 0), getattr(feature, "names", None) or ()
    augment, first_class = (), 0
    if task == "segmentation":
        augment = ("flip", "flip_vertical")
        if config.mask_values is not None:
            names = ()  # `--mask-values` has its own order
        elif builder.name in _MASK_NAMES:
            names, first_class = _MASK_NAMES[builder.name], 1
            classes = len(names)
    create = functools.partial(
        TfdsSource,
        image=image,
        target=targets[task],
        channels=channels,
        dtype="uint8",
        task=task,
        config=config,
        first_class=first_class,
    )
    splits: dict[str, Any] = {"train": None} | {
        split: create(
            records=_records(request, builder, split, chosen), where=f"tfds {name} {chosen}"
        )
        for split, chosen in name_file_splits(request, list(builder.info.splits)).items()
    }
    known: dict[str, Any] = {"augment": augment}
    if builder.name in KNOWN:
        known |= {"defaults": _SGD} | KNOWN[builder.name]
    return Dataset(
        **splits,
        task=task,
        num_classes=classes or 0,
        class_names=tuple(names),
        image_shape=(height, width, channels) if height and width else (0, 0, channels),
        **known,
    )


for _name in KNOWN:
    sources.register(_name)(functools.partial(tfds, bare_name=_name))


def _find_builder(name: str, request: Request) -> Any:
    """Returns TFDS's builder of a dataset, which knows its features even if it is not prepared."""
    # A few builders import TensorFlow, which logs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        # The import takes a second, for which other datasets need not wait.
        library: Any = importlib.import_module("tensorflow_datasets")
    except ModuleNotFoundError as error:
        raise request.error("needs TensorFlow Datasets: pip install '.[tfds]'") from error
    folder = request.config.data_dir and pathlib.Path(request.config.data_dir).expanduser()
    try:
        return library.builder(name, data_dir=folder and os.fspath(folder))
    except library.core.DatasetNotFoundError as error:
        close = closest(name, library.list_builders(with_community_datasets=False))
        where = f", nor has {folder}" if folder else ""
        similar = f"; did you mean {close}?" if close else ""
        raise request.error(f"TensorFlow Datasets has no {name}{where}{similar}") from error
    except Exception as error:  # any exception of the builder
        raise request.error(brief(one_line(error))) from error


def _prepared(builder: Any, name: str, request: Request) -> Any:
    """Returns a builder of the same dataset with its examples on disk. TFDS prepares them if
    necessary.

    Raises:
        ConfigError: if TFDS cannot prepare them.
    """
    if builder.data_path.exists():
        return builder
    where = f"is not prepared in {builder.data_dir_root}"
    if importlib.util.find_spec("tensorflow") is None:  # otherwise it is missed after the download
        remedy = "preparing it needs TensorFlow: pip install '.[prepare]'"
        raise request.error(f"{where}, and {remedy}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # a network, a server or a disk
        if not builder.data_path.exists():  # no other process prepared it before
            remedy = f"{where}, and cannot be prepared: {brief(one_line(error))}"
            raise request.error(remedy) from error
    return _find_builder(name, request)


def _find_features(request: Request, info: Any) -> tuple[str, dict[str, str]]:
    """Returns the feature of the image, and the feature that each task learns.

    Raises:
        ConfigError: if there is no image, or if it has neither a label nor a mask.
    """
    kinds: Any = importlib.import_module("tensorflow_datasets").features
    # Sorted, because features from a file have no defined order.
    entries: dict[str, Any] = dict(sorted(getattr(info.features, "items", dict)()))
    first, second = (*(info.supervised_keys or ()), "", "")[:2]
    images = [
        name
        for name, kind in entries.items()
        if isinstance(kind, kinds.Image)
        and kind.shape[-1] in (1, 3)
        and np.dtype(kind.np_dtype) == np.uint8
    ]
    masks = [
        name
        for name in images
        if entries[name].shape[-1] == 1
        and (
            isinstance(entries[name], kinds.LabeledImage)
            or name == second
            or re.search("mask|segment", name)
        )
    ]
    images = [name for name in images if name not in masks]
    labels = [name for name, kind in entries.items() if isinstance(kind, kinds.ClassLabel)]
    # The features of the dataset's own task come first, followed by usual names.
    images.sort(key=lambda name: (name != first, name != "image"))
    labels.sort(key=lambda name: (name != second, name != "label"))
    masks.sort(key=lambda name: (not isinstance(entries[name], kinds.LabeledImage), name != second))
    found = {"classification": labels, "segmentation": masks}
    targets = {task: names[0] for task, names in found.items() if names}
    if not images or not targets:
        listed = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in entries.items())
        raise request.error(f"has no 8-bit image with a label or a mask; its features: {listed}")
    return images[0], targets


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsSource(ImageSource):
    """The examples of a split.

    Reading records as bytes and parsing only the required features is twice as fast as TFDS's own
    way, which parses every feature. Reading many records at a time is 5 times as fast as reading
    them one by one.

    Attributes:
        records: the stored bytes of the examples.
        where: name of the split in errors.
        image, target: names of features.
        first_class: the mask value of class 0. Smaller values are ignored.
    """

    records: Any
    where: str
    image: str
    target: str
    first_class: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def __getitems__(self, indices: Sequence[int]) -> Iterable[Example]:
        try:
            records = self.records.__getitems__(indices)
        except RuntimeError:  # one of them is broken, and reading each alone finds it
            return super().__getitems__(indices)
        stored = map(self._parsed, records)
        return (self.decoded(index, *each) for index, each in zip(indices, stored, strict=True))

    def stored(self, index: int) -> tuple[bytes, int | bytes]:
        try:
            return self._parsed(self.records[index])
        except RuntimeError as error:  # because ArrayRecord has a checksum of each record
            problem = f"cannot be read ({one_line(error)})"
            raise BadExample(self.name(index), problem) from error

    def _parsed(self, record: bytes) -> tuple[bytes, int | bytes]:
        protocol: Any = importlib.import_module("tensorflow_datasets.proto").tf_example_pb2
        features = protocol.Example.FromString(record).features.feature
        target, is_label = features[self.target], self.task == "classification"
        values = target.int64_list.value if is_label else target.bytes_list.value
        return features[self.image].bytes_list.value[0], values[0]

    def decode_mask(self, mask: Data, where: object) -> np.ndarray:
        # Below the first class, values wrap around to IGNORE_LABEL.
        return super().decode_mask(mask, where) - np.uint8(self.first_class)


def _records(request: Request, builder: Any, split: str, chosen: str) -> Any:
    """Returns the stored bytes of the examples of a split, a sequence that TFDS reads without
    TensorFlow.

    Raises:
        ConfigError: for a split that does not exist, or files without access by index.
    """
    library: Any = importlib.import_module("tensorflow_datasets")
    try:
        count = builder.info.splits[chosen].num_examples
        slices = library.core.ReadInstruction.from_spec(chosen).to_absolute(builder.info.splits)
    except (KeyError, ValueError) as error:
        available = ", ".join(builder.info.splits)
        remedy = f"{request.config.dataset} has the splits {available}; write e.g. train[:90%]"
        raise ConfigError(SPLIT_FLAGS[split], chosen, remedy) from error
    # TFDS would read train[2:1] to the end, and train[40:10] as -30 examples.
    if any(each.from_ and each.to is not None and each.from_ > each.to for each in slices):
        remedy = "a slice of it ends before it begins; write e.g. train[:90%]"
        raise ConfigError(SPLIT_FLAGS[split], chosen, remedy)
    if not count:
        return []
    method = library.decode.DeserializeMethod.RAW_BYTES
    try:
        return builder.as_data_source(chosen, deserialize_method=method, file_format="array_record")
    except (NotImplementedError, ValueError) as error:
        remedy = f"{builder.data_dir} holds no ArrayRecord files; have the set prepared anew"
        raise ConfigError("data_dir", builder.data_dir_root, remedy) from error
