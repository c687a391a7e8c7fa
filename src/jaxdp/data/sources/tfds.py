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
from jaxdp.data import sources
from jaxdp.data.sources import images, preparation
from jaxdp.data.sources.fitting import ImageSize
from jaxdp.data.sources.masks import Distinct
from jaxdp.data.sources.statistics import Properties, create_dataset
from jaxdp.registry import ConfigError

_NAME = re.compile(r"\w+(/[\w.+-]+)?(:\d+\.\d+\.\d+)?")
_TRAIN_ONLY = (
    "the set comes without a test split; hold some of it out: --validation 0.1, "
    'or --train-split "train[:90%]" --test-split "train[90%:]"'
)


@dataclasses.dataclass(frozen=True)
class _Known:
    """The facts about a set that TensorFlow Datasets does not tell.

    Attributes:
        moments: mean and standard deviation of the training images; None where nobody here has
            recomputed the published ones.
        augment: by task.
        mask_names: what the values 1, 2, ... of a mask stand for, where they do not begin with 0.
    """

    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    augment: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    mask_names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_AUGMENT = {"segmentation": ("flip", "flip_vertical")}
_KNOWN = {
    "cifar10": _Known(
        ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
        {"classification": ("pad_crop:4", "flip")},
    ),
    "cifar100": _Known(None, {"classification": ("pad_crop:4", "flip")}),
    "mnist": _Known(
        ((33.3,), (78.6,)),
        {"classification": ("shift:2",)},
        defaults={"epochs": 3},
    ),
    "fashion_mnist": _Known(None, {"classification": ("pad_crop:2", "flip")}),
    "oxford_iiit_pet": _Known(
        None,
        {"classification": ("flip",), "segmentation": ("flip",)},
        mask_names=("pet", "background", "border"),
    ),
}


@sources.register("tfds")
def tfds(request: sources.Request) -> sources.Dataset:
    """Returns any set of images with labels or masks, prepared on first use.

    The splits are in TFDS's own language.

    Raises:
        ConfigError: for an unknown name, version or split, a set of another kind, or one that can
            be neither found nor prepared.
    """
    if not _NAME.fullmatch(request.argument):
        raise request.error("write tfds:NAME, tfds:NAME/CONFIG or tfds:NAME:VERSION")
    return _open(request, request.argument)


def _open_by_bare_name(name: str, request: sources.Request) -> sources.Dataset:
    full_name = f"{name}:{request.argument}" if request.argument else name
    if not _NAME.fullmatch(full_name):
        raise request.error(f"write {name}, or {name}:VERSION")
    return _open(request, full_name)


for _name in _KNOWN:
    sources.register(_name)(functools.partial(_open_by_bare_name, _name))


def _open(request: sources.Request, name: str) -> sources.Dataset:
    request.refuse("channels", "tiff", "instances")
    builder = preparation.find_builder(name, request.config)
    fields = _Fields.of(request, builder)
    task = request.choose(*fields.tasks)  # before a download that would be of no use
    known = _KNOWN.get(builder.name, _Known())
    target = fields.label if task == "classification" else fields.mask
    builder = preparation.prepared(builder, name, request.config)
    parts = {
        part: _Records(
            _records(request, builder, flag, split), f"tfds {name} {split}", fields, task
        )
        for part, (flag, split) in _splits(request, builder).items()
    }
    properties = Properties(
        num_classes=getattr(builder.info.features[target], "num_classes", None),
        class_names=tuple(getattr(builder.info.features[target], "names", None) or ()),
        size=fields.size,
        moments=known.moments,
        augment=known.augment.get(task, _AUGMENT.get(task, ())),
    )
    if request.config.mask_values is not None:
        # In whose order the values need not be.
        properties = dataclasses.replace(properties, class_names=())
    elif task == "segmentation" and known.mask_names:
        numbering = (np.arange(256) - 1).astype(np.uint8)  # 0 becomes 255, to be ignored
        names = known.mask_names
        properties = dataclasses.replace(
            properties, num_classes=len(names), class_names=names, numbering=numbering
        )
    dataset = create_dataset(request, task, parts, properties, parts["train"].distinct)
    return dataclasses.replace(dataset, defaults=known.defaults)


