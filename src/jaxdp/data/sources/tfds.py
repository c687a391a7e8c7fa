"""Images from TensorFlow Datasets, read without TensorFlow: `--dataset tfds:NAME`, and a few by
their bare names.
"""

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data import image_file, sources
from jaxdp.data.dataset import BadExample, BaseSource, Dataset, Example
from jaxdp.data.request import NOT_GIVEN, SPLIT_FLAGS, Request
from jaxdp.data.resize import Resize
from jaxdp.data.sources import preparation
from jaxdp.data.splits import name_splits
from jaxdp.registry import ConfigError

_NAME = re.compile(r"\w+(/[\w.+-]+)?(:\d+\.\d+\.\d+)?")
_TRAIN_ONLY = (
    "the set comes without a test split; hold some of it out: --validation 0.1, "
    'or --train-split "train[:90%]" --test-split "train[90%:]"'
)
# Settings that suit a set, which TensorFlow Datasets does not have. Mean and deviation are given
# where the published ones were computed again.
_KNOWN: dict[str, dict[str, Any]] = {
    "cifar10": {
        "mean": (125.3, 123.0, 113.9),
        "std": (63.0, 62.1, 66.7),
        "augment": ("pad_crop:4", "flip"),
    },
    "cifar100": {"augment": ("pad_crop:4", "flip")},
    "mnist": {"mean": (33.3,), "std": (78.6,), "augment": ("shift:2",), "defaults": {"epochs": 3}},
    "fashion_mnist": {"augment": ("pad_crop:2", "flip")},
    "oxford_iiit_pet": {"augment": ("flip",)},
}
# Classes of masks with values from 1 on.
_MASK_NAMES = {"oxford_iiit_pet": ("pet", "background", "border")}


@sources.register("tfds")
def tfds(request: Request, bare_name: str = "") -> Dataset:
    """Returns any set of images with labels or masks, prepared on first use.

    The splits are in TFDS's own language.

    Raises:
        ConfigError: for an unknown name, version or split, a set of another kind, or one that can
            be neither found nor prepared.
    """
    config = request.config
    name = ":".join(filter(None, (bare_name, request.argument)))
    if not _NAME.fullmatch(name):
        forms = "tfds:NAME, tfds:NAME/CONFIG or tfds:NAME:VERSION"
        if bare_name:
            forms = f"{bare_name}, or {bare_name}:VERSION"
        raise request.error(f"write {forms}")
    request.refuse("channels", "tiff", "instances")
    builder = preparation.find_builder(name, request)
    fields = _find_fields(request, builder.info)
    task = request.choose(*fields.targets)  # before a download that would be of no use
    builder = preparation.prepared(builder, name, request)
    augment = ("flip", "flip_vertical") if task == "segmentation" else ()
    known: dict[str, Any] = {"augment": augment} | _KNOWN.get(builder.name, {})
    feature = builder.info.features[fields.targets[task]]
    classes, names = getattr(feature, "num_classes", 0), getattr(feature, "names", None) or ()
    first_class = 0
    if task == "segmentation" and config.mask_values is not None:
        names = ()  # `--mask-values` has an order of its own
    elif task == "segmentation" and builder.name in _MASK_NAMES:
        names, first_class = _MASK_NAMES[builder.name], 1
        classes = len(names)
    splits: dict[str, Any] = {
        split: TfdsSource(
            _records(request, builder, split, chosen),
            f"tfds {name} {chosen}",
            fields,
            task,
            config.mask_values,
            first_class,
        )
        for split, chosen in _splits(request, builder).items()
    }
    return Dataset(
        **splits,
        task=task,
        num_classes=classes or 0,
        class_names=tuple(names),
        image_shape=(*fields.size, fields.channels),
        **known,
    )


for _name in _KNOWN:
    sources.register(_name)(functools.partial(tfds, bare_name=_name))


