"""A dataset: its splits, and what a model, a task and a report need to know of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.registry import ConfigError

Example = dict[str, Any]
IGNORE_LABEL = 255  # pixels of a mask that count neither in the loss nor in the metrics
OUTSIDE = -1  # in place of an object's number: pixels beyond those that there are
DTYPES = ("uint8", "uint16", "float32")  # of pixels, from narrow to wide
TARGET_FIELDS = {"classification": "labels", "segmentation": "masks", "regression": "targets"}


@runtime_checkable
class Source(Protocol):
    """Random access to the examples of one split, from several threads at a time.

    `source[i]` is a dict of `images` (`Dataset.dtype`, mostly uint8, H x W x C) and what the task
    wants to know: `labels` (a class number), `masks` (uint8, H x W, class numbers and IGNORE_LABEL;
    of a dataset whose objects are told apart int32, their numbers), `targets` (uint8, H x W x C, an
    image), or for a task of your own what `Dataset.targets` declares. It raises BadExample for a
    broken one. A source may also have `__getitems__(numbers)` for reading several at once. With an
    attribute `reads_in_processes = True`, `--data-workers` processes read it instead of threads:
    for one that computes in Python, which one thread at a time can do. Each process has a copy of
    the source, so that it must be possible to pickle it.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


def reads_in_processes(source: object) -> bool:
    """Returns whether a source asks to be read by processes.

    One that changes those of another, its `source`, does as that one.
    """
    asked: Any = getattr(source, "reads_in_processes", None)
    inner: Any = getattr(source, "source", None)
    return bool(asked) if asked is not None or inner is None else reads_in_processes(inner)


class BadExample(ConfigError):
    """One example of many cannot be used; `--on-bad-example` decides what that means.

    Args:
        where: file or split and number.
        problem: what is wrong with it.
    """

    def __init__(self, where: object, problem: str) -> None:
        remedy = "fix or remove it, or leave such examples out with --on-bad-example skip"
        super().__init__("", where, f"{where}: {problem}; {remedy}")
        self.where, self.problem = str(where), problem

    def __reduce__(self) -> Any:
        return BadExample, (self.where, self.problem)


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """A split that fits in memory.

    Attributes:
        images: uint8, uint16 or float32 (N, H, W, C).
        targets: as the task wants them, with the same N: integers (N,), masks (N, H, W) or images
            (N, H, W, C).
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
    """What a trained model needs to know of its dataset, when the dataset itself is elsewhere:
    `dataset.json` of a run.

    Attributes:
        dtype: of the stored pixels: `uint8`, `uint16` or `float32`.
        pixel_range: the stored values that become 0 and 255 before anything else, for pixels other
            than uint8.
        instances: whether the classes are background, cell and border, from which objects are told
            apart.
    """

    task: str
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    examples: dict[str, int]
    kind: str = ""
    dtype: str = "uint8"
    pixel_range: tuple[float, float] | None = None
    instances: bool = False

    @property
    def has_validation(self) -> bool:
        """Whether there are validation data, without which no checkpoint is the best."""
        return "validation" in self.examples

    @property
    def final_split(self) -> str:
        """The split whose metrics are the result: test, or validation where there are no test
        data.
        """
        return "test" if "test" in self.examples else "validation"

    @property
    def answer(self) -> str:
        """The task whose predictions have the form of this one's: classes, masks or images."""
        return self.kind or self.task


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits of a dataset, and what every user of it needs to know.

    Attributes:
        test: None for a dataset without test data.
        num_classes: classes of labels or masks; for regression the channels of a target.
        image_shape: (height, width, channels) of the stored images.
        mean, std: per channel, in the units of the stored pixels; images are normalized by them
            inside the compiled step. With a `pixel_range`, in units of 0 to 255.
        task: which its examples have targets for.
        augment: what `--augment` is by default.
        class_names: one per class, or none.
        defaults: settings that suit it, by name, where the user sets nothing; `model_kwargs` by
            model, and `learning_rate` by optimizer.
        targets: for a task of your own with a `target` of its own, shape and dtype of each such
            field of an example, whose name is none of `labels`, `masks` and `targets`.
        kind: which of the three tasks here `task` is like; `check_dataset` fills it in.
        validation: None for a dataset without validation data.
        name: what titles and errors call it.
        settings: those that open it again; None for one that exists in memory alone.
        dtype: of the stored pixels: `uint8`, `uint16` or `float32`.
        pixel_range: the stored values that become 0 and 255 inside the compiled step, which goes on
            beyond them; None for uint8.
        padded: whether images were filled up to `image_shape` at the bottom and on the right, where
            their masks are to be ignored.
        instances: whether the masks of the sources are numbers of objects, int32 with 0 for
            background. What is learned of them, which `data.instances` makes, is in `masks`, the
            classes background, cell and border, and in `border_weights`.
    """

    train: Source
    test: Source | None
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    task: str = "classification"
    augment: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    targets: Mapping[str, tuple[tuple[int, ...], Any]] = dataclasses.field(
        default_factory=dict[str, Any]
    )
    kind: str = ""
    validation: Source | None = None
    name: str = ""
    settings: DataConfig | None = None
    dtype: str = "uint8"
    pixel_range: tuple[float, float] | None = None
    padded: bool = False
    instances: bool = False

    def splits(self) -> dict[str, Source]:
        """Returns the splits that there are, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in splits.items() if source is not None}

    @property
    def evaluation_split(self) -> str | None:
        """The split that a run is judged by while it trains: validation, else test.

        None without either.
        """
        return next((name for name in ("validation", "test") if name in self.splits()), None)

    def describe(self) -> Description:
        examples = {name: len(source) for name, source in self.splits().items()}
        names = self.class_names or tuple(map(str, range(self.num_classes)))
        # What is known of the three needs no second place.
        kind = self.kind if self.kind != self.task else ""
        return Description(
            self.task,
            self.num_classes,
            self.image_shape,
            self.mean,
            self.std,
            names,
            examples,
            kind,
            self.dtype,
            self.pixel_range,
            self.instances,
        )

    def fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and dtype of each field of an example."""
        if self.targets:
            return {"images": (self.image_shape, np.dtype(self.dtype)), **self.targets}
        target = {
            "classification": ((), np.int32),
            "segmentation": (self.image_shape[:2], np.uint8),
            "regression": ((*self.image_shape[:2], self.num_classes), np.uint8),
        }[self.kind or self.task]
        weights = {"border_weights": (self.image_shape[:2], np.float16)} if self.instances else {}
        return {
            "images": (self.image_shape, np.dtype(self.dtype)),
            TARGET_FIELDS[self.kind or self.task]: target,
        } | weights
