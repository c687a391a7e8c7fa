"""Augmentations by their words: protocols, registration, and what their numbers must be."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Float, Key

from jaxdp.config.values import Range
from jaxdp.parsing import is_count
from jaxdp.registry import ConfigError, Registry

Example = dict[str, Array]
Shape = tuple[int, int, int]  # height, width, channels
# Fields of an example that lie on the grid of its image.
DENSE = ("masks", "border_weights", "targets")


@runtime_checkable
class Augmentation(Protocol):
    """A random change of one example: a frozen dataclass. Its only field, if any, is the number
    after the colon of its word.
    """

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        """Returns the example changed at random."""
        ...


@runtime_checkable
class Mixing(Protocol):
    """An augmentation that mixes an example with another one of the batch, after both were
    augmented.
    """

    def mix(
        self, example: Example, partner: Example, key: Key[Array, ""]
    ) -> tuple[Array, Float[Array, ""]]:
        """Returns the mixed image and the partner's share in it, from 0 to 1."""
        ...


@runtime_checkable
class Shaped(Protocol):
    """An augmentation that does not fit every image, or changes its size."""

    def output_shape(self, image_shape: Shape) -> Shape:
        """Returns the (height, width, channels) of an image after this augmentation.

        Raises:
            ConfigError: if it does not fit images of this shape.
        """
        ...


_augmentations: Registry[Callable[..., Any]] = Registry("augment", "jaxdp.data.augment")
names = _augmentations.entries

Kind = TypeVar("Kind", bound=Callable[..., Any])
# Ranges of the numbers of augmentations.
PIXELS = Range(
    "be a whole number of pixels, 1 or more", lambda value: isinstance(value, int) and value >= 1
)
POSITIVE = Range("be a number above 0", lambda value: 0 < value < math.inf)
FRACTION = Range("be above 0 and at most 1", lambda value: 0 < value <= 1)
DEGREES = Range("be a number of degrees above 0 and at most 180", lambda value: 0 < value <= 180)


def register(name: str, number: Range | None = None) -> Callable[[Kind], Kind]:
    """Decorator that registers an augmentation under `name` and returns it unchanged.

    Args:
        number: what the number in its word must be.
    """

    def add(kind: Kind) -> Kind:
        _ranges[name] = number
        return _augmentations.register(name)(kind)

    return add


_ranges: dict[str, Range | None] = {}


def create(word: str) -> Any:
    """Makes an augmentation from `NAME` or `NAME:NUMBER`.

    Raises:
        ConfigError: for an unknown name, a number out of range, or one too many or missing.
    """
    name, colon, argument = word.partition(":")
    kind = _augmentations[name]
    parameters = list(inspect.signature(kind).parameters.values())
    if not colon:
        if parameters and parameters[0].default is parameters[0].empty:
            raise ConfigError("augment", word, f"needs a number, e.g. {name}:64")
        return kind()
    if not parameters:
        raise ConfigError("augment", word, f"takes no number; write {name}")
    try:
        number = int(argument) if is_count(argument.removeprefix("-")) else float(argument)
    except ValueError:
        raise ConfigError("augment", word, f"must be {name}:NUMBER") from None
    allowed = _ranges.get(name)
    if allowed is not None:
        require(allowed.holds(number), word, f"must {allowed.text}")
    return kind(number)


def require(condition: bool, word: str, remedy: str) -> None:
    """Raises ConfigError that names an augmentation by its word, unless the condition holds."""
    if not condition:
        raise ConfigError("augment", word, remedy)


def check_side(name: str, number: float | int, image_shape: Shape) -> Shape:
    """Returns the shape of images, if their sides are larger than the number of an augmentation.

    Raises ConfigError for others.
    """
    smallest = min(image_shape[:2])
    remedy = f"must be less than the {smallest} pixels of an image's side"
    require(number < smallest, f"{name}:{number}", remedy)
    return image_shape


def is_dense(example: Example) -> bool:
    """Returns whether pixels have targets.

    A border is then filled with the mirrored image, as black would need its own class.
    """
    return any(name in example for name in DENSE)


def map_grid(example: Example, move: Callable[[Array], Array]) -> Example:
    """Moves whole pixels of the image and of the targets on its grid alike.

    `move` takes an array (height, width, ...).
    """
    return example | {name: move(example[name]) for name in ("images", *DENSE) if name in example}


def output_shape(augmentations: Sequence[Any], image_shape: Shape) -> Shape:
    """Returns the (height, width, channels) of training images after these augmentations.

    Raises:
        ConfigError: for the first one that does not fit the images.
    """
    for augmentation in augmentations:
        if isinstance(augmentation, Shaped):
            image_shape = augmentation.output_shape(image_shape)
    return image_shape
