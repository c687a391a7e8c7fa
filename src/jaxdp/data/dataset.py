"""Defines a dataset: its splits, and the facts that a model, a task and a report require."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data.source import Source

IGNORE_LABEL = 255  # pixels of a mask that count neither in the loss nor in the metrics
PAD_LABEL = -1  # instance label of padding pixels of an image
DTYPES = ("uint8", "uint16", "float32")  # of pixels, in ascending order of size
TARGET_FIELDS = {"classification": "labels", "segmentation": "masks", "regression": "targets"}
# The field of a task whose target is a vector for each image, and its dtype.
VECTOR_FIELDS = {"multilabel": ("present", "uint8"), "scalar_regression": ("values", "float32")}
NOT_FINITE = "has NaN or infinite pixels"
# How many widths of the range a pixel may be outside the range, so that sums of squares of pixels
# stay finite in float32.
_FARTHEST = 1e12


def kind_of(task: str) -> str:
    """Returns the built-in task whose models and pictures suit a task of jaxdp's own."""
    return "classification" if task in VECTOR_FIELDS else task


def pixel_problem(darkest: float, brightest: float, pixel_range: tuple[float, float]) -> str:
    """Returns why a step cannot compute with an image of floats, or "" if it can.

    Args:
        darkest, brightest: of its pixels; NaN if any pixel is NaN.
        pixel_range: of the dataset.
    """
    if not (math.isfinite(darkest) and math.isfinite(brightest)):
        return NOT_FINITE
    low, high = pixel_range
    below, above = low - darkest, brightest - high
    if max(below, above) <= _FARTHEST * (high - low):
        return ""
    outlier = darkest if below > above else brightest
    return f"has a pixel of {outlier:g}, where the pixels of the dataset are {low:g} to {high:g}"


def native(array: np.ndarray) -> np.ndarray:
    """Returns an array with the byte order of this machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Facts of a dataset that a model requires. Zeros and empty tuples mean unknown facts, which
    `open_dataset` measures.

    Attributes:
        task: the task for which the examples have targets.
        num_classes: number of classes of labels or masks; for regression, of channels of a target;
            for `scalar_regression`, of numbers.
        image_shape: (height, width, channels) of the training images.
        mean, std: per channel, in the units of the stored pixels; images are normalized by them
            inside the compiled step. With a `pixel_range`, in units of 0 to 255.
        class_names: one per class, or none.
        kind: the built-in task that `task` resembles, which `check_dataset` fills in.
        dtype: of the stored pixels: `uint8`, `uint16` or `float32`.
        pixel_range: the stored values that become 0 and 255 inside the compiled step, linearly and
            without clipping; None for uint8.
        instances: whether the masks of the sources are instance labels, int32 with 0 for
            background. The classes are then the outputs of `tasks.InstanceSegmentation`.
        mask_values: values of the training masks, if no setting declares which values are classes.
        value_mean, value_std: of each number of `scalar_regression` over the training set.
        pixel_size: height and width in micrometres of a pixel of the training images; empty if
            they are resized, or if their files have no pixel size or several.
        spread: lowest and highest mean, and lowest and highest standard deviation, of a training
            image as stored; empty if unknown.
    """

    task: str = "classification"
    num_classes: int = 0
    image_shape: tuple[int, int, int] = (0, 0, 0)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    kind: str = ""
    dtype: str = "uint8"
    pixel_range: tuple[float, float] | None = None
    instances: bool = False
    mask_values: tuple[int, ...] = ()
    value_mean: tuple[float, ...] = ()
    value_std: tuple[float, ...] = ()
    pixel_size: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    @property
    def answer(self) -> str:
        """The built-in task that predicts in the same form: classes, masks or images."""
        return self.kind or kind_of(self.task)

    def stored_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and standard deviation per channel, as pixels are stored."""
        low, high = self.pixel_range or (0.0, 255.0)
        scale = (high - low) / 255
        return low + scale * np.array(self.mean), scale * np.array(self.std)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description(DatasetInfo):
    """Facts that a trained model requires without its dataset, as in `dataset.json` of a run.

    Attributes:
        examples: the number of examples of each split.
        named: whether the classes have names, which may be numbers, or `class_names` counts them;
            None for a run of version 0.3 or earlier, which does not record it.
        own_task: name of the task object or loss function that a program gave; empty if the task is
            known by name.
        own_loss: whether that is a loss function, which does not change predictions.
        best_metric: by which such a run ranks checkpoints, and whether larger is better.
    """

    examples: dict[str, int]
    named: bool | None = None
    own_task: str = ""
    own_loss: bool = False
    best_metric: tuple[str, bool] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; empty if they are only counted."""
        counted = self.class_names == tuple(map(str, range(self.num_classes)))
        return self.class_names if self.named or (self.named is None and not counted) else ()

    @property
    def final_split(self) -> str:
        """The split that gives the result: test, or validation if there are no test data."""
        return "test" if "test" in self.examples else "validation"