def _splits(request: sources.Request, builder: Any) -> dict[str, tuple[str, str]]:
    """Returns of each split the setting that chooses it and what it is in the language of TFDS."""
    config, available = request.config, list(builder.info.splits)
    train = config.train_split or ("train" if "train" in available else None)
    if train is None:
        raise ConfigError(
            "train_split",
            "(not given)",
            f"{config.dataset} has no split named train, but {', '.join(available)}",
        )
    test = config.test_split or ("test" if "test" in available else None)
    own = (
        "validation"
        if "validation" in available and test != "validation" and config.validation is None
        else None
    )
    found = {
        "train": ("train_split", train),
        "validation": ("validation", request.validation_split or own),
        "test": ("test_split", test),
    }
    if test is None and found["validation"][1] is None and request.validation_share is None:
        others = ", ".join(name for name in available if name != "train")
        remedy = (
            f"{config.dataset} has no split named test or validation, but {others}; name one"
            if others
            else _TRAIN_ONLY
        )
        raise ConfigError("test_split", "(not given)", remedy)
    return {part: (flag, split) for part, (flag, split) in found.items() if split is not None}


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The features of a dataset that are the image and its targets.

    Attributes:
        size: of the images, None if they differ or nobody knows.
        mask_values: `--mask-values`.
        fit: the size to which images with labels are going to be resized; None for their own.
    """

    image: str
    label: str | None
    mask: str | None
    channels: int
    size: images.Size | None
    mask_values: MaskValues | None = None
    fit: ImageSize | None = None

    @property
    def tasks(self) -> list[str]:
        return [
            task
            for task, name in (("classification", self.label), ("segmentation", self.mask))
            if name
        ]

    @classmethod
    def of(cls, request: sources.Request, builder: Any) -> "_Fields":
        """Raises ConfigError if there is no image, or neither a label nor a mask of it."""
        library: Any = importlib.import_module("tensorflow_datasets")
        features = builder.info.features
        # Sorted, since features that come from a file come in any order.
        entries = (
            dict(sorted(features.items()))
            if isinstance(features, library.features.FeaturesDict)
            else {}
        )
        supervised = builder.info.supervised_keys or ()
        preferred = [name for name in supervised if isinstance(name, str)]
        pictures = {
            name: feature
            for name, feature in entries.items()
            if isinstance(feature, library.features.Image)
            and len(feature.shape) == 3
            and np.dtype(feature.np_dtype) == np.uint8
        }
        grey = [name for name, feature in pictures.items() if feature.shape[-1] == 1]
        labeled = [
            name for name in grey if isinstance(pictures[name], library.features.LabeledImage)
        ]
        masks = (
            labeled
            or [name for name in grey if name in preferred[1:]]
            or [name for name in grey if re.search("mask|segment", name)]
        )
        colours = [
            name
            for name, feature in pictures.items()
            if feature.shape[-1] in (1, 3) and name not in masks
        ]
        image = next(
            (name for name in (*preferred[:1], "image", *colours) if name in colours), None
        )
        labels = [
            name
            for name, feature in entries.items()
            if isinstance(feature, library.features.ClassLabel)
        ]
        label = next((name for name in (*preferred[1:], "label", *labels) if name in labels), None)
        if image is None or not (label or masks):
            kinds = (
                ", ".join(f"{name} ({type(feature).__name__})" for name, feature in entries.items())
                or type(features).__name__
            )
            remedy = f"has no 8-bit image with a label or a mask; its features: {kinds}"
            raise request.error(remedy)
        height, width, channels = pictures[image].shape
        size = (height, width) if height and width else None
        fit = ImageSize.asked(request.config.image_size)
        return cls(
            image,
            label,
            masks[0] if masks else None,
            channels,
            size,
            request.config.mask_values,
            fit,
        )


class _Records:
    """The examples of a split.

    Reading records as bytes and taking from them what is needed is 4 times as fast as TFDS's own
    way, which parses every feature and decodes images by way of several copies; reading many at a
    time is 5 times as fast as one by one.
    """

    def __init__(self, records: Any, where: str, fields: _Fields, task: str) -> None:
        protocol: Any = importlib.import_module("tensorflow_datasets.proto").tf_example_pb2
        self._records, self._where, self._fields, self._task = records, where, fields, task
        self._parse = protocol.Example.FromString

    def __len__(self) -> int:
        return len(self._records)

    def name(self, index: int) -> str:
        return f"{self._where}[{index}]"

    def __getitem__(self, index: int) -> sources.Example:
        return self._example(self._record(index), index)

    def __getitems__(self, numbers: Sequence[int]) -> Iterator[sources.Example]:
        several: Any = getattr(self._records, "__getitems__", None)
        try:
            records = several(numbers)
        except RuntimeError:  # one of them is broken: read alone, it says which
            records = [self._record(number) for number in numbers]
        return map(self._example, records, numbers)

    def labels(self) -> list[int]:
        """Returns all labels; those of broken records are -1."""
        name, found = self._fields.label, []
        for index in range(len(self)):
            try:
                found.append(
                    self._parse(self._record(index)).features.feature[name].int64_list.value[0]
                )
            except sources.BadExample:
                found.append(-1)
        return found

    def distinct(self, index: int) -> Distinct:
        """Returns what the mask of an example holds: stored values, or class numbers where
        `--mask-values` tells them.
        """
        assert self._fields.mask is not None
        stored, values = (
            self._bytes(self._parse(self._record(index)), self._fields.mask),
            self._fields.mask_values,
        )
        read = images.read_mask if values is None else images.decode_mask
        return Distinct.of(read(stored, self.name(index), values), self.name(index))

    def _record(self, index: int) -> bytes:
        try:
            return self._records[index]
        except RuntimeError as error:  # ArrayRecord has a checksum of each record
            raise sources.BadExample(
                self.name(index), f"cannot be read ({' '.join(str(error).split())})"
            ) from error

    def _example(self, record: bytes, index: int) -> sources.Example:
        stored, fields, where = self._parse(record), self._fields, self.name(index)
        data = self._bytes(stored, fields.image)
        if self._task == "classification":
            pixels = images.decode_image(
                data, where, fields.channels, reduction=fields.fit and fields.fit.reduction
            )
            return {
                "images": pixels,
                "labels": stored.features.feature[fields.label].int64_list.value[0],
            }
        assert fields.mask is not None
        pixels = images.decode_image(data, where, fields.channels)
        return {
            "images": pixels,
            "masks": images.decode_mask(
                self._bytes(stored, fields.mask), where, fields.mask_values
            ),
        }

    @staticmethod
    def _bytes(stored: Any, name: str) -> bytes:
        return stored.features.feature[name].bytes_list.value[0]


def _records(request: sources.Request, builder: Any, flag: str, split: str) -> Any:
    """Returns the stored bytes of the examples of a split, a sequence that TFDS reads without
    TensorFlow.

    Raises:
        ConfigError: for a split that there is not, or files that give no access by number.
    """
    library: Any = importlib.import_module("tensorflow_datasets")

    try:
        count = builder.info.splits[split].num_examples
    except (KeyError, ValueError) as error:
        remedy = (
            f"{request.config.dataset} has the splits {', '.join(builder.info.splits)}; write e.g."
            " train[:90%]"
        )
        raise ConfigError(flag, split, remedy) from error
    if not count:
        return []
    method = library.decode.DeserializeMethod.RAW_BYTES
    try:
        return builder.as_data_source(split, deserialize_method=method, file_format="array_record")
    except (NotImplementedError, ValueError) as error:
        remedy = (
            f"{builder.data_dir} holds no ArrayRecord files, which are needed to read examples in"
            " any order; choose another"
        )
        raise ConfigError(
            "data_dir",
            builder.data_dir_root,
            f"{remedy} folder, or remove that one to have it prepared anew",
        ) from error
