"""Class numbers of masks: from numbers of any depth or colours, as `--mask-values` says."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data.dataset import IGNORE_LABEL, BadExample
from jaxdp.registry import ConfigError

_HIGHEST = 2**16 - 1  # of what `--mask-values` can name
_MODES = {3: "RGB", 4: "RGBA"}


@dataclasses.dataclass(frozen=True)
class Distinct:
    """What a mask holds.

    Attributes:
        values: in ascending order: numbers from 0 to 65535, or colours as 0xRRGGBB.
        colours: whether they are colours.
    """

    values: np.ndarray
    colours: bool

    @classmethod
    def of(cls, stored: np.ndarray, where: object) -> "Distinct":
        """Looks through a mask as `read_mask` returns it.

        Raises:
            BadExample: for values that are neither class numbers nor colours.
        """
        if stored.ndim == 3:
            return cls(_unique(_packed(stored, where)), colours=True)
        _check_numbers(stored, where, _HIGHEST)
        return cls(_unique(stored), colours=False)


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
        if values.colours:  # grey is a colour, too
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
        return masks  # whoever checks the arrays says so
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
