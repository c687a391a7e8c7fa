"""Draws cells under a fluorescence microscope, a segmentation dataset that requires no download and
has exact masks.

Each image is drawn from its number, so that the dataset takes no space and any part of it can
be drawn alone.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.instances import OUTPUT_NAMES

SIZE = 96  # pixels per side
TRAIN_EXAMPLES, TEST_EXAMPLES = 256, 64
_SEED = 20  # seed of the drawings, which do not depend on the seed of a run
_SMALLEST_PART = 32  # pixels of a cell that has its own number
_FOCUS = 0.9  # standard deviation of the microscope's blur, in pixels


@sources.register("cells")
def cells(request: sources.Request) -> sources.Dataset:
    """Returns 256 training and 64 test images of 96 x 96 pixels: touching cells, or few with
    `cells:sparse`, uneven light, blur and noise.
    """
    if request.argument not in ("", "sparse"):
        raise request.error("write cells or cells:sparse")
    request.choose("segmentation")
    request.refuse(
        "train_split", "test_split", "num_classes", "channels", "tiff", "columns", "mask_values"
    )
    instances, sparse = request.config.instances, bool(request.argument)
    names, augment = ("background", "cell"), ("flip", "flip_vertical")
    unet: dict[str, Any] = {"base_channels": 16}
    defaults: dict[str, Any] = {"optimizer": "nesterov", "global_batch_size": 16, "epochs": 8}
    if instances:  # more steps, of a smaller network
        names, unet = OUTPUT_NAMES, {"base_channels": 8, "levels": 3}
        defaults |= {"global_batch_size": 8, "epochs": 28, "eval_every": 128}
        defaults |= {"optimizer": "adamw", "learning_rate": {"adamw": 0.03}}
        if not request.config.image_size:  # which requires squares
            augment = (*augment, "rotate90")
    return sources.Dataset(
        train=Cells(0, TRAIN_EXAMPLES, instances, sparse),
        test=Cells(TRAIN_EXAMPLES, TEST_EXAMPLES, instances, sparse),
        num_classes=len(names),
        image_shape=(SIZE, SIZE, 1),
        mean=(43.6,),
        std=(41.4,),
        task="segmentation",
        augment=augment,
        class_names=names,
        defaults=defaults | {"model_kwargs": {"unet": unet}},
        instances=instances,
    )


@dataclasses.dataclass(frozen=True)
class Cells:
    """Images `first` to `first + count - 1` of the endless series.

    Attributes:
        instances: whether masks are the numbers of the cells, int32, or 1 inside a cell.
        sparse: whether cells are isolated and cover 3% of the pixels.
    """

    first: int
    count: int
    instances: bool = False
    sparse: bool = False

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> sources.Example:
        if not 0 <= index < self.count:
            raise IndexError(index)
        image, masks = _example(self.first + index, self.instances, self.sparse)
        return {"images": image, "masks": masks}


# Masks are read to count classes, to train and to count objects.
@functools.lru_cache(maxsize=TRAIN_EXAMPLES + TEST_EXAMPLES)
def _example(number: int, instances: bool, sparse: bool) -> tuple[np.ndarray, np.ndarray]:
    image, cells = draw(number, sparse=sparse)
    return image, numbered(cells) if instances else (cells > 0).astype(np.uint8)


def draw(number: int, *, sparse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns an image, uint8 (96, 96, 1), and the number of the cell at each pixel, uint8
    (96, 96), 0 for none.

    A pixel belongs to a cell if its centre does, before blur and noise. Touching cells have no gap
    between them.
    """
    import scipy.ndimage  # takes 0.1 s, which other runs do not require

    rng = np.random.default_rng((_SEED, number))
    y, x = (axis + 0.5 for axis in np.mgrid[:SIZE, :SIZE].astype(np.float32))
    cells, light = np.zeros((SIZE, SIZE), np.uint8), np.zeros((SIZE, SIZE), np.float32)
    centres = rng.uniform(0, SIZE, (rng.integers(3), 2)) if sparse else _centres(rng)
    for number_of_cell, (centre_y, centre_x) in enumerate(centres, 1):
        box, distance = _distance(rng, y, x, centre_y, centre_x)
        inside = (distance < 1) & (cells[box] == 0)
        cells[box][inside] = number_of_cell
        # A stained cell is brighter in its middle, where it is thicker, and granular.
        brightness = rng.uniform(0.35, 1.0)
        grain = 1 + 0.12 * _smooth_noise(rng, 24)
        light[box] += (
            inside
            * brightness
            * (0.65 + 0.35 * np.sqrt(np.clip(1 - distance**2, 0, 1)))
            * grain[box]
        )
    angle = rng.uniform(0, 2 * np.pi)
    across = np.cos(angle) * (x / SIZE - 0.5) + np.sin(angle) * (y / SIZE - 0.5)
    illumination = 1 + across * rng.uniform(0.2, 0.9)
    haze = rng.uniform(0.12, 0.24) * (1 + 0.4 * _smooth_noise(rng, 3))
    # The image is mirrored beyond its border.
    blurred: Any = scipy.ndimage.gaussian_filter(light, _FOCUS, output=np.float64, radius=3)
    photons = np.clip(illumination * (blurred + haze), 0, None) * rng.uniform(60, 160)
    signal = rng.poisson(photons) / 160 + rng.normal(0, 0.015, photons.shape)
    return np.clip(signal * 200, 0, 255).astype(np.uint8)[..., None], cells