@dataclasses.dataclass(frozen=True)
class Dataset(DatasetInfo):
    """The splits of a dataset, and the facts that its users require.

    Attributes:
        train: None only for data to evaluate a model on.
        test, validation: None for a dataset without such data.
        augment: the default of `--augment`.
        defaults: defaults of settings for this dataset, by name; `model_kwargs` by model, and
            `learning_rate` by optimizer.
        targets: for your own task with its own `target`: shape and dtype of each such field of an
            example, by a name other than `labels`, `masks` and `targets`.
        name: its name in titles and errors.
        settings: settings that open it again; None for a dataset that exists only in memory.
        whole: whether a tenth of `train` must still be held out as test data.
        padded: whether images were padded to `image_shape` at the bottom and right. Masks are
            ignored in the padding.
        measured: whether mean, standard deviation and range were measured instead of declared.
    """

    train: Source | None
    test: Source | None = None
    validation: Source | None = None
    augment: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    targets: Mapping[str, tuple[tuple[int, ...], Any]] = dataclasses.field(
        default_factory=dict[str, Any]
    )
    name: str = ""
    settings: DataConfig | None = None
    whole: bool = False
    padded: bool = False
    measured: bool = False

    def splits(self) -> dict[str, Source]:
        """Returns the existing splits by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in splits.items() if source is not None}

    @property
    def train_examples(self) -> int:
        """The number of training examples."""
        return 0 if self.train is None else len(self.train)

    @property
    def evaluation_split(self) -> str | None:
        """The split that a run evaluates while it trains: validation, otherwise test, otherwise
        None.
        """
        return next((name for name in self.splits() if name != "train"), None)

    def describe(self) -> Description:
        """Returns the content of `dataset.json`."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(DatasetInfo)}
        names = self.class_names or tuple(map(str, range(self.num_classes)))
        # For the built-in tasks, the kind is the task.
        facts |= {"class_names": names, "kind": self.kind if self.kind != self.task else ""}
        facts["named"] = bool(self.class_names)
        examples = {name: len(source) for name, source in self.splits().items()}
        return Description(**facts, examples=examples)

    def fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and dtype of each field of an example."""
        images = {"images": (self.image_shape, np.dtype(self.dtype))}
        if self.targets:
            return images | dict(self.targets)
        if self.task in VECTOR_FIELDS:
            field, dtype = VECTOR_FIELDS[self.task]
            return images | {field: ((self.num_classes,), np.dtype(dtype))}
        grid = self.image_shape[:2]
        targets = {
            "labels": ((), np.int32),
            "masks": (grid, np.int32 if self.instances else np.uint8),
            "targets": ((*grid, self.num_classes), np.uint8),
        }
        # For a plugin's task, the fields may be known only when its kind is known.
        field = TARGET_FIELDS.get(self.answer)
        return images | ({field: targets[field]} if field else {})
