"""Parses values of settings that are not a number or a name, and defines ranges."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jaxdp.errors import ConfigError
from jaxdp.text import parsing
from jaxdp.text.parsing import is_count
from jaxdp.text.units import parse_bytes

_MOST_MASK_VALUES = 255  # 255 itself marks ignored pixels


@dataclasses.dataclass(frozen=True)
class BatchNormMode:
    """Which examples share batch-norm statistics.

    Attributes:
        kind: `replica` (the examples of a replica), `global` (the whole batch) or `group`.
        group_size: examples of a `group`; None for the other kinds.
    """

    kind: Literal["replica", "global", "group"] = "replica"
    group_size: int | None = None

    @classmethod
    def parse(cls, text: str) -> "BatchNormMode":
        """Reads `replica`, `global` or `group:N`. Raises ConfigError for anything else."""
        if text == "replica" or text == "global":
            return cls(text)
        kind, _, size = text.partition(":")
        if kind != "group" or not is_count(size) or int(size) < 1:
            raise ConfigError(
                "batch_norm",
                text,
                "must be replica, global or group:N with N examples, e.g. group:16",
            )
        return cls("group", int(size))

    def __str__(self) -> str:
        return self.kind if self.group_size is None else f"group:{self.group_size}"


@dataclasses.dataclass(frozen=True)
class ClassWeights:
    """The weight of each class in the loss.

    Attributes:
        values: one number for each class; None for weights that balance the classes of the training
            set.
    """

    values: tuple[float, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> "ClassWeights":
        """Reads `balanced` or numbers with commas. Raises ConfigError for anything else."""
        if text == "balanced":
            return cls()
        try:
            values = tuple(float(word) for word in text.split(","))
        except ValueError:
            values = ()
        if not values or not all(0 <= value < math.inf for value in values) or not any(values):
            remedy = "must be balanced, or a number of at least 0 for each class, e.g. 1,2.5,1"
            raise ConfigError("class_weights", text, remedy)
        return cls(values)

    def __str__(self) -> str:
        if self.values is None:
            return "balanced"
        return ",".join(
            str(int(value)) if value.is_integer() else repr(value) for value in self.values
        )


def memory_limit(text: str | None) -> int | None:
    """Returns the bytes of `--device-memory`, if it is given.

    Raises:
        ConfigError: if the text is no size.
    """
    try:
        return parse_bytes(text) if text else None
    except ValueError:
        remedy = "must be a size, e.g. 11GiB or 40GB"
        raise ConfigError("device_memory", text, remedy) from None


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Duration:
    """A time.

    Attributes:
        text: a number and its unit.
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Reads e.g. `90m` or `1.5h`. Raises ConfigError for anything else."""
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[smhd]", text) or cls(text).seconds == 0:
            remedy = "must be a number with the unit s, m, h or d, e.g. 90m or 1.5h"
            raise ConfigError("max_time", text, remedy)
        return cls(text)

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return float(self.text[:-1]) * _SECONDS[self.text[-1]]

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class MaskValues:
    """The stored mask values of the classes.

    Attributes:
        values: values of class 0, 1, ...: numbers, or colours as 0xRRGGBB; None for 0 as class 0,
            and everything else as class 1.
        colours: whether they are colours.
    """

    values: tuple[int, ...] | None
    colours: bool = False

    @classmethod
    def parse(cls, text: str) -> "MaskValues":
        """Reads `binary`, `0,128,255` or `000000,ff0000`. Raises ConfigError for anything else."""
        if text == "binary":
            return cls(None)
        words = [word.strip() for word in text.split(",")]
        colours = all(re.fullmatch(r"#?[0-9a-fA-F]{6}", word) for word in words)
        if not colours and not all(is_count(word) and int(word) < 2**16 for word in words):
            remedy = (
                "must be binary, numbers below 65536, e.g. 0,128,255, or colours of 6 hexadecimal"
                " digits, e.g. 000000,ff0000"
            )
            raise ConfigError("mask_values", text, remedy)
        values = tuple(int(word.lstrip("#"), 16) if colours else int(word) for word in words)
        if len(set(values)) < len(values):
            raise ConfigError(
                "mask_values", text, "names a value twice; give each class one of its own"
            )
        if not 2 <= len(values) <= _MOST_MASK_VALUES:
            raise ConfigError(
                "mask_values",
                text,
                f"must be at least 2 values and at most {_MOST_MASK_VALUES}, one for each class",
            )
        return cls(values, colours)

    def show(self, value: int) -> str:
        """Returns a stored value as `parse` reads it."""
        return f"{value:06x}" if self.colours else str(value)

    def __str__(self) -> str:
        return "binary" if self.values is None else ",".join(map(self.show, self.values))

    @property
    def num_classes(self) -> int:
        return 2 if self.values is None else len(self.values)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table that hold images and their targets.

    Attributes:
        image, label, mask: names of columns; None if the dataset determines the column.
    """

    image: str | None = None
    label: str | None = None
    mask: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Columns":
        """Reads e.g. `image=photo,label=species`. Raises ConfigError for anything else."""
        found: dict[str, str] = {}
        for word in text.split(","):
            role, _, name = (part.strip() for part in word.partition("="))
            if role not in ("image", "label", "mask") or not name or role in found:
                remedy = (
                    "must name the columns image, label or mask once each, e.g."
                    " image=photo,label=species"
                )
                raise ConfigError("columns", text, remedy)
            found[role] = name
        return cls(**found)

    def named(self) -> dict[str, str]:
        """Returns the given names of columns by what they hold."""
        return {role: name for role, name in dataclasses.asdict(self).items() if name}

    def __str__(self) -> str:
        return ",".join(f"{role}={name}" for role, name in self.named().items())