def numbered(cells: np.ndarray) -> np.ndarray:
    """Returns the instance labels of the cells, int32, as a person would assign them.

    If the visible part of a cell has fewer than 32 pixels, it counts as the adjacent cell.
    """
    import scipy.ndimage

    found = cells.astype(np.int32)
    for number in np.unique(cells[cells > 0]):
        parts: Any = scipy.ndimage.label(cells == number)[0]  # pyright: ignore
        for part in np.flatnonzero(np.bincount(parts.ravel()) < _SMALLEST_PART):
            inside = parts == part
            beside = found[scipy.ndimage.binary_dilation(inside) & ~inside & (found > 0)]
            if len(beside):
                found[inside] = np.bincount(beside).argmax()
    return found


def _centres(rng: np.random.Generator) -> list[np.ndarray]:
    """Places cells in clusters, so that most cells touch a neighbour."""
    centres: list[np.ndarray] = []
    for _ in range(rng.integers(8, 15)):
        if centres and rng.random() < 0.6:
            angle, reach = rng.uniform(0, 2 * np.pi), rng.uniform(14, 20)
            centres.append(
                centres[rng.integers(len(centres))]
                + reach * np.array([np.sin(angle), np.cos(angle)])
            )
        else:
            centres.append(rng.uniform(0, SIZE, 2))
    return centres


def _distance(
    rng: np.random.Generator, y: np.ndarray, x: np.ndarray, centre_y: float, centre_x: float
) -> tuple[tuple[slice, slice], np.ndarray]:
    """Returns the box of a cell, an ellipse with a wavy outline, and the distance of its pixels
    from the centre in radii.
    """
    turn = rng.uniform(0, np.pi)
    radius = rng.uniform(8, 13)
    ratio = rng.uniform(0.7, 1.0)
    waves = [(order, rng.normal(0, 0.05), rng.uniform(0, 2 * np.pi)) for order in (2, 3, 4)]
    reach = radius * (1 + sum(abs(height) for _, height, _ in waves))
    rows, columns = (
        slice(max(int(centre - reach), 0), max(int(centre + reach) + 2, 0))
        for centre in (centre_y, centre_x)
    )
    y, x = y[rows, columns] - centre_y, x[rows, columns] - centre_x
    along, across = np.cos(turn) * x + np.sin(turn) * y, -np.sin(turn) * x + np.cos(turn) * y
    angle = np.arctan2(across, along)
    outline = 1 + sum(height * np.sin(order * angle + shift) for order, height, shift in waves)
    return (rows, columns), np.hypot(along, across / ratio) / (radius * outline)


def _smooth_noise(rng: np.random.Generator, knots: int) -> np.ndarray:
    """Returns noise with mean 0 and standard deviation about 1 at `knots` points per side, linearly
    interpolated.
    """
    weights = _interpolation(knots)
    return (weights @ rng.standard_normal((knots, knots)) @ weights.T).astype(np.float32)


@functools.cache
def _interpolation(knots: int) -> np.ndarray:
    positions = np.linspace(0, knots - 1, SIZE)
    return np.clip(1 - np.abs(positions[:, None] - np.arange(knots)), 0, None)
