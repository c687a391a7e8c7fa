"""Defines where examples come from: a source has a length and an index."""

import abc
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxdp.errors import ConfigError
from jaxdp.text.flags import Sentence, flag, for_command

Example = dict[str, Any]
Size = tuple[int, int]  # height, width
_SKIP = flag("on_bad_example", "skip")
_FIX_OR_SKIP = f"fix or remove it, or leave such examples out with {_SKIP}"


class BadExample(ConfigError):
    """An example cannot be used. `--on-bad-example` determines the consequence.

    Args:
        where: file or split and index.
        ways: what to do, where bad examples cannot be left out.
    """

    def __init__(self, where: object, problem: str, ways: str = _FIX_OR_SKIP) -> None:
        self.where, self.problem, self._ways = str(where), Sentence(problem), ways
        super().__init__("", where, f"{where}: {self.problem.template}; {ways}")

    def __reduce__(self) -> Any:
        return BadExample, (self.where, self.problem, self._ways)


def by_reason(problems: Sequence[BadExample]) -> dict[str, int]:
    """Returns how many of these examples have each problem, the most common first.

    Problems that differ only in numbers, such as the sizes of masks, count as one problem, in which
    `N` replaces the different numbers.
    """
    groups: dict[str, list[str]] = {}
    for error in problems:
        problem = for_command(error.problem)  # as all files of a run name settings
        groups.setdefault(re.sub(r"\d+", "N", problem), []).append(problem)
    return {
        kind if len(set(texts)) > 1 else texts[0]: len(texts)
        for kind, texts in sorted(groups.items(), key=lambda group: -len(group[1]))
    }


@runtime_checkable
class Source(Protocol):
    """Random access to the examples of one split, from several threads at once.

    `source[i]` is a dict of `images` (`Dataset.dtype`, mostly uint8, H x W x C) and what the task
    requires: `labels` (a class number), `masks` (uint8, H x W, class numbers and IGNORE_LABEL; with
    `Dataset.instances` int32, instance labels), `targets` (uint8, H x W x C, an image), `present`
    (uint8, 0 or 1 for each class), `values` (float32, numbers), or for your own task the fields
    that `Dataset.targets` declares. It raises BadExample for a broken example.

    A source may also have `__getitems__(indices)`, which reads several examples at once, and the
    other attributes of `BaseSource`.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


class BaseSource(abc.ABC):
    """A source with defaults for all optional attributes of a source."""

    sizes: Sequence[Size] = ()  # of all images, if headers contain the sizes
    may_change: bool = False  # whether an index may give another example in another epoch

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Example: ...

    def __getitems__(self, indices: Sequence[int]) -> Iterable[Example]:
        return map(self.__getitem__, indices)

    def name(self, index: int) -> str:
        """Returns the name of an example in errors; empty for its split and index."""
        return ""

    def labels(self) -> Any:
        """Returns all labels, -1 for an example that cannot be read."""
        return list(map(self._label, range(len(self))))

    def _label(self, index: int) -> int:
        try:
            return int(self[index]["labels"])
        except BadExample:
            return -1

    def groups(self) -> Sequence[Any] | None:
        """Returns the file of each example, if all examples of a file must be in the same split."""
        return None

    def pixel_size(self, index: int) -> Sequence[float]:
        """Returns height and width of a pixel in micrometres; empty if unknown."""
        return ()

    def values(self) -> np.ndarray:
        """Returns the numbers of all examples (N, numbers), NaN for an example that cannot be
        read.
        """
        rows = list[Any]()
        for index in range(len(self)):
            try:
                rows.append(self[index]["values"])
            except BadExample:
                rows.append(np.nan)
        return np.stack(np.broadcast_arrays(*rows)) if rows else np.zeros((0, 1))

    def stored_mask(self, index: int) -> tuple[np.ndarray, str]:
        """Returns a mask as stored, or its classes according to `--mask-values`, and its name in
        errors.
        """
        return self[index]["masks"], self.name(index)

    def resized_to(self, resize: Any) -> "BaseSource":
        """Returns this source, which may decode images at a reduced size if they are resized
        afterwards.
        """
        return self


class UserSource(BaseSource):
    """An object with a length and an index as a source, which uses all other attributes of the
    object.
    """

    def __init__(self, examples: Source) -> None:
        self.examples: Any = examples
        for name in ("__getitems__", "name", "groups", "may_change"):
            if hasattr(examples, name):
                setattr(self, name, getattr(examples, name))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def labels(self) -> Any:
        labels = getattr(self.examples, "labels", None)
        labels = labels() if callable(labels) else labels
        return super().labels() if labels is None else labels


def as_source(source: Source) -> BaseSource:
    """Returns a source with all optional attributes."""
    return source if isinstance(source, BaseSource) else UserSource(source)


@dataclasses.dataclass(frozen=True)
class ArraySource(BaseSource):
    """A split that fits in memory.

    Attributes:
        images: uint8, uint16 or float32 (N, H, W, C).
        targets: integers (N,), masks (N, H, W), images (N, H, W, C) or vectors (N, C).
        field: `labels`, `masks`, `targets`, `present` or `values`.
        where: what errors call the split.
    """

    images: np.ndarray
    targets: np.ndarray
    field: str = "labels"
    where: str = ""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Example:
        return {"images": self.images[index], self.field: self.targets[index]}

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]" if self.where else ""

    def labels(self) -> np.ndarray:
        return self.targets

    def values(self) -> np.ndarray:
        return self.targets


@dataclasses.dataclass(frozen=True)
class FieldsSource(BaseSource):
    """A split that fits in memory, with fields of any names.

    Attributes:
        images: uint8, uint16 or float32 (N, H, W, C).
        targets: arrays (N, ...) by name.
        where: what errors call the split.
    """

    images: np.ndarray
    targets: Mapping[str, np.ndarray]
    where: str = ""
    field = ""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Example:
        fields = {name: values[index] for name, values in self.targets.items()}
        return {"images": self.images[index]} | fields

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def shapes(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and dtype of each field, as `Dataset.targets` declares them."""
        return {name: (each.shape[1:], each.dtype) for name, each in self.targets.items()}