def _splits(request: Request, builder: Any) -> dict[str, str]:
    """Returns what each split is in TFDS's language."""
    name, available = request.config.dataset, list(builder.info.splits)
    found = name_splits(request, available)
    if request.validation_share is not None:
        found.pop("validation", None)
    if "train" not in found:
        remedy = f"{name} has no split named train, but {', '.join(available)}"
        raise ConfigError("train_split", NOT_GIVEN, remedy)
    if len(found) == 1 and request.validation_share is None:
        others = ", ".join(name for name in available if name != "train")
        lacks = f"{name} has no split named test or validation, but {others}; name one"
        raise ConfigError("test_split", NOT_GIVEN, lacks if others else _TRAIN_ONLY)
    return found


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The features of a set that are the image and its targets.

    Attributes:
        targets: the feature that each task learns.
        size: of the images; zeros if they differ or it is not known.
    """

    image: str
    targets: Mapping[str, str]
    channels: int
    size: tuple[int, int]


def _find_fields(request: Request, info: Any) -> _Fields:
    """Raises ConfigError if there is no image, or neither a label nor a mask of it."""
    kinds: Any = importlib.import_module("tensorflow_datasets").features
    # Sorted, since features that come from a file come in any order.
    entries: dict[str, Any] = dict(sorted(getattr(info.features, "items", dict)()))
    supervised = info.supervised_keys or ()
    channels = {
        name: feature.shape[-1]
        for name, feature in entries.items()
        if isinstance(feature, kinds.Image)
        and len(feature.shape) == 3
        and np.dtype(feature.np_dtype) == np.uint8
    }
    grey = [name for name in channels if channels[name] == 1]
    masks = (
        [name for name in grey if isinstance(entries[name], kinds.LabeledImage)]
        or [name for name in grey if name in supervised[1:]]
        or [name for name in grey if re.search("mask|segment", name)]
    )
    images = [name for name in channels if channels[name] in (1, 3) and name not in masks]
    labels = [name for name, kind in entries.items() if isinstance(kind, kinds.ClassLabel)]
    image = _preferred(images, [*supervised[:1], "image"])
    label = _preferred(labels, [*supervised[1:], "label"])
    found = {"classification": label, "segmentation": _preferred(masks)}
    targets = {task: name for task, name in found.items() if name}
    if not image or not targets:
        listed = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in entries.items())
        raise request.error(
            "has no 8-bit image with a label or a mask; its features:"
            f" {listed or type(info.features).__name__}"
        )
    height, width, _ = entries[image].shape
    size = (height, width) if height and width else (0, 0)
    return _Fields(image, targets, channels[image], size)


def _preferred(available: Sequence[str], preferred: Sequence[str] = ()) -> str:
    return next((name for name in (*preferred, *available) if name in available), "")


@dataclasses.dataclass(frozen=True)
class TfdsSource(BaseSource):
    """The examples of a split.

    Reading records as bytes and taking from them what is needed is 4 times as fast as TFDS's own
    way, which parses every feature and decodes images by way of several copies; reading many at a
    time is 5 times as fast as one by one.

    Attributes:
        first_class: the value of a mask that is class 0; smaller ones are ignored.
    """

    records: Any
    where: str
    fields: _Fields
    task: str
    mask_values: MaskValues | None = None
    first_class: int = 0
    resize: Resize | None = None

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def resized_to(self, resize: Resize | None) -> "TfdsSource":
        return dataclasses.replace(self, resize=resize if self.task == "classification" else None)

    def __getitem__(self, index: int) -> Example:
        return self._example(self._features(index), index)

    def __getitems__(self, indices: Sequence[int]) -> Iterator[Example]:
        try:
            records = self.records.__getitems__(indices)
        except RuntimeError:  # one of them is broken: read alone, it says which
            return map(self.__getitem__, indices)
        return map(self._example, map(_parse, records), indices)

    def _label(self, index: int) -> int:
        try:
            return self._target(self._features(index), index)
        except BadExample:
            return -1

    def stored_mask(self, index: int) -> tuple[np.ndarray, str]:
        data, name = _bytes(self._features(index), self.fields.targets[self.task]), self.name(index)
        read = image_file.read_mask if self.mask_values is None else image_file.decode_mask
        return read(data, name, self.mask_values), name

    def _features(self, index: int) -> Mapping[str, Any]:
        try:
            return _parse(self.records[index])
        except RuntimeError as error:  # ArrayRecord has a checksum of each record
            reason = " ".join(str(error).split())
            raise BadExample(self.name(index), f"cannot be read ({reason})") from error

    def _example(self, stored: Mapping[str, Any], index: int) -> Example:
        data, name = _bytes(stored, self.fields.image), self.name(index)
        pixels, _ = image_file.read_image(data, name, self.fields.channels, resize=self.resize)
        field = "labels" if self.task == "classification" else "masks"
        return {"images": pixels, field: self._target(stored, index)}

    def _target(self, stored: Mapping[str, Any], index: int) -> Any:
        field = self.fields.targets[self.task]
        if self.task == "classification":
            return stored[field].int64_list.value[0]
        mask = image_file.decode_mask(_bytes(stored, field), self.name(index), self.mask_values)
        # Below the first class, values wrap around to IGNORE_LABEL.
        return mask - np.uint8(self.first_class)


def _parse(record: bytes) -> Mapping[str, Any]:
    protocol: Any = importlib.import_module("tensorflow_datasets.proto").tf_example_pb2
    return protocol.Example.FromString(record).features.feature


def _bytes(stored: Mapping[str, Any], name: str) -> bytes:
    return stored[name].bytes_list.value[0]


def _records(request: Request, builder: Any, split: str, chosen: str) -> Any:
    """Returns the stored bytes of the examples of a split, a sequence that TFDS reads without
    TensorFlow.

    Raises:
        ConfigError: for a split that there is not, or files that give no access by index.
    """
    library: Any = importlib.import_module("tensorflow_datasets")
    try:
        count = builder.info.splits[chosen].num_examples
    except (KeyError, ValueError) as error:
        known = ", ".join(builder.info.splits)
        remedy = f"{request.config.dataset} has the splits {known}; write e.g. train[:90%]"
        raise ConfigError(SPLIT_FLAGS[split], chosen, remedy) from error
    if not count:
        return []
    method = library.decode.DeserializeMethod.RAW_BYTES
    try:
        return builder.as_data_source(chosen, deserialize_method=method, file_format="array_record")
    except (NotImplementedError, ValueError) as error:
        remedy = (
            f"{builder.data_dir} holds no ArrayRecord files, which are needed to read examples in"
            " any order; choose another folder, or remove that one to have it prepared anew"
        )
        raise ConfigError("data_dir", builder.data_dir_root, remedy) from error
