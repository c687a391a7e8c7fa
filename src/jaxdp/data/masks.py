"""Finds the class numbers of masks, from numbers of any depth or colours according to
`--mask-values`, or from the masks of the training set.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.config.values import MaskValues
from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.data.request import NOT_GIVEN, Request
from jaxdp.data.source import BadExample
from jaxdp.errors import ConfigError, flag
from jaxdp.text.console import warn
from jaxdp.text.messages import some

_HIGHEST = 2**16 - 1  # for `--mask-values`
# The user must declare more classes than this, because the numbers may be instance labels.
MOST_UNDECLARED = 9
MOST_LISTED = 32  # values or colours in an error
_MOST_COLOURS = 1000  # that are remembered
BLACK_AND_WHITE = (0, IGNORE_LABEL)


class Found(NamedTuple):
    """The values of a mask.

    Attributes:
        values: in ascending order: numbers from 0 to 65535, or colours as 0xRRGGBB.
        colours: whether they are colours.
        where: names the mask in errors.
    """

    values: np.ndarray
    colours: bool
    where: object


def unique_values(stored: np.ndarray, where: object) -> Found:
    """Returns the values of a mask as `image_file.read_mask` returns it.

    Raises:
        BadExample: for values that are neither class numbers nor colours.
    """
    colours = stored.ndim == 3
    if colours:
        stored = _packed(stored, where)
    else:
        _check_numbers(stored, where, _HIGHEST)
    flat = stored.ravel()  # few pixels of a mask differ from the previous pixel
    values = np.unique(np.concatenate([flat[:1], flat[1:][flat[1:] != flat[:-1]]]))
    return Found(values.astype(np.int64), colours, where)


def find_classes(
    masks: Iterable[Found], request: Request, names: Sequence[str]
) -> tuple[int, tuple[int, ...]]:
    """Returns the number of classes of the masks of a training set, and their values; no values if
    `--mask-values` declares the classes.

    Args:
        masks: the values of each mask.
        names: of the classes, if they are known.

    Raises:
        ConfigError: for masks of one class, or with ambiguous values.
    """
    config = request.config
    numbers, colours = set[int](), set[int]()
    others = set[int]()  # numbers of masks with some that only `--mask-values` names
    num_usual, num_others = 0, 0
    first = dict[tuple[bool, bool], object]()  # masks with or without 1 and 255
    for values, is_colour, where in masks:
        other = is_colour or bool(values.max(initial=0) > IGNORE_LABEL)
        num_usual, num_others = num_usual + (not other), num_others + other
        if not is_colour:
            (others if other else numbers).update(values.tolist())
            first.setdefault((1 in values, IGNORE_LABEL in values), where)
        elif len(colours) < _MOST_COLOURS:
            colours.update(values[:_MOST_COLOURS].tolist())
    # A few other masks are bad examples, which may be left out.
    if not request.skip or 2 * num_others >= num_usual:
        numbers |= others
    if config.mask_values is not None:
        return _declared(numbers, config), ()
    if colours and not numbers:
        raise _ask(config.dataset, _colours_remedy(sorted(colours)))
    if numbers == {0, 1, IGNORE_LABEL} and (True, True) not in first:
        ways = (
            f"0 and 1 (e.g. {first[True, False]}) or 0 and 255 (e.g. {first[False, True]}); give"
            f" {flag('mask_values', 'binary')} if both are class 1, or"
            f" {flag('mask_values', '0,1')} to ignore 255"
        )
        raise _ask(config.dataset, ways)
    held = tuple(sorted(numbers & {*range(256)}))
    if numbers == {*BLACK_AND_WHITE}:  # masks do not ignore all but the background
        return config.num_classes or 2, held
    _warn_without_0(held, config.dataset)
    if config.num_classes is not None:
        return config.num_classes, held
    return _count(sorted(numbers), config.dataset, len(config.class_names or names)), held


def _warn_without_0(values: Sequence[int], dataset: str | None) -> None:
    """Warns if the classes of masks seem to count from 1."""
    if len(values) > 1 and 0 not in values:
        classes = ",".join(str(number) for number in values if number != IGNORE_LABEL)
        remedy = f"if the classes are counted from 1, give {flag('mask_values', classes)}"
        warn(f"{dataset}: no training mask has the value 0: class 0 is empty; {remedy}")


def _declared(numbers: set[int], config: DataConfig) -> int:
    """Returns how many classes `--mask-values` declares."""
    assert config.mask_values is not None
    if config.num_classes is None and len(numbers - {IGNORE_LABEL}) < 2:
        remedy = (
            f"leaves the training masks of {config.dataset} one class only; correct it, or give"
            f" {flag('num_classes')}"
        )
        raise ConfigError("mask_values", str(config.mask_values), remedy)
    return config.mask_values.num_classes


def mask_table(trained: Sequence[int]) -> np.ndarray | None:
    """Returns the class of each stored mask value, uint8 (256,); None if the values are the
    classes.

    Args:
        trained: the values of the training masks.
    """
    if tuple(trained) != BLACK_AND_WHITE:
        return None
    table = np.arange(256, dtype=np.uint8)
    table[IGNORE_LABEL] = 1
    return table


def check_like(stored: np.ndarray, trained: Sequence[int], where: object) -> None:
    """Raises BadExample for a mask with values that mean other classes than in the training masks.

    255 is class 1 if the training masks hold 0 and 255, and is ignored if they hold 255 and 1. A
    mask of 0 and 1 has the same meaning in both cases.

    Args:
        stored: its values, each once or one for each pixel.
        trained: the values of the training masks; empty if settings declare them.
    """
    if not trained or (highest := int(stored.max(initial=0))) < 2:
        return
    problem = ""
    if tuple(trained) == BLACK_AND_WHITE:
        wrong = stored[(stored != 0) & (stored != IGNORE_LABEL)]
        if wrong.size:
            problem = f"the value {wrong[0]}, and the training masks 0 and 255"
    elif highest == IGNORE_LABEL and {*trained} <= {0, 1} and not (stored == 1).any():
        ignoring = f"{flag('mask_values', '0,1')} ignores 255"
        problem = f"255 but not 1, and the training masks 0 and 1; {ignoring}"
    if problem:
        ways = f"{flag('mask_values', 'binary')} makes all but 0 class 1"
        raise BadExample(where, f"its mask has {problem}; {ways}")


def _count(numbers: list[int], dataset: str | None, declared: int) -> int:
    """Returns the number of classes for these numbers.

    Args:
        declared: how many names of classes there are.

    Raises:
        ConfigError: for one class, for numbers with gaps, and for so many numbers that they may be
            instance labels.
    """
    wide = numbers[-1] > IGNORE_LABEL
    classes = [number for number in numbers if wide or number != IGNORE_LABEL]
    count = max(classes, default=-1) + 1
    if count < 2:
        raise _ask(dataset, f"one class only; give {flag('num_classes')}", "num_classes")
    if count <= 2 * len(classes) and (count <= MOST_UNDECLARED or count == declared):
        return count
    ways = [f"{flag('mask_values', 'binary')} if 0 is background and everything else class 1"]
    if len(numbers) <= MOST_LISTED:
        listed = ",".join(map(str, numbers))
        ways.insert(0, f"{flag('mask_values', listed)} if each is a class")
    ways.append(f"{flag('instances')} if they are numbers of objects")
    if not wide:
        ways.append(f"{flag('num_classes', count)} if they are class numbers")
    held = f"{len(classes)} values up to {classes[-1]} ({some(classes, 6)})"
    raise _ask(dataset, f"{held}; give {', or '.join(ways)}")


def _ask(dataset: str | None, remedy: str, setting: str = "mask_values") -> ConfigError:
    return ConfigError(setting, NOT_GIVEN, f"the training masks of {dataset} hold {remedy}")


def _colours_remedy(colours: list[int]) -> str:
    listed = [f"{colour:06x}" for colour in colours]
    if len(colours) > MOST_LISTED:
        many = f"{min(len(colours), _MOST_COLOURS)} colours or more ({', '.join(listed[:4])}, ...)"
        return f"{many}; save them with one colour a class, as PNG, without antialiasing"
    several = f"{len(colours)} colours; name the colours of class 0, 1, ..."
    return f"{several}: {flag('mask_values', ','.join(listed))}"


def to_class_numbers(stored: np.ndarray, values: MaskValues | None, where: object) -> np.ndarray:
    """Returns class numbers, uint8 (H, W), with IGNORE_LABEL for ignored pixels.

    Args:
        stored: numbers (H, W), or colours (H, W, 3) or with their opacity (H, W, 4).
        values: the values of the classes; None if the numbers are class numbers.
        where: names the mask in errors.

    Raises:
        BadExample: for a value or a colour that is not among them.
    """
    if values is None:
        if stored.ndim == 3:
            raise _wrong_channels(stored, where)
        _check_numbers(stored, where, 255)
        return stored.astype(np.uint8)
    if stored.ndim == 3:
        stored = _packed(stored, where)
        if not values.colours and values.values is not None:
            coloured = stored != (stored & 0xFF) * 0x010101
            if coloured.any():
                held = f"its mask has colours, e.g. {stored[coloured][0]:06x}"
                raise BadExample(where, f"{held}, and {flag('mask_values', values)} are numbers")
            stored = stored & 0xFF
    else:
        _check_numbers(stored, where, 255 if values.colours else _HIGHEST)
        if values.colours:  # grey is also a colour
            stored = stored.astype(np.uint32) * np.uint32(0x010101)
    return _looked_up(stored, values, where)


def _looked_up(stored: np.ndarray, values: MaskValues, where: object) -> np.ndarray:
    wanted = values.values
    if wanted is None:
        return (stored != 0).astype(np.uint8)
    order = np.argsort(wanted)
    ascending = np.array(wanted, np.uint32)[order]
    places = np.minimum(np.searchsorted(ascending, stored), len(wanted) - 1)
    numbers, unknown = order.astype(np.uint8)[places], ascending[places] != stored
    if not values.colours:
        ignored = unknown & (stored == IGNORE_LABEL)
        numbers[ignored] = IGNORE_LABEL
        unknown &= ~ignored
    if unknown.any():
        kind, first = "colour" if values.colours else "value", int(stored[unknown][0])
        held = f"its mask has the {kind} {values.show(first)}"
        raise BadExample(where, f"{held}, not one of {flag('mask_values', values)}")
    return numbers


def _packed(stored: np.ndarray, where: object) -> np.ndarray:
    """Returns colours as 0xRRGGBB, uint32 (H, W); what is transparent is black."""
    if stored.shape[2] not in (3, 4) or stored.dtype != np.uint8:
        raise _wrong_channels(stored, where)
    red, green, blue = (stored[..., channel].astype(np.uint32) for channel in range(3))
    packed = (red << 16) | (green << 8) | blue
    return packed if stored.shape[2] == 3 else np.where(stored[..., 3] > 0, packed, np.uint32(0))


def check_zero(stored: np.ndarray, ends: int, values: MaskValues | None, where: object) -> None:
    """Raises ConfigError for a mask if it is unknown whether it is inverted.

    Args:
        ends: as `tiff.Plane.ends`; a mask with a number between the ends is not inverted.
        values: value of `--mask-values`. Numbers in it resolve the question.
    """
    if not ends or (values is not None and values.values is not None):
        return
    if ((stored == 0) | (stored == ends)).all():
        remedy = (
            f"{where} is a TIFF file in which 0 is white, and holds 0 and {ends} only; give"
            f" {flag('mask_values', f'0,{ends}')} if 0 is class 0,"
            f" {flag('mask_values', f'{ends},0')} if {ends} is, or save it as PNG"
        )
        raise ConfigError("mask_values", str(values or NOT_GIVEN), remedy)


def _wrong_channels(stored: np.ndarray, where: object) -> BadExample:
    problem = (
        f"has the wrong number of channels ({stored.shape[2]} of {stored.dtype}); save it as class"
        f" numbers, greyscale or with a palette, or list its 8-bit colours by {flag('mask_values')}"
    )
    return BadExample(where, problem)


def _check_numbers(stored: np.ndarray, where: object, most: int) -> None:
    above = f"; or list them by {flag('mask_values')}"
    check_whole(stored, where, most, "class numbers", above=above)


def check_whole(
    stored: np.ndarray, where: object, most: int, names: str, *, above: str = ""
) -> None:
    """Raises BadExample unless all values of a mask are whole numbers from 0 to `most`.

    Args:
        names: what the values are.
        above: the remedy for values above `most`.
    """
    highest, lowest = float(stored.max(initial=0)), float(stored.min(initial=0))
    if not 0 <= lowest <= highest <= most:  # nor is NaN
        problem = f"has values from {lowest:g} to {highest:g}; {names} are 0 to {most}"
        raise BadExample(where, problem + above * bool(highest > most))
    if stored.dtype.kind == "f" and (stored != np.floor(stored)).any():
        raise BadExample(where, f"has fractions; {names} are integers")
