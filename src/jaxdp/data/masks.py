"""Class numbers of masks: from numbers of any depth or colours, as `--mask-values` says, or found
in the masks of the training set.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data.dataset import IGNORE_LABEL, BadExample
from jaxdp.data.request import Request
from jaxdp.registry import ConfigError

_HIGHEST = 2**16 - 1  # of what `--mask-values` can name
_MODES = {3: "RGB", 4: "RGBA"}
# More classes than these are declared by the user: they may be numbers of objects.
_MOST_UNDECLARED = 9
_MOST_LISTED = 32  # values or colours in an error
_MOST_COLOURS = 1000  # that are remembered
_NOT_GIVEN = "(not given)"


@dataclasses.dataclass(frozen=True)
class UniqueMaskValues:
    """The values of a mask.

    Attributes:
        values: in ascending order: numbers from 0 to 65535, or colours as 0xRRGGBB.
        colours: whether they are colours.
    """

    values: np.ndarray
    colours: bool

    @classmethod
    def of(cls, stored: np.ndarray, where: object) -> "UniqueMaskValues":
        """Looks through a mask as `image_file.read_mask` returns it.

        Raises:
            BadExample: for values that are neither class numbers nor colours.
        """
        if stored.ndim == 3:
            return cls(_unique(_packed(stored, where)), colours=True)
        _check_numbers(stored, where, _HIGHEST)
        return cls(_unique(stored), colours=False)


class ClassFinder:
    """Finds which classes the masks of a training set have, or asks if their values do not say it.

    Args:
        names: of the classes, if they are known.
    """

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        self._request, self._names = request, request.config.class_names or names
        self._numbers: set[int] = set()
        self._colours: set[int] = set()
        self._others: set[int] = set()  # numbers of masks with some that only `--mask-values` names
        self._counts = {"usual": 0, "other": 0}

    @property
    def is_declared(self) -> bool:
        """Whether the user says which values are classes, so that a sample of masks suffices."""
        config = self._request.config
        return config.num_classes is not None or config.mask_values is not None

    def add(self, content: UniqueMaskValues) -> None:
        """Adds the values of one mask."""
        values = set(content.values[:_MOST_COLOURS].tolist())
        other = content.colours or max(values, default=0) > IGNORE_LABEL
        self._counts["other" if other else "usual"] += 1
        if not content.colours:
            (self._others if other else self._numbers).update(content.values.tolist())
        elif len(self._colours) <= _MOST_COLOURS:
            self._colours |= values

    def classes(self) -> tuple[int, np.ndarray | None]:
        """Returns how many classes the masks have, and the class of each stored value if the values
        are not the classes.

        Raises:
            ConfigError: for masks of one class, or with values that may mean several things.
        """
        config = self._request.config
        values, given = config.mask_values, config.num_classes
        numbers, colours = self._numbers, self._colours
        # A few other masks are bad examples, which may be left out.
        if not self._request.skip or 2 * self._counts["other"] >= self._counts["usual"]:
            numbers = numbers | self._others
        if values is not None:
            if given is None and len(numbers - {IGNORE_LABEL}) < 2:
                remedy = (
                    f"leaves the training masks of {config.dataset} one class only; correct it, or"
                    " give --num-classes"
                )
                raise ConfigError("mask_values", str(values), remedy)
            return values.num_classes, None
        if colours and not numbers:
            raise self._unnamed_colours(sorted(colours))
        if numbers == {0, 255}:  # black and white: masks do not ignore all but the background
            table = np.arange(256, dtype=np.uint8)
            table[255] = 1
            return given or 2, table
        return given or self._count(sorted(numbers)), None

    def _unnamed_colours(self, colours: list[int]) -> ConfigError:
        held = f"the training masks of {self._request.config.dataset} hold"
        listed = [f"{colour:06x}" for colour in colours]
        if len(colours) > _MOST_LISTED:
            over = "over " * (len(colours) >= _MOST_COLOURS)
            remedy = (
                f"{held} {over}{min(len(colours), _MOST_COLOURS)} colours"
                f" ({', '.join(listed[:4])}, ...); save them with one colour a class, as PNG rather"
                " than JPEG, without antialiasing"
            )
        elif len(colours) < 2:
            remedy = f"{held} one colour only, {listed[0]}; there is nothing to tell apart"
        else:
            remedy = (
                f"{held} {len(colours)} colours; name those of class 0, 1, ...: --mask-values"
                f" {','.join(listed)}"
            )
        return ConfigError("mask_values", _NOT_GIVEN, remedy)

    def _count(self, numbers: list[int]) -> int:
        """Returns how many classes these numbers are.

        Raises:
            ConfigError: for one class, numbers with gaps, and so many numbers that they may be
                instance labels.
        """
        where, wide = self._request.config.dataset, numbers[-1] > IGNORE_LABEL
        classes = [number for number in numbers if wide or number != IGNORE_LABEL]
        count = max(classes, default=-1) + 1
        if count < 2:
            raise ConfigError(
                "num_classes",
                _NOT_GIVEN,
                f"the training masks of {where} hold one class only; give --num-classes",
            )
        dense = count <= 2 * len(classes)
        if dense and (count <= _MOST_UNDECLARED or count == len(self._names)):
            return count
        if dense:
            either = "" if wide else f", or --num-classes {count} if they are classes"
            remedy = (
                f"the training masks of {where} hold numbers up to {count - 1}, which may be"
                " classes or numbers of objects; give --mask-values binary (0 is background,"
                f" everything else class 1), --instances for objects{either}"
            )
            raise ConfigError("mask_values", _NOT_GIVEN, remedy)
        listed = ", ".join(map(str, classes[:6])) + ", ..." * (len(classes) > 6)
        pasted = "--mask-values binary if 0 is background and everything else class 1"
        if len(numbers) <= _MOST_LISTED:
            pasted = f"--mask-values {','.join(map(str, numbers))} if each is a class"
        renumber = f"number the classes 0, 1, 2, ... and {IGNORE_LABEL} for ignored pixels"
        objects = "; or --instances if they are numbers of objects" * (len(classes) > 2)
        held = f"the training masks hold {len(classes)} values up to {count - 1} ({listed})"
        if wide:
            remedy = f"{held}; give {pasted}, or {renumber}{objects}"
            raise ConfigError("mask_values", _NOT_GIVEN, remedy)
        remedy = f"{held}; give {pasted}, {renumber}, or give --num-classes {count}{objects}"
        raise ConfigError("num_classes", _NOT_GIVEN, remedy)


def to_class_numbers(stored: np.ndarray, values: MaskValues | None, where: object) -> np.ndarray:
    """Returns class numbers, uint8 (H, W), with IGNORE_LABEL for pixels to ignore.

    Args:
        stored: numbers (H, W), or colours (H, W, 3) or with their opacity (H, W, 4).
        values: which of them are the classes; None if they are class numbers themselves.
        where: names the mask in errors.

    Raises:
        BadExample: for a value or a colour that is none of them.
    """
    if values is None:
        if stored.ndim == 3:
            _check_channels(stored, where)
            problem = (
                f"has the wrong number of channels (mode {_MODES[stored.shape[2]]}); save it as"
                " class numbers, greyscale or"
            )
            raise BadExample(
                where, f"{problem} with a palette (P), or list the colours by --mask-values"
            )
        _check_numbers(stored, where, 255)
        return stored.astype(np.uint8)
    if stored.ndim == 3:
        stored = _packed(stored, where)
        if not values.colours and values.values is not None:
            if (stored != (stored & 0xFF) * 0x010101).any():
                coloured = stored[stored != (stored & 0xFF) * 0x010101][0]
                raise BadExample(
                    where,
                    f"its mask has colours, e.g. {coloured:06x}, and --mask-values {values} are"
                    " numbers",
                )
            stored = stored & 0xFF
    else:
        _check_numbers(stored, where, _HIGHEST)
        if values.colours:  # grey is also a colour
            _check_numbers(stored, where, 255)
            stored = stored.astype(np.uint32) * np.uint32(0x010101)
    if values.values is None:
        return (stored != 0).astype(np.uint8)
    return _looked_up(stored, values.values, values, where)


def number_arrays(
    masks: np.ndarray, values: MaskValues, name: str, fail: Callable[[str], ConfigError]
) -> np.ndarray:
    """Returns class numbers, uint8 (N, H, W), of masks in an array.

    Raises what `fail` makes of a value that is no class.
    """
    if masks.ndim == 4 and masks.shape[3] == 1:
        masks = masks[..., 0]
    if masks.ndim not in (3, 4) or masks.dtype.kind not in "iub":
        return masks  # the check of the arrays reports it
    try:
        numbered = [
            to_class_numbers(mask, values, f"{name}[{index}]") for index, mask in enumerate(masks)
        ]
    except BadExample as error:
        raise fail(f"{error.where}: {error.problem}") from error
    return np.stack(numbered) if numbered else np.zeros(masks.shape[:3], np.uint8)


def _looked_up(
    stored: np.ndarray, wanted: tuple[int, ...], values: MaskValues, where: object
) -> np.ndarray:
    if values.colours:
        order = np.argsort(wanted)
        ascending = np.array(wanted, np.uint32)[order]
        places = np.minimum(np.searchsorted(ascending, stored), len(wanted) - 1)
        numbers, unknown = order.astype(np.uint8)[places], ascending[places] != stored
    else:
        table = np.full(_HIGHEST + 1, IGNORE_LABEL, np.uint8)  # which is no class number
        table[list(wanted)] = np.arange(len(wanted))
        numbers = table[stored.astype(np.uint16, copy=False)]
        unknown = (numbers == IGNORE_LABEL) & (stored != IGNORE_LABEL)
    if unknown.any():
        kind, first = "colour" if values.colours else "value", int(stored[unknown][0])
        raise BadExample(
            where,
            f"its mask has the {kind} {values.show(first)}, not one of --mask-values {values}",
        )
    return numbers


def _unique(values: np.ndarray) -> np.ndarray:
    """Returns the values that there are; few pixels of a mask differ from the one before."""
    flat = values.ravel()
    return np.unique(np.concatenate([flat[:1], flat[1:][flat[1:] != flat[:-1]]]))


def _packed(stored: np.ndarray, where: object) -> np.ndarray:
    """Returns colours as 0xRRGGBB, uint32 (H, W); what is transparent is black."""
    _check_channels(stored, where)
    red, green, blue = (stored[..., channel].astype(np.uint32) for channel in range(3))
    packed = (red << 16) | (green << 8) | blue
    return packed if stored.shape[2] == 3 else np.where(stored[..., 3] > 0, packed, np.uint32(0))


def _check_channels(stored: np.ndarray, where: object) -> None:
    if stored.shape[2] not in _MODES:
        raise BadExample(
            where,
            f"has the wrong number of channels ({stored.shape[2]}); save it as class numbers,"
            " greyscale",
        )
    if stored.dtype != np.uint8:
        raise BadExample(
            where,
            f"has colours of {stored.dtype}; save it with 8 bits a channel, or as class numbers,"
            " greyscale",
        )


def _check_numbers(stored: np.ndarray, where: object, most: int) -> None:
    highest, lowest = stored.max(initial=0), stored.min(initial=0)
    if not 0 <= lowest <= highest <= most:  # nor is NaN
        listed = "; or list them by --mask-values" if highest > most else ""
        raise BadExample(
            where,
            f"has values from {lowest:g} to {highest:g}; class numbers are 0 to {most}{listed}",
        )
    if stored.dtype.kind == "f" and (stored != np.floor(stored)).any():
        raise BadExample(where, "has fractions; class numbers are integers")
