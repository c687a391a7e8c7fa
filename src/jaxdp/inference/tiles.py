"""Has a model answer for every pixel of an image of any size, in overlapping tiles that are
mirrored beyond the border.

Source: Ronneberger, Fischer, Brox 2015, figure 2 (the overlap-tile strategy). There each answer is
smaller than its tile, and answers lie side by side; where an answer is as large as its tile, ours
overlap and fade into each other instead.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Shaped

# Tiles begin at multiples of this, so that up to five poolings by two cut a tile as they would the
# whole image. Sides are also padded to multiples of it, so that images of many sizes need few
# programs.
ALIGNMENT = 32
# Pixels beyond the wanted side at which the search for one that the network takes gives up.
_FARTHEST = 2048


@dataclasses.dataclass(frozen=True)
class Side:
    """How height or width of an image is covered, in pixels.

    Attributes:
        size: of the image.
        input_size: of each tile, as the network takes it.
        output_size: of the answer to it, which belongs to the middle of the tile.
        starts: where in the image each answer begins.
        margin: how far from the end of a tile, where the image goes on, an answer counts nothing.
    """

    size: int
    input_size: int
    output_size: int
    starts: tuple[int, ...]
    margin: int = 0

    @property
    def padding(self) -> tuple[int, int]:
        """Returns how many pixels the tiles need before and after the image."""
        before = (self.input_size - self.output_size) // 2
        return before, self.starts[-1] + self.input_size - before - self.size

    @property
    def covered(self) -> int:
        return self.starts[-1] + self.output_size

    def weights(self) -> Float[np.ndarray, "tiles output_size"]:
        """Returns by how much each pixel of each answer counts: at each pixel of the image the
        weights sum to 1.

        They rise as a squared sine over what tiles share except the margins, because an answer is
        worst where its tile ends.
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
        output_side: side of the network's answer to a square image of that side; may raise
            ValueError or TypeError where the image does not suit it. Height and width are taken to
            behave alike, independently of each other.
        tile: side of the answers to large images, in pixels, at least twice ALIGNMENT. It is
            rounded up to a multiple of ALIGNMENT, and to four times the margin that `reach` asks
            for, which leaves half of a tile.
        overlap: least number of pixels that neighbours share, at most half a tile; what the network
            drops at its border counts.
        reach: how far the network sees, as `reach.measure` returns it. Answers nearer than that to
            the end of their tile count nothing, so that tiles give the answers of the whole image.
            0 lets all answers count.
        exact: height and width that the network was trained at, which are not padded to multiples
            of ALIGNMENT.
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
        """Returns how far from its end an answer counts nothing.

        Answers that the network drops there need not be dropped again.
        """
        return max(self._reach - (input_size - output_size) // 2, 0)

    def side(self, size: int, *, exact: bool = False) -> Side:
        """Returns how to cover a height or width; images up to the size of a tile are one tile."""
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
            ValueError: what `output_side` raises, if no size suits the network.
        """
        rows, columns = self.sides(image.shape)
        padded = np.pad(image, (rows.padding, columns.padding, (0, 0)), mode="symmetric")
        for top, left in itertools.product(rows.starts, columns.starts):
            yield padded[top : top + rows.input_size, left : left + columns.input_size]

    def blend(
        self, shape: tuple[int, ...], answers: Iterator[Float[np.ndarray, "h w outputs"]]
    ) -> Float[np.ndarray, "height width outputs"]:
        """Returns the answer for each pixel, averaged where tiles overlap.

        Args:
            shape: of the image.
            answers: to its tiles; let these be probabilities, not logits, which know no bounds and
                would not average well.
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
        """Returns the smallest input side with an answer of at least the wanted side, and the side
        of that answer.

        The smallest is also the best: where poolings drop odd pixels, answers grow in jumps, and
        just at a jump nothing is dropped.
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
        """Returns the side of the answer, and 0 for one that does not suit the network."""
        try:
            return self._output_side(side)
        except (ValueError, TypeError):
            if must:
                raise
            return 0


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
