"""Draws masks in color, overlays, and rows of image, truth and prediction."""

import io
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxdp.reporting import fonts
from jaxdp.reporting.fonts import Figure, FigureCanvasAgg, matplotlib
from jaxdp.rundir.write import replacing

_COLORS = 18  # colors of instances, which use them in turn


def class_colors(count: int) -> np.ndarray:
    """Returns uint8 (count, 3): dark for class 0, the background in most datasets, and distinct
    colors for the others.
    """
    # The strong colors first.
    order = (2, 0, 4, 8, 16, 12, 18, 6, 10, 3, 1, 5, 9, 17, 13, 19, 7, 11)
    cycle = np.take(matplotlib.colormaps["tab20"].colors, order, 0)  # pyright: ignore
    chosen = np.vstack([(0.1, 0.1, 0.12), np.resize(cycle, (count - 1, 3))])
    return (chosen * 255).round().astype(np.uint8)


def color_mask(mask: np.ndarray, num_classes: int, ignore_label: int = 255) -> np.ndarray:
    """Returns a mask (H, W) as uint8 (H, W, 3); ignored pixels are grey."""
    colored = class_colors(num_classes)[np.minimum(mask, num_classes - 1)]
    return np.where((mask == ignore_label)[..., None], np.uint8(128), colored)


def color_objects(instances: np.ndarray) -> np.ndarray:
    """Returns instance labels (H, W), positive for instances, as uint8 (H, W, 3)."""
    return color_mask(_cycled(instances), _COLORS + 1)


def _cycled(instances: np.ndarray) -> np.ndarray:
    return np.where(instances > 0, (instances - 1) % _COLORS + 1, 0).astype(np.uint8)


def overlay(
    image: np.ndarray, mask: np.ndarray, num_classes: int, outline: np.ndarray | None = None
) -> Image.Image:
    """Returns an image (H, W, 1 or 3), uint8, covered by the colors of all classes except the
    first.

    Args:
        outline: pixels (H, W) at which the colors hide the image.
    """
    base = to_pillow(image).convert("RGB")
    colors = Image.fromarray(color_mask(mask, num_classes))
    covered = Image.composite(Image.blend(base, colors, 0.45), base, Image.fromarray(mask > 0))
    if outline is None:
        return covered
    return Image.composite(colors, covered, Image.fromarray(outline))


def overlay_objects(image: np.ndarray, instances: np.ndarray) -> Image.Image:
    """Returns an image (H, W, 1 or 3), uint8, under the colors and the opaque outlines of
    instances.
    """
    from skimage import segmentation  # pyright: ignore

    outline: Any = segmentation.find_boundaries(instances, mode="inner")
    return overlay(image, _cycled(instances), _COLORS + 1, outline)


def to_pillow(image: np.ndarray) -> Image.Image:
    """Returns an image (H, W, 1 or 3), uint8, for Pillow."""
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def as_picture(image: np.ndarray, pixel_range: tuple[float, float] | None = None) -> np.ndarray:
    """Returns stored pixels (H, W, C) as uint8 (H, W, 1 or 3): the first three of several channels,
    the mean of two. A dark image becomes brighter, because pixels of the digits dataset end at 16.

    Args:
        pixel_range: the values that become black and white, for pixels other than uint8.
    """
    if pixel_range is not None:  # row by row, because it requires 8 bytes per pixel
        rows = (np.interp(row, pixel_range, (0, 255)).round() for row in image)
        image = np.stack([row.astype(np.uint8) for row in rows])
    if image.shape[-1] == 2:
        image = image.mean(-1, keepdims=True).round().astype(np.uint8)
    elif image.shape[-1] != 1:
        image = image[..., :3]
    high = float(image.max(initial=0))
    return image if high > 64 else (image * (255 / max(high, 1))).astype(np.uint8)


def plot_rows(
    rows: Sequence[Sequence[tuple[str, np.ndarray]]], path: pathlib.Path | None, caption: str
) -> np.ndarray:
    """Draws rows of titles and pictures, uint8 (H, W, 1 or 3), below a caption. The last row may be
    shorter.

    Returns the drawing as uint8 (H, W, 3).

    Args:
        path: of a PNG file; None to write no file.
    """
    ratios = [picture.shape[0] / picture.shape[1] for (_, picture), *_ in rows]
    size = (2.6 * len(rows[0]), 2.6 * sum(ratios) + 0.4 * len(rows) + 0.3)
    with fonts.without_warnings({"font.size": 11, "text.parse_math": False}):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(caption, fontsize=12)
        grid = figure.subplots(len(rows), len(rows[0]), squeeze=False, height_ratios=ratios)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, (title, picture) in zip(grid.flat, itertools.chain(*rows), strict=False):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255)
            axes.set_title(title, fontsize=9)
        return save(figure, path)


def save(figure: Figure, path: pathlib.Path | None, dpi: int = 110) -> np.ndarray:
    """Writes a figure as PNG, if there is a path, and returns it as uint8 (H, W, 3)."""
    canvas = FigureCanvasAgg(figure)
    if path is not None:
        path.parent.mkdir(exist_ok=True)
    with replacing(path) if path is not None else io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=dpi)
    return np.asarray(canvas.buffer_rgba())[..., :3]
