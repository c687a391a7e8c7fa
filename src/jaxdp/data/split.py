"""Provides the examples of one split for training and evaluation: selected, resized, and checked
against the facts of the dataset.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdp.data.dataset import IGNORE_LABEL, Dataset, native, pixel_problem
from jaxdp.data.instances import as_masks
from jaxdp.data.masks import check_like, mask_table
from jaxdp.data.resize import Resize
from jaxdp.data.source import BadExample, Example, as_source
from jaxdp.errors import ConfigError

_ALIGNMENT = 64  # bytes


@dataclasses.dataclass(eq=False, repr=False)
class Split:
    """Selected examples of a source, each with a weight of 1, or of 0 for a bad example that is
    left out.

    Args:
        source: a source, or an object of the user that acts as a source.
        dataset: the dataset that its examples must match.
        where: names the split in errors.
        skip: whether to leave bad examples out, instead of raising.
        indices: of the source's examples; None for all.
        resize: how images are resized; None to leave them unchanged.
        class_table: the class of each class number of the source, integers (256,) or more; None to
            leave them unchanged.

    Attributes:
        errors: the problems of the bad examples that were left out so far, by index.
    """

    source: Any
    dataset: dataclasses.InitVar[Dataset]
    _: dataclasses.KW_ONLY
    where: str = ""
    skip: bool = False
    indices: Any = None
    resize: Resize | None = None
    class_table: np.ndarray | None = None

    def __post_init__(self, dataset: Dataset) -> None:
        self.source = as_source(self.source).resized_to(self.resize)
        if self.indices is None:
            self.indices = np.arange(len(self.source))
        self._fields, self._num_classes = dataset.fields(), dataset.num_classes
        self._trained_masks = dataset.mask_values
        self._stored_table = mask_table(dataset.mask_values)
        self.pixel_range = dataset.pixel_range
        self.errors: dict[int, BadExample] = {}
        self._has_instances = dataset.instances

    def revised(self, dataset: Dataset, **changes: Any) -> "Split":
        """Returns this split for a dataset with other facts, or itself if no fact differs. Bad
        examples that it skips stay skipped.

        Args:
            changes: `skip` or `resize`.
        """
        changes["skip"] = self.skip or changes.get("skip", False)
        promised = {"_fields": dataset.fields(), "_num_classes": dataset.num_classes}
        if all(getattr(self, name) == value for name, value in (changes | promised).items()):
            return self
        return dataclasses.replace(self, dataset=dataset, **changes)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def bytes(self) -> int:
        """The memory of all examples."""
        sizes = [
            math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self._fields.values()
        ]
        return len(self) * (sum(sizes) + 4)

    def name(self, index: int) -> str:
        """Returns the name of an example: its file, or its split and index."""
        return self.source.name(self._source_index(index)) or f"{self.where}[{index}]"

    def size(self, index: int) -> tuple[int, ...]:
        """Returns height and width of an image without padding."""
        if self.resize is None or self.resize.kind != "pad":
            return self._fields["images"][0][:2]
        return np.shape(self.source[self._source_index(index)]["images"])[:2]

    def labels(self) -> np.ndarray:
        """Returns the label of each example, int64, with -1 for a left-out example."""
        if self.skip:
            examples = map(self._alone, range(len(self)))
            labels = [-1 if isinstance(one, BadExample) else int(one["labels"]) for one in examples]
            return np.array(labels, np.int64)
        labels = np.asarray(self.source.labels(), np.int64)[self.indices]
        if self.class_table is not None:
            labels = np.where(labels < 0, labels, self.class_table[labels])
        return labels

    def __getitem__(self, index: int) -> Example:
        return self._checked(self._alone(index), index)

    def read(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns a batch of examples.

        Each example is copied as soon as it is read, so that the next example reuses its memory,
        which is still in the processor's caches.
        """
        batch: dict[str, np.ndarray] = {}
        examples = map(self._checked, self._examples(indices), indices)
        for position, example in enumerate(examples):
            for name, value in example.items():
                if position == 0:
                    shape = (len(indices), *np.shape(value))
                    batch[name] = empty_aligned(shape, np.asarray(value).dtype)
                batch[name][position] = value
        return batch

    def unchecked(self, index: int) -> Example:
        """Returns an example as in the source, except for its size and class numbers."""
        return self._transformed(self.source[self._source_index(index)], index)

    def _examples(self, indices: Sequence[int]) -> Iterator[Example | BadExample]:
        """Yields examples before they are checked, and the error in place of a bad example."""
        done = 0
        try:
            several = self.source.__getitems__(list(map(self._source_index, indices)))
            for example, index in zip(several, indices, strict=True):
                yield self._transformed(example, index)
                done += 1
        except BadExample:  # which may be any remaining example
            yield from map(self._alone, indices[done:])

    def _alone(self, index: int) -> Example | BadExample:
        try:
            return self.unchecked(index)
        except BadExample as error:
            return error

    def _source_index(self, index: int) -> int:
        return int(self.indices[index])

    def _transformed(self, example: Example, index: int) -> Example:
        mask = example.get("masks")
        if mask is not None:
            size, wanted = np.shape(mask), np.shape(example["images"])[:2]
            if size != wanted:
                problem = (
                    f"its mask has {'x'.join(map(str, size))} pixels, but its image"
                    f" {'x'.join(map(str, wanted))}"
                )
                if size == wanted[::-1]:
                    problem += "; each is turned as its own tag Orientation says"
                raise BadExample(self.name(index), problem)
            check_like(mask, self._trained_masks, self.name(index))
            for table in (self._stored_table, self.class_table):
                if table is not None:
                    example = example | {"masks": table[example["masks"]].astype(np.uint8)}
        elif self.class_table is not None and "labels" in example:
            example = example | {"labels": self.class_table[int(example["labels"])]}
        elif self.class_table is not None:  # a column for each class
            (field,) = example.keys() & {"present", "values"}
            columns = np.zeros(self._num_classes, example[field].dtype)
            columns[self.class_table[: len(example[field])]] = example[field]
            example = example | {field: columns}
        return example if self.resize is None else self.resize.apply_to(example)

    def _checked(self, example: Example | BadExample, index: int) -> Example:
        """Returns an example with its weight, and zeros for a bad example that is left out."""
        try:
            if isinstance(example, BadExample):
                raise example
            fields = example
            if self._has_instances:
                fields = fields | {"masks": as_masks(fields["masks"])}
            if missing := sorted(self._fields.keys() - fields.keys()):
                problem = f"it has {', '.join(fields)}, but no {' and no '.join(missing)}"
                raise BadExample(self.name(index), problem)
            checked = {name: self._field(name, fields[name], index) for name in self._fields}
            return {"weights": np.float32(1)} | checked
        except BadExample as error:
            if not self.skip:
                raise
            self.errors[index] = error
            if len(self.errors) == len(self):
                raise self.nothing_left() from error
        zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._fields.items()}
        return zeros | {"weights": np.float32(0)}

    def nothing_left(self) -> ConfigError:
        """Returns the error for a split in which every example was left out, with the reason for
        the first.
        """
        remedy = f"nothing is left of {self.where}: none of its {len(self)} examples can be used"
        for error in list(self.errors.values())[:1]:
            remedy += f", e.g. {error.where}: {error.problem.template}"
        return ConfigError("on_bad_example", "skip", remedy)

    def _field(self, name: str, value: Any, index: int) -> np.ndarray:
        """Returns a field of an example that matches the facts of the dataset."""
        (shape, dtype), value = self._fields[name], native(np.asarray(value))
        exact = name == "images" or np.dtype(dtype) == np.uint8
        highest, problem = self._num_classes - 1, ""
        if value.shape != shape:
            problem = f"its {name} have the shape {value.shape}, not {shape}"
        elif not np.can_cast(value.dtype, dtype, "same_kind") or (exact and value.dtype != dtype):
            problem = f"its {name} are {value.dtype}, not {np.dtype(dtype)}"
        elif name == "images" and value.dtype.kind == "f" and self.pixel_range is not None:
            problem = pixel_problem(float(value.min()), float(value.max()), self.pixel_range)
        elif name == "values" and not np.isfinite(value).all():
            problem = "its numbers are NaN or infinite"
        elif name == "present" and value.max(initial=0) > 1:
            problem = f"its classes are marked by 1, not by {value.max()}"
        elif name == "labels" and not 0 <= int(value) <= highest:
            problem = f"its label {value} is not one of 0 to {highest}"
        elif name == "masks" and not self._has_instances and value.max(initial=0) > highest:
            wrong = np.unique(value[(value > highest) & (value != IGNORE_LABEL)])
            if len(wrong):
                problem = (
                    f"its mask has the value {wrong[0]}, not one of 0 to {highest}, or"
                    f" {IGNORE_LABEL} for pixels to ignore"
                )
        if problem:
            raise BadExample(self.name(index), problem)
        return value.astype(dtype, copy=False)


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an array aligned like XLA's buffers, which a CPU device uses without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
