"""Which datasets are there? One file per kind; it registers a function that returns a `Dataset`.

`--dataset NAME` or `--dataset NAME:ARGUMENT`, e.g. `folder:pictures`.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.registry import ConfigError, Registry

Example = dict[str, Any]
IGNORE_LABEL = 255  # pixels of a mask that count neither in the loss nor in the metrics
TARGET_FIELDS = {"classification": "labels", "segmentation": "masks", "regression": "targets"}


@runtime_checkable
class Source(Protocol):
    """Random access to the examples of one split, from several threads at a time.

    `source[i]` is a dict of `images` (uint8, H x W x C) and what the task wants to know: `labels` (a class number), `masks` (uint8,
    H x W, class numbers and IGNORE_LABEL), `targets` (uint8, H x W x C, an image), or for a task of your own what
    `Dataset.targets` declares. It raises BadExample for a broken one.
    A source may also have `__getitems__(numbers)` for reading several at once.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


class BadExample(ConfigError):
    """One example of many cannot be used; `--on-bad-example` decides what that means.

    Args:
        where: file or split and number.
        problem: what is wrong with it.
    """

    def __init__(self, where: object, problem: str) -> None:
        super().__init__("", where, f"{where}: {problem}; mend or remove it, or let --on-bad-example skip leave such out")
        self.where, self.problem = str(where), problem


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """A split that fits in memory.

    Attributes:
        images: uint8 (N, H, W, C).
        targets: as the task wants them, with the same N: integers (N,), masks (N, H, W) or images (N, H, W, C).
        field: `labels`, `masks` or `targets`.
    """

    images: np.ndarray
    targets: np.ndarray
    field: str = "labels"

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Example:
        return {"images": self.images[index], self.field: self.targets[index]}