@dataclasses.dataclass(frozen=True)
class Range:
    """A condition that a value must meet in addition to its type.

    Attributes:
        text: the condition, as a phrase that follows "must".
        holds: returns whether a value meets the condition.
        of_text: whether it applies to text instead of numbers.
    """

    text: str
    holds: Callable[[Any], bool]
    of_text: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raises ConfigError for a number or text that does not meet the condition."""
        if isinstance(value, str) == self.of_text and not self.holds(value):
            raise ConfigError(name, value, f"must {self.text}")


POSITIVE = Range("be greater than 0", lambda value: value > 0)
NON_NEGATIVE = Range("not be negative", lambda value: value >= 0)
FRACTION = Range("be at least 0 and below 1", lambda value: 0 <= value < 1)
# For one machine, because more would exhaust its memory and threads.
MOST_DEVICES, MOST_PROCESSES = 512, 256
MOST_WORKERS = 4096  # for a cluster
MOST_CLASSES = 2**15  # because a confusion matrix has the square of this number
MOST_STEPS = 10**8  # because the learning rate of each step is stored
# `pathlib` would create a local folder `gs:`.
LOCAL = Range(
    "be a path on this machine, not a URL; mount the storage, or copy from and to it",
    lambda path: re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path) is None,
    of_text=True,
)
BELOW_2_31 = Range("be below 2147483648", lambda value: value < 2**31)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Several numbers of devices to compare, in ascending order."""

    values: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Any:
        """Reads `4,1,2`. Raises ConfigError for anything else."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if not is_count(word) or not int(word):
                remedy = f"{word} is no number from 1; write numbers with commas, e.g. 1,2,4"
                raise ConfigError("devices", text, remedy)
            if int(word) > MOST_DEVICES:
                raise ConfigError("devices", text, f"must be at most {MOST_DEVICES}")
        if not words:
            remedy = "names nothing; write at least one number, e.g. 1,2,4"
            raise ConfigError("devices", text, remedy)
        return cls(tuple(sorted({int(word) for word in words})))

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


def at_most(most: int) -> Range:
    """Returns the range of numbers up to `most`."""
    return Range(f"be at most {most}", lambda value: value <= most)


def parse_keywords(words: Sequence[str]) -> dict[str, Any]:
    """Reads `["depth=110", "alpha=48"]`. Values are YAML, e.g. `true`, `0.5` or `[1, 2]`."""
    keywords: dict[str, Any] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not (key.isidentifier() and separator):
            raise ConfigError(
                "",
                word,
                f"{word!r} is not a keyword argument: write KEY=VALUE without spaces, e.g."
                " depth=110",
            )
        try:
            keywords[key] = number(parsing.parse_yaml(value))
        except ValueError as error:
            raise ConfigError("", word, f"the value of {key} is not YAML: {error}") from error
    return keywords


def number(value: Any) -> Any:
    """Returns a float for text that is a float, because YAML 1.1 reads 1e-3 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
