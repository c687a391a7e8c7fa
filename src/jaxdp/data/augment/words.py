"""Provides base classes and the registry of augmentations, and makes them from words such as
`crop:96`.
"""

import abc
import dataclasses
import math
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from jaxtyping import Array, Float, Key

from jaxdp.config.values import Range
from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import Registry
from jaxdp.text.parsing import is_count

Example = dict[str, Array]
Number = float | int
RandomKey = Key[Array, ""]
Shape = tuple[int, int, int]  # height, width, channels
Mixed = tuple[Array, Float[Array, ""]]  # an image, and the share of the partner
# Fields of an example on the grid of its image.
DENSE = ("masks", "targets")


class Augmentation(abc.ABC):
    """A random change of one example. Its only positional field, if any, is the number after the
    colon of its word.
    """

    of_classes: ClassVar[bool] = False  # whether it does not allow targets for each pixel
    takes_turns: ClassVar[bool] = False  # whether it reads `turn` of an example

    def output_shape(self, image_shape: Shape) -> Shape:
        """Returns the (height, width, channels) of an image after this augmentation.

        Raises:
            ConfigError: if the augmentation does not fit images of this shape.
        """
        return image_shape

    def within_valid(self) -> "Augmentation":
        """Returns the augmentation for images that were padded."""
        return self

    @abc.abstractmethod
    def __call__(self, example: Example, key: RandomKey) -> Example:
        """Returns the example changed at random."""


class Mixing(Augmentation):
    """An augmentation that mixes an example with another example of the batch, after both are
    augmented.
    """

    of_classes = True

    def __call__(self, example: Example, key: RandomKey) -> Example:
        """Returns the example unchanged. `mix` changes it later."""
        return example

    @abc.abstractmethod
    def mix(self, example: Example, partner: Example, key: RandomKey) -> Mixed:
        """Returns the mixed image and the partner's share in it, from 0 to 1."""


_augmentations: Registry[Callable[..., Any]] = Registry("augment", "jaxdp.data.augment")
names = _augmentations.entries

Kind = TypeVar("Kind", bound=type[Augmentation])
# Ranges of the numbers of augmentations.
PIXELS = Range(
    "be a whole number of pixels, 1 or more", lambda value: isinstance(value, int) and value >= 1
)
POSITIVE = Range("be a number above 0", lambda value: 0 < value < math.inf)
FRACTION = Range("be above 0 and at most 1", lambda value: 0 < value <= 1)
DEGREES = Range("be a number of degrees above 0 and at most 180", lambda value: 0 < value <= 180)
_ranges: dict[str, Range] = {}


@typing.dataclass_transform(frozen_default=True)
def register(name: str, number: Range = POSITIVE) -> Callable[[Kind], Kind]:
    """Decorator that makes an augmentation a frozen dataclass and registers it under `name`.

    Args:
        number: the range of the number in its word, if its word has a number.
    """

    def add(kind: Kind) -> Kind:
        _ranges[name] = number
        return _augmentations.register(name)(dataclasses.dataclass(frozen=True)(kind))

    return add


def create(word: str) -> Any:
    """Makes an augmentation from `NAME` or `NAME:NUMBER`; a name may have a colon itself.

    Raises:
        ConfigError: for an unknown name, or for a number that is out of range, superfluous or
            missing.
    """
    name, colon, argument = (word, "", "") if word in names() else word.partition(":")
    kind: Any = _augmentations[name]
    fields = dataclasses.fields(kind)
    if not colon:
        needs_number = bool(fields) and fields[0].default is dataclasses.MISSING
        require(not needs_number, word, f"needs a number, e.g. {name}:64")
        return kind()
    forms = " or ".join(each for each in sorted(names()) if each.split(":")[0] == name)
    require(bool(fields), word, f"takes no number; write {forms}")
    try:
        number = int(argument) if is_count(argument.removeprefix("-")) else float(argument)
    except ValueError:
        raise ConfigError("augment", word, f"must be {name}:NUMBER") from None
    require(_ranges[name].holds(number), word, f"must {_ranges[name].text}")
    return kind(number)


def require(condition: bool, word: str, remedy: str) -> None:
    """Raises ConfigError that names an augmentation by its word, unless the condition holds."""
    if not condition:
        raise ConfigError("augment", word, remedy)


def check_side(name: str, number: Number, image_shape: Shape) -> Shape:
    """Returns the shape of images, if their sides are larger than the number of an augmentation.

    Raises ConfigError otherwise.
    """
    smallest = min(image_shape[:2])
    remedy = f"must be less than the {smallest} pixels of an image's side"
    require(number < smallest, f"{name}:{number}", remedy)
    return image_shape


def is_dense(example: Example) -> bool:
    """Returns whether pixels have targets.

    A border is then filled with the mirrored image, because black would require its own class.
    """
    return any(name in example for name in DENSE)


def map_grid(example: Example, move: Callable[[Array], Array]) -> Example:
    """Moves the pixels of the image and of the targets on its grid.

    `move` takes an array (height, width, ...).
    """
    return example | {name: move(example[name]) for name in ("images", *DENSE) if name in example}


def output_shape(augmentations: Sequence[Augmentation], image_shape: Shape) -> Shape:
    """Returns the (height, width, channels) of training images after these augmentations.

    Raises:
        ConfigError: for the first augmentation that does not fit the images.
    """
    for augmentation in augmentations:
        image_shape = augmentation.output_shape(image_shape)
    return image_shape
