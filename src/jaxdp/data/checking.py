"""Checks a dataset before it is used, and each example as it is read: shapes, types and values are
those that were promised.
"""

import collections
import copy
import dataclasses
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data.dataset import IGNORE_LABEL, BadExample, Dataset, Example, Source
from jaxdp.registry import ConfigError

_ALIGNMENT = 64  # bytes
NOT_FINITE = "has NaN or infinite pixels"


def check_dataset(
    dataset: Dataset,
    config: DataConfig,
    kind_of: Callable[[str], str] = lambda task: task,
    tasks: Sequence[str] = (),
) -> Dataset:
    """Returns the dataset with images of the size that `config` asks for and a `CheckedSource` for
    each split.

    A split that is checked already is left as it is, unless that changes its examples; bad ones
    that it skips stay skipped.

    Args:
        kind_of: tells which of the three tasks here a task of your own is like.
        tasks: the tasks that would do; none for any.

    Raises:
        ConfigError: for a task that the dataset has no targets for, or a split without examples.
    """
    name = dataset.name or config.dataset or ""
    if dataset.dtype != "uint8" and dataset.pixel_range is None:
        raise ConfigError(
            "",
            dataset.dtype,
            f"{name}: a dataset of {dataset.dtype} needs a pixel_range, which becomes 0 to 255",
        )
    if tasks and dataset.task not in tasks:
        raise of_other_tasks(name, (dataset.task,), tasks)
    for split, source in dataset.splits().items():
        if len(source) == 0:
            raise no_examples(split, name, config)
    checked = dataclasses.replace(dataset, kind=kind_of(dataset.task), name=name)
    sources: Mapping[str, Source] = {
        split: _unchecked(source) for split, source in dataset.splits().items()
    }
    if config.image_size is not None:
        # Pillow, which a dataset of arrays does without.
        from jaxdp.data.sources.fitting import Fitted, ImageSize

        fit = ImageSize.parse(config.image_size).check(checked.kind)
        if fit.size != dataset.image_shape[:2]:
            checked = dataclasses.replace(checked, image_shape=(*fit.size, dataset.image_shape[2]))
            sources = {split: Fitted(source, fit) for split, source in sources.items()}
    wrapped: dict[str, Source] = {}
    for split, before in dataset.splits().items():
        skip = config.on_bad_example == "skip" or (
            isinstance(before, CheckedSource) and before.skip
        )
        after = CheckedSource(sources[split], checked, where=f"{name} {split}", skip=skip)
        wrapped[split] = (
            before if isinstance(before, CheckedSource) and before.checks_like(after) else after
        )
    return dataclasses.replace(checked, **wrapped)


def of_other_tasks(name: str, available: Sequence[str], wanted: Sequence[str]) -> ConfigError:
    """Returns the error that says that a dataset has targets for other tasks only."""
    return ConfigError(
        "dataset",
        name,
        f"is for {' or '.join(available)}, but --model or --task asks for {' or '.join(wanted)}",
    )


def no_examples(split: str, name: str, config: DataConfig) -> ConfigError:
    """Returns the error that says that a split is empty."""
    flag = f"{split}_split"
    if not hasattr(config, flag):
        return ConfigError("", split, f"{name} has no {split} example")
    return ConfigError(flag, getattr(config, flag) or split, f"{name} has no example there")


def commonest(problems: Sequence[BadExample]) -> str:
    """Returns the problem that most of these examples have, and the first one that has it."""
    problem = collections.Counter(error.problem for error in problems).most_common(1)[0][0]
    return f"{next(error.where for error in problems if error.problem == problem)}: {problem}"


def by_reason(problems: Sequence[BadExample]) -> dict[str, int]:
    """Returns how many of these examples have each problem, the commonest first.

    Problems that differ only in numbers, such as the sizes of masks, are one; where they do, `N`
    stands for the numbers.
    """
    groups: dict[str, list[str]] = {}
    for error in problems:
        groups.setdefault(re.sub(r"\d+", "N", error.problem), []).append(error.problem)
    counts = {
        kind if len(set(texts)) > 1 else texts[0]: len(texts) for kind, texts in groups.items()
    }
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _batch(examples: Iterable[Example], count: int) -> dict[str, np.ndarray]:
    """Returns examples as arrays (count, ...).

    Each is copied as soon as it is there, so that the next one takes its memory, which the caches
    still hold.
    """
    batch: dict[str, np.ndarray] = {}
    for position, example in enumerate(examples):
        for name, value in example.items():
            if position == 0:
                batch[name] = _empty((count, *np.shape(value)), np.asarray(value).dtype)
            batch[name][position] = value
    return batch


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an array that lies as XLA's buffers do, so that a device that is the CPU takes it
    without a copy.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _unchecked(source: Source) -> Source:
    return source.unchecked if isinstance(source, CheckedSource) else source


