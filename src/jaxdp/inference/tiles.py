"""Predicts every pixel of an image of any size, in overlapping tiles that are mirrored outside the
border.

Source: Ronneberger, Fischer, Brox 2015, figure 2 (the overlap-tile strategy). In the paper, each
output is smaller than its tile, and outputs are side by side. If an output is as large as its tile,
outputs here overlap and are blended.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Shaped

# Tiles begin at multiples of this number, so that up to five poolings by two divide a tile in the
# same way as the whole image. Sides are also padded to multiples of it, so that images of many
# sizes require few programs.
ALIGNMENT = 32
# Pixels beyond the requested side at which the search for a side that suits the network stops.
_FARTHEST = 2048


@dataclasses.dataclass(frozen=True)
class Side:
    """The cover of the height or width of an image by tiles, in pixels.

    Attributes:
        size: of the image.
        input_size: of each tile, as input of the network.
        output_size: of its output, which belongs to the middle of the tile.
        starts: the position in the image at which each output begins.
        margin: distance from the end of a tile, inside the image, within which an output has no
            weight.
    """

    size: int
    input_size: int
    output_size: int
    starts: tuple[int, ...]
    margin: int = 0

    @property
    def padding(self) -> tuple[int, int]:
        """Returns how many pixels the tiles require before and after the image."""
        before = (self.input_size - self.output_size) // 2
        return before, self.starts[-1] + self.input_size - before - self.size

    @property
    def covered(self) -> int:
        return self.starts[-1] + self.output_size

    def weights(self) -> Float[np.ndarray, "tiles output_size"]:
        """Returns the weight of each pixel of each output. At each pixel of the image, the weights
        sum to 1.

        The weights rise as a squared sine over the overlap of the tiles without the margins,
        because an output is worst at the end of its tile.
        """
        overlap = self.output_size - max(np.diff(self.starts), default=self.output_size)
        from_edge = np.arange(self.output_size) - self.margin
        rising = np.clip((from_edge + 0.5) / max(overlap - 2 * self.margin, 0.5), 0, 1)
        weights = np.ones((len(self.starts), self.output_size))
        weights[1:] *= np.sin(np.pi / 2 * rising) ** 2
        weights[:-1] *= np.sin(np.pi / 2 * rising[::-1]) ** 2
        pixels = np.add.outer(self.starts, np.arange(self.output_size))
        total = np.zeros(self.covered)
        np.add.at(total, pixels, weights)
        return (weights / total[pixels]).astype(np.float32)


class Tiles:
    """Cuts images for one network.

    Args:
        output_side: returns the side of the network's output for a square image of this side. It
            may raise ValueError or TypeError if the image does not suit the network. Height and
            width must behave in the same way, independently of each other.
        tile: side of the outputs for large images, in pixels, at least twice ALIGNMENT. It is
            rounded up to a multiple of ALIGNMENT, and to four times the margin that `reach`
            requires, which leaves half of a tile.
        overlap: minimum number of pixels that neighbouring tiles share, at most half a tile. Pixels
            that the network drops at its border count.
        reach: the receptive field on each side, as `receptive_field.measure` returns it. Outputs
            nearer to the end of their tile have no weight, so that tiles give the prediction of the
            whole image. With 0, all outputs count.
        exact: height and width in training, which are not padded to multiples of ALIGNMENT.
    """

    def __init__(
        self,
        output_side: Callable[[int], int],
        *,
        tile: int,
        overlap: int,
        reach: int = 0,
        exact: tuple[int, ...] = (),
    ) -> None:
        self._output_side = output_side
        self._overlap = overlap
        self._reach = reach
        self._exact = exact
        self._fits: dict[int, tuple[int, int]] = {}
        self.tile = _round_up(tile)
        if reach:
            self.tile = max(self.tile, 4 * _round_up(self._margin(*self.fit(self.tile))))

    def _margin(self, input_size: int, output_size: int) -> int:
        """Returns the distance from its end within which an output has no weight.

        Outputs that the network drops at its border need not be dropped again.
        """
        return max(self._reach - (input_size - output_size) // 2, 0)

    def side(self, size: int, *, exact: bool = False) -> Side:
        """Returns the cover of a height or width. An image up to the size of a tile is one tile."""
        input_size, output_size = self.fit(min(size if exact else _round_up(size), self.tile))
        margin = self._margin(input_size, output_size)
        steps = max(-(-(size - output_size) // ALIGNMENT), 0)  # from the first start to the last
        shared = max(self._overlap - (input_size - output_size), 2 * margin, 0)
        longest = max((output_size - shared) // ALIGNMENT, 1)
        gaps = -(-steps // longest)
        starts = tuple(round(index * steps / max(gaps, 1)) * ALIGNMENT for index in range(gaps + 1))
        return Side(size, input_size, output_size, starts, margin)

    def sides(self, shape: tuple[int, ...]) -> tuple[Side, Side]:
        exact = shape[:2] == self._exact
        return self.side(shape[0], exact=exact), self.side(shape[1], exact=exact)

    def cut(
        self, image: Shaped[np.ndarray, "height width channels"]
    ) -> Iterator[Shaped[np.ndarray, "h w channels"]]:
        """Yields the tiles of an image, row by row.

        Raises:
            ValueError: the error of `output_side`, if no size suits the network.
        """
        rows, columns = self.sides(image.shape)
        padded = np.pad(image, (rows.padding, columns.padding, (0, 0)), mode="symmetric")
        for top, left in itertools.product(rows.starts, columns.starts):
            yield padded[top : top + rows.input_size, left : left + columns.input_size]

    def blend(
        self, shape: tuple[int, ...], answers: Iterator[Float[np.ndarray, "h w outputs"]]
    ) -> Float[np.ndarray, "height width outputs"]:
        """Returns the prediction for each pixel, averaged where tiles overlap.

        Args:
            shape: of the image.
            answers: outputs for its tiles. Use probabilities, because logits are unbounded and do
                not average well.
        """
        rows, columns = self.sides(shape)
        blended = None
        for top, by_row in zip(rows.starts, rows.weights(), strict=True):
            for left, by_column in zip(columns.starts, columns.weights(), strict=True):
                answer = next(answers)
                if blended is None:
                    size = (rows.covered, columns.covered, answer.shape[-1])
                    blended = np.zeros(size, np.float32)
                part = np.s_[top : top + rows.output_size, left : left + columns.output_size]
                blended[part] += by_row[:, None, None] * by_column[:, None] * answer
        assert blended is not None
        return blended[: rows.size, : columns.size]

    def fit(self, wanted: int) -> tuple[int, int]:
        """Returns the smallest input side with an output of at least the requested side, and the
        side of this output.

        The smallest side is also the best. If poolings drop odd pixels, outputs grow in jumps, and
        just at a jump no pixel is dropped.
        """
        if wanted not in self._fits:
            low, high = wanted - 1, wanted
            while (answer := self._answer(high, must=high - wanted > _FARTHEST)) < wanted:
                low, high = high, high + (wanted - answer if answer else ALIGNMENT)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._answer(middle) >= wanted else (middle, high)
            self._fits[wanted] = high, self._answer(high)
        return self._fits[wanted]

    def _answer(self, side: int, *, must: bool = False) -> int:
        """Returns the side of the output, or 0 for an input that does not suit the network."""
        try:
            return self._output_side(side)
        except (ValueError, TypeError):
            if must:
                raise
            return 0


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
