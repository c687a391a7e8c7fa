"""Tiles cover every pixel, meet without a seam, and ask for few programs."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from jaxdp.inference import receptive_field as reach
from jaxdp.inference.tiles import ALIGNMENT, Tiles

RNG = np.random.default_rng(0)


@dataclasses.dataclass
class Network:
    function: Callable[[np.ndarray], np.ndarray]
    output_side: Callable[[int], int]

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        return self.function(batch.astype(np.float32))


def pointwise(batch: np.ndarray) -> np.ndarray:
    return batch / 255


def box_sum(batch: np.ndarray, reach: int = 2) -> np.ndarray:
    """Sums over a window; what lies outside counts as 0, as in a convolution with same padding."""
    padded = np.pad(batch, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
    return box_sum_valid(padded, reach)


def box_sum_valid(batch: np.ndarray, reach: int = 2) -> np.ndarray:
    height, width = (side - 2 * reach for side in batch.shape[1:3])
    offsets = range(2 * reach + 1)
    return np.sum([batch[:, y : y + height, x : x + width] for y in offsets for x in offsets], 0)


def small_unet(batch: np.ndarray) -> np.ndarray:
    """Unpadded, with a pooling: drops 2 pixels, halves, drops 2, doubles."""
    inner = batch[:, 2:-2, 2:-2]
    height, width = inner.shape[1] // 2, inner.shape[2] // 2
    pooled = (
        inner[:, : 2 * height, : 2 * width].reshape(len(batch), height, 2, width, 2, -1).max((2, 4))
    )
    return pooled[:, 2:-2, 2:-2].repeat(2, 1).repeat(2, 2)


SAME = Network(pointwise, lambda side: side)
VALID = Network(box_sum_valid, lambda side: side - 4)
UNET = Network(small_unet, lambda side: 2 * ((side - 4) // 2 - 4))


def image(height: int, width: int, channels: int = 1) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, channels)).astype(np.uint8)


def predict(
    tiler: Tiles, network: Callable[[np.ndarray], np.ndarray], picture: np.ndarray
) -> np.ndarray:
    answers = (network(tile[None])[0] for tile in tiler.cut(picture))
    return tiler.blend(picture.shape, answers)


def whole(network: Network, picture: np.ndarray, exact: bool = True) -> np.ndarray:
    """The answer in one piece."""
    tiler = Tiles(
        network.output_side, tile=4096, overlap=0, exact=picture.shape[:2] if exact else ()
    )
    return predict(tiler, network, picture)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 96, 97, 129, 511, 1000])
@pytest.mark.parametrize("margin", [0, 4])
def test_a_side_is_covered(size: int, margin: int) -> None:
    for tile, overlap in [(64, 0), (64, 32), (100, 0), (100, 50), (256, 16), (256, 128)]:
        side = Tiles(lambda side: side - margin, tile=tile, overlap=overlap).side(size)
        assert side.starts[0] == 0
        assert side.covered >= size
        assert all(start % ALIGNMENT == 0 for start in side.starts)
        shared = side.output_size - np.diff(side.starts)
        assert np.all(shared >= overlap - margin)
        assert np.all(shared < side.output_size)
        before, after = side.padding
        assert before == margin // 2
        assert before + size + after == side.starts[-1] + side.input_size
        total = np.zeros(side.covered)
        for start, weights in zip(side.starts, side.weights(), strict=True):
            assert np.all(weights > 0)
            total[start : start + side.output_size] += weights
        np.testing.assert_allclose(total, 1, rtol=1e-6)
        if size <= tile:
            assert side.starts == (0,)


def test_weights_fall_smoothly_towards_the_end_of_a_tile() -> None:
    side = Tiles(SAME.output_side, tile=128, overlap=64).side(320)
    first = side.weights()[0]
    overlap = first[side.starts[1] :]
    assert np.all(np.diff(overlap) < 0)
    assert overlap[-1] < 0.01
    # No jump; of a squared sine the steepest is pi/2 over its length.
    assert np.abs(np.diff(overlap)).max() < 2 * np.pi / 2 / 64
    assert np.all(first[: side.starts[1]] == 1)


@pytest.mark.parametrize("shape", [(40, 40), (96, 200), (333, 129), (1, 70)])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_needs_no_neighbours_is_left_as_it_is(shape: tuple[int, int], channels: int) -> None:
    picture = image(*shape, channels)
    answer = predict(Tiles(SAME.output_side, tile=64, overlap=24), SAME, picture)
    assert answer.shape == picture.shape
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, picture / 255, atol=1e-6)


@pytest.mark.parametrize("network", [VALID, UNET])
@pytest.mark.parametrize("shape", [(50, 64), (150, 203), (8, 300)])
def test_unpadded_networks_answer_for_every_pixel_and_the_same_in_tiles(
    network: Network, shape: tuple[int, int]
) -> None:
    picture = image(*shape)
    expected = whole(network, picture, exact=False)
    assert expected.shape == picture.shape
    for overlap in (0, 16):
        answer = predict(Tiles(network.output_side, tile=64, overlap=overlap), network, picture)
        np.testing.assert_allclose(answer, expected, rtol=1e-5)


def test_beyond_the_border_lies_the_mirrored_image() -> None:
    picture = image(32, 64)
    expected = box_sum_valid(
        np.pad(picture, ((2, 2), (2, 2), (0, 0)), mode="symmetric")[None].astype(np.float32)
    )[0]
    np.testing.assert_allclose(whole(VALID, picture), expected)
    grown = Tiles(lambda side: side if side % 48 == 0 else 0, tile=512, overlap=0)
    seen = []
    predict(grown, lambda batch: seen.append(batch) or batch.astype(np.float32), picture)
    np.testing.assert_array_equal(
        seen[0][0], np.pad(picture, ((0, 64), (0, 32), (0, 0)), mode="symmetric")
    )


def test_the_smallest_side_whose_answer_is_large_enough() -> None:
    tiler = Tiles(UNET.output_side, tile=512, overlap=0)
    for size in (33, 64, 96):
        side = tiler.side(size)
        assert side.input_size == side.output_size + 12
        assert (
            UNET.output_side(side.input_size)
            >= -(-size // ALIGNMENT) * ALIGNMENT
            > UNET.output_side(side.input_size - 1)
        )


@pytest.mark.parametrize(
    ("dropped", "settings", "starts"),
    [
        (64, {"tile": 128, "overlap": 64}, (0, 128)),
        (32, {"tile": 128, "overlap": 64}, (0, 64, 128)),
        (4, {"tile": 64, "overlap": 0, "reach": 2}, (0, 64, 128, 192)),
    ],
)
def test_what_a_network_drops_counts_as_overlap_and_reach(
    dropped: int, settings: dict[str, int], starts: tuple[int, ...]
) -> None:
    side = Tiles(lambda side: side - dropped, **settings).side(256)
    assert (side.starts, side.margin) == (starts, 0)


def test_sizes_that_a_network_refuses_are_passed_over() -> None:
    def picky(side: int) -> int:
        if side < 100:
            raise ValueError(f"{side} is too small")
        return side

    side = Tiles(picky, tile=512, overlap=64).side(20)
    assert side.input_size == 100
    assert side.padding == (0, 80)

    def never(side: int) -> int:
        raise ValueError(f"{side} is too small")

    with pytest.raises(ValueError, match="too small"):
        Tiles(never, tile=512, overlap=64).side(20)


def test_the_size_of_the_training_images_stays_as_it_is() -> None:
    tiler = Tiles(SAME.output_side, tile=512, overlap=64, exact=(50, 70))
    assert [side.input_size for side in tiler.sides((50, 70, 1))] == [50, 70]
    assert [side.input_size for side in tiler.sides((50, 71, 1))] == [64, 96]


def test_a_search_does_not_ask_twice() -> None:
    asked = []
    tiler = Tiles(lambda side: asked.append(side) or side - 4, tile=256, overlap=32)
    tiler.side(300)
    count = len(asked)
    assert count <= 6  # each is a trace of the network
    tiler.side(500)
    assert len(asked) == count


class Sees:
    """Sums over so far a window, zeros beyond the image, with a pooling: what the whole would give
    depends on the grid as well.
    """

    def __init__(self, far: int) -> None:
        self.far = far

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        pooled = (
            batch.astype(np.float32)
            .reshape(len(batch), batch.shape[1] // 2, 2, batch.shape[2] // 2, 2, -1)
            .max((2, 4))
        )
        return box_sum(pooled, self.far // 2).repeat(2, 1).repeat(2, 2)


def far_of(network: Callable[[np.ndarray], np.ndarray], dropped: int = 0) -> int | None:
    return reach.measure(
        network, lambda side: (side + 2 * dropped, side), (100.0, 50.0), (30.0, 60.0)
    )


@pytest.mark.parametrize("far", [0, 2, 12, 40])
def test_how_far_a_network_sees(far: int) -> None:
    assert far_of(Sees(far)) == far
    dropped = 4 + far  # all that it does not know, and more
    assert (
        far_of(lambda batch: Sees(far)(batch)[:, dropped:-dropped, dropped:-dropped], dropped)
        == far
    )


def test_far_networks_and_those_that_no_tile_stands_for() -> None:
    def shifted(batch: np.ndarray) -> np.ndarray:
        return batch + np.pad(batch, ((0, 0), (0, 0), (0, 300), (0, 0)))[:, :, 300:]

    assert far_of(shifted) == 300  # more than half of the first probe
    assert far_of(lambda batch: batch + batch.mean((1, 2), keepdims=True)) is None
    # Sees one pixel, and the size.
    assert far_of(lambda batch: batch * np.linspace(0, 1, batch.shape[2])[:, None]) is None


@pytest.mark.parametrize("far", [2, 30, 40])
@pytest.mark.parametrize("tile", [64, 128, 256])
def test_tiles_of_a_network_whose_reach_is_known_are_the_whole(far: int, tile: int) -> None:
    picture, network = image(333, 600), Network(Sees(far), lambda side: side)
    tiler = Tiles(network.output_side, tile=tile, overlap=0, reach=far)
    assert tiler.tile == max(tile, 4 * -(-far // ALIGNMENT) * ALIGNMENT)
    answer = predict(tiler, network, picture)
    # What is held does not grow with the image.
    assert max(len(each) for each in tiler.cut(picture)) <= tiler.tile
    np.testing.assert_allclose(answer, whole(network, picture, exact=False), rtol=1e-5)
    if far > 2:
        nearer = predict(
            Tiles(network.output_side, tile=tiler.tile, overlap=0, reach=far - 4), network, picture
        )
        assert np.abs(nearer - whole(network, picture, exact=False)).max() > 1