class CheckedSource:
    """A source whose examples have the shapes that the dataset promises, and a weight: 1, or 0 for
    a bad one that is left out.

    Args:
        where: names the split in errors.
        skip: whether to leave bad examples out, instead of raising.

    Attributes:
        errors: what was wrong with those that were left out so far, by their numbers.
    """

    def __init__(self, source: Source, dataset: Dataset, *, where: str, skip: bool) -> None:
        self.unchecked, self._where, self.skip = source, where, skip
        self._fields, self._num_classes = dataset.fields(), dataset.num_classes
        self._lock = threading.Lock()
        self.errors: dict[int, BadExample] = {}
        self.pixel_range = dataset.pixel_range
        self._several: Callable[[Sequence[int]], Iterable[Example | BadExample]] | None = getattr(
            source, "__getitems__", None
        )
        self._targets_of: Any = None
        if dataset.instances:
            from jaxdp.data.instances import Targets  # SciPy, which others do without

            self._targets_of = Targets()

    def __len__(self) -> int:
        return len(self.unchecked)

    @property
    def skipped(self) -> dict[int, str]:
        """Returns the bad examples that were left out so far and why, by their numbers."""
        return {
            index: f"{error.where}: {error.problem}" for index, error in list(self.errors.items())
        }

    @property
    def bytes(self) -> int:
        """Returns how much memory all examples take."""
        example = sum(
            int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            for shape, dtype in self._fields.values()
        )
        return len(self) * (example + 4)

    def checks_like(self, other: "CheckedSource") -> bool:
        """Returns whether `other` gives the same examples of the same source."""
        mine, its = ((one._fields, one._num_classes, one.skip) for one in (self, other))
        return self.unchecked is other.unchecked and mine == its

    def read_by(
        self, several: Callable[[Sequence[int]], Iterable[Example | BadExample]] | None
    ) -> "CheckedSource":
        """Returns this source, of which `several` reads batches, if it is not None.

        What is left out is known to both.

        Args:
            several: returns the examples of some numbers; for a bad one its error may be among
                them.
        """
        if several is None:
            return self
        other = copy.copy(self)
        other._several = several
        return other

    def __getitem__(self, index: int) -> Example:
        try:
            return self._checked(self.unchecked[index], index)
        except BadExample as error:
            return self._left_out(index, error)

    def read(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns a batch of the examples of these numbers."""
        try:
            if self._several is None:
                return _batch(map(self.__getitem__, numbers), len(numbers))
            found = zip(self._several(list(numbers)), numbers, strict=True)
            return _batch(itertools.starmap(self._used, found), len(numbers))
        except BadExample:
            if not self.skip:
                raise
            return _batch(map(self.__getitem__, numbers), len(numbers))

    def _used(self, found: Example | BadExample, index: int) -> Example:
        return (
            self._left_out(index, found)
            if isinstance(found, BadExample)
            else self._checked(found, index)
        )

    def _left_out(self, index: int, error: BadExample) -> Example:
        if not self.skip:
            raise error
        with self._lock:
            self.errors[index] = error
            if len(self.errors) == len(self):
                raise self.nothing_left()
        zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._fields.items()}
        return zeros | {"weights": np.float32(0)}

    def nothing_left(self) -> ConfigError:
        """Returns the error that says that every example was left out, and most often why."""
        reason = f", most often as {commonest(list(self.errors.values()))}" if self.errors else ""
        remedy = (
            f"nothing is left of {self._where}: none of its {len(self)} examples can be"
            f" used{reason}"
        )
        return ConfigError("on_bad_example", "skip", remedy)

    def _checked(self, example: Mapping[str, Any], index: int) -> Example:
        checked: Example = {"weights": np.float32(1)}
        if self._targets_of is not None:
            example = {**example, **self._targets_of(index, example["masks"])}
        for name, (shape, dtype) in self._fields.items():
            value = np.asarray(example[name])
            if value.shape != shape:
                raise BadExample(
                    self.name(index), f"its {name} have the shape {value.shape}, not {shape}"
                )
            exact = name == "images" or np.dtype(dtype) == np.uint8
            if not np.can_cast(value.dtype, dtype, "same_kind") or (exact and value.dtype != dtype):
                raise BadExample(
                    self.name(index), f"its {name} are {value.dtype}, not {np.dtype(dtype)}"
                )
            if name == "images" and value.dtype.kind == "f" and not np.isfinite(value).all():
                raise BadExample(self.name(index), NOT_FINITE)
            checked[name] = value.astype(dtype, copy=False)
        if "labels" in checked and not 0 <= int(checked["labels"]) < self._num_classes:
            raise BadExample(
                self.name(index),
                f"its label {checked['labels']} is not one of 0 to {self._num_classes - 1}",
            )
        if "masks" in checked:
            self._check_mask(checked["masks"], index)
        return checked

    def _check_mask(self, mask: np.ndarray, index: int) -> None:
        if mask.max(initial=0) >= self._num_classes:
            wrong = np.unique(mask[(mask >= self._num_classes) & (mask != IGNORE_LABEL)])
            if len(wrong):
                allowed = f"0 to {self._num_classes - 1}, or {IGNORE_LABEL} for pixels to ignore"
                raise BadExample(
                    self.name(index), f"its mask has the value {wrong[0]}, not one of {allowed}"
                )

    def name(self, index: int) -> str:
        """Returns what an example is called: its file, if the source knows one, otherwise split and
        number.
        """
        name: Any = getattr(self.unchecked, "name", None)
        return name(index) if name else f"{self._where}[{index}]"