@dataclasses.dataclass(frozen=True)
class Description:
    """What a trained model needs to know of its dataset, when the dataset itself is elsewhere: `dataset.json` of a run."""

    task: str
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    examples: dict[str, int]
    kind: str = ""

    @property
    def answer(self) -> str:
        """The task whose predictions have the form of this one's: classes, masks or images."""
        return self.kind or self.task


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits of a dataset, and what every user of it needs to know.

    Attributes:
        num_classes: classes of labels or masks; for regression the channels of a target.
        image_shape: (height, width, channels) of the stored images.
        mean, std: per channel, in the units of the stored pixels; images are normalized by them inside the compiled step.
        task: which its examples have targets for.
        augment: what `--augment` is by default.
        class_names: one per class, or none.
        defaults: settings that suit it, by name, where the user sets nothing; `model_kwargs` by model.
        targets: for a task of your own with a `target` of its own, shape and dtype of each such field of an example, whose name is
            none of `labels`, `masks` and `targets`.
        kind: which of the three tasks here `task` is like; `open_dataset` fills it in.
    """

    train: Source
    test: Source
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    task: str = "classification"
    augment: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    targets: Mapping[str, tuple[tuple[int, ...], Any]] = dataclasses.field(default_factory=dict)
    kind: str = ""

    def describe(self) -> Description:
        examples = {"train": len(self.train), "test": len(self.test)}
        names = self.class_names or tuple(map(str, range(self.num_classes)))
        kind = self.kind if self.kind != self.task else ""  # what is known of the three needs no second place
        return Description(self.task, self.num_classes, self.image_shape, self.mean, self.std, names, examples, kind)

    def fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and dtype of each field of an example."""
        if self.targets:
            return {"images": (self.image_shape, np.uint8), **self.targets}
        target = {
            "classification": ((), np.int32),
            "segmentation": (self.image_shape[:2], np.uint8),
            "regression": ((*self.image_shape[:2], self.num_classes), np.uint8),
        }[self.kind or self.task]
        return {"images": (self.image_shape, np.uint8), TARGET_FIELDS[self.kind or self.task]: target}


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of a dataset.

    Attributes:
        config: every setting about data.
        argument: what follows the colon of the dataset's name.
        tasks: the tasks that would do, preferred first; none for any.
    """

    config: DataConfig
    argument: str
    tasks: tuple[str, ...]

    def refuse(self, *settings: str) -> None:
        """Raises ConfigError if the user sets what this dataset has no use for."""
        for name in settings:
            if getattr(self.config, name) is not None:
                raise ConfigError(name, getattr(self.config, name), f"{self.config.dataset} does not take it")

    def choose(self, *available: str) -> str:
        """Returns the first wanted task among those that the dataset has targets for.

        Raises:
            ConfigError: if there is none.
        """
        for task in self.tasks or available:
            if task in available:
                return task
        raise _of_other_tasks(self.config, available, self.tasks)


def _of_other_tasks(config: DataConfig, available: Sequence[str], wanted: Sequence[str]) -> ConfigError:
    remedy = f"is for {' or '.join(available)}, but --model or --task asks for {' or '.join(wanted)}"
    return ConfigError("dataset", config.dataset, remedy)


_datasets: Registry[Callable[[Request], Dataset]] = Registry("dataset", "jaxdp.data.sources")
register = _datasets.register
names = _datasets.entries


def open_dataset(config: DataConfig | str, tasks: Sequence[str] = (), kind_of: Callable[[str], str] = lambda task: task) -> Dataset:
    """Opens a dataset whose splits are `CheckedSource`s.

    Args:
        config: settings, or a dataset's name alone.
        tasks: the tasks that would do, preferred first; none for any.
        kind_of: tells which of the three tasks here a task of your own is like.

    Raises:
        ConfigError: for an unknown name, a task that it has no targets for, or a split without examples.
    """
    config = DataConfig(dataset=config) if isinstance(config, str) else config
    name, _, argument = (config.dataset or "").partition(":")
    dataset = _datasets[name](Request(config, argument, tuple(tasks)))
    if tasks and dataset.task not in tasks:
        raise _of_other_tasks(config, (dataset.task,), tasks)
    dataset = dataclasses.replace(dataset, kind=kind_of(dataset.task))
    for split, flag in ((dataset.train, "train_split"), (dataset.test, "test_split")):
        if len(split) == 0:
            raise ConfigError(flag, getattr(config, flag) or flag.removesuffix("_split"), f"{config.dataset} has no example there")
    dataset = _resized(dataset, config)
    skip = config.on_bad_example == "skip"
    train = CheckedSource(dataset.train, dataset, where=f"{config.dataset} train", skip=skip)
    test = CheckedSource(dataset.test, dataset, where=f"{config.dataset} test", skip=skip)
    return dataclasses.replace(dataset, train=train, test=test)


def _resized(dataset: Dataset, config: DataConfig) -> Dataset:
    """Resizes what its own source did not."""
    if config.image_size is None:
        return dataset
    from jaxdp.data.sources.images import Fitted, parse_size

    size = parse_size(config.image_size)
    if dataset.image_shape[:2] == size:
        return dataset
    image_shape = (*size, dataset.image_shape[2])
    return dataclasses.replace(dataset, train=Fitted(dataset.train, size), test=Fitted(dataset.test, size), image_shape=image_shape)


class CheckedSource:
    """A source whose examples have the shapes that the dataset promises, and a weight: 1, or 0 for a bad one that is left out.

    Args:
        where: names the split in errors.
        skip: whether to leave bad examples out, and count them in `skipped`, instead of raising.
    """

    def __init__(self, source: Source, dataset: Dataset, *, where: str, skip: bool) -> None:
        self._source, self._where, self._skip = source, where, skip
        self._fields, self._num_classes = dataset.fields(), dataset.num_classes
        self._lock = threading.Lock()
        self.skipped: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._source)

    @property
    def bytes(self) -> int:
        """Returns how much memory all examples take."""
        example = sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in self._fields.values())
        return len(self) * (example + 4)

    def __getitem__(self, index: int) -> Example:
        try:
            return self._checked(self._source[index], index)
        except BadExample as error:
            return self._left_out(index, error)

    def read(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns a batch of the examples of these numbers."""
        several: Any = getattr(self._source, "__getitems__", None)
        try:
            if several is None:
                examples = [self[number] for number in numbers]
            else:
                found = zip(several(list(numbers)), numbers, strict=True)
                examples = [self._checked(example, number) for example, number in found]
        except BadExample:
            if not self._skip:
                raise
            examples = [self[number] for number in numbers]
        return {name: np.stack([example[name] for example in examples]) for name in examples[0]}

    def _left_out(self, index: int, error: BadExample) -> Example:
        if not self._skip:
            raise error
        with self._lock:
            self.skipped[index] = f"{error.where}: {error.problem}"
        zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._fields.items()}
        return zeros | {"weights": np.float32(0)}

    def _checked(self, example: Mapping[str, Any], index: int) -> Example:
        checked: Example = {"weights": np.float32(1)}
        for name, (shape, dtype) in self._fields.items():
            value = np.asarray(example[name])
            if value.shape != shape:
                raise BadExample(self._name(index), f"its {name} have the shape {value.shape}, not {shape}")
            if not np.can_cast(value.dtype, dtype, "same_kind") or (np.dtype(dtype) == np.uint8 and value.dtype != np.uint8):
                raise BadExample(self._name(index), f"its {name} are {value.dtype}, not {np.dtype(dtype)}")
            checked[name] = value.astype(dtype, copy=False)
        if "labels" in checked and not 0 <= int(checked["labels"]) < self._num_classes:
            raise BadExample(self._name(index), f"its label {checked['labels']} is not one of 0 to {self._num_classes - 1}")
        if "masks" in checked:
            self._check_mask(checked["masks"], index)
        return checked

    def _check_mask(self, mask: np.ndarray, index: int) -> None:
        if mask.max(initial=0) >= self._num_classes:
            wrong = np.unique(mask[(mask >= self._num_classes) & (mask != IGNORE_LABEL)])
            if len(wrong):
                allowed = f"0 to {self._num_classes - 1}, or {IGNORE_LABEL} for pixels to ignore"
                raise BadExample(self._name(index), f"its mask has the value {wrong[0]}, not one of {allowed}")

    def _name(self, index: int) -> str:
        """A source may know better what an example is called, e.g. its file."""
        name: Any = getattr(self._source, "name", None)
        return name(index) if name else f"{self._where}[{index}]"
