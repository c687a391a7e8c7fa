"""Measures the objects of an image for a table."""

import math
from typing import Any

import numpy as np

from jaxdp.data.tiff import Plane

# Cells of an image, which are the last of each of its objects.
_SIZE = "pixel_height_um pixel_width_um"
IMAGE_COLUMNS = (
    f"page t z objects mean_area_pixels total_area_pixels mean_area_um2 total_area_um2 {_SIZE}"
    " warning"
).split()


def columns(channels: int) -> list[str]:
    """Returns the names of the page and of `measurements` of an image with this many channels."""
    means, sums = (
        " ".join(f"{name}_intensity_{channel}" for channel in range(channels))
        for name in ("mean", "integrated")
    )
    return (
        "page t z objects label area_pixels centroid_y centroid_x top left bottom right"
        f" eccentricity {means} touches_edge"
        " area_um2 centroid_y_um centroid_x_um top_um left_um bottom_um right_um"
        f" perimeter_pixels major_axis_pixels minor_axis_pixels solidity {sums} {_SIZE}"
    ).split()


def measurements(
    instances: np.ndarray, image: np.ndarray, plane: Plane | None
) -> tuple[list[Any], list[list[Any]]]:
    """Returns table cells of an image, as `IMAGE_COLUMNS` names them after the page, and of each
    object, as `columns` names them.

    The mean area of no object is empty, and so are lengths in micrometres if a file has no pixel
    size.

    Args:
        instances: (H, W), as a task's `label` returns it.
        image: (H, W, C), as stored.
        plane: facts of the image in a TIFF file.
    """
    from skimage import measure, segmentation  # pyright: ignore

    properties = (
        "label area centroid bbox eccentricity intensity_mean"
        " perimeter axis_major_length axis_minor_length solidity"
    )
    table = measure.regionprops_table(instances, image, properties.split())
    inside = np.isin(table["label"], segmentation.clear_border(instances))
    numbers, shape = np.split(np.column_stack([*table.values()]), [-4], axis=1)
    place, size = (plane.place[:2], plane.pixel_size) if plane is not None else ([None] * 2, [])
    size, areas, count = size or [math.nan] * 2, numbers[:, 1:2], len(numbers)
    pixel = math.prod(size)
    lengths = numbers[:, 1:8] * [pixel, *size * 3]
    sums, sizes = areas * numbers[:, 9:], np.tile(size, (count, 1))
    rows = np.column_stack([numbers, ~inside, lengths, shape, sums, sizes])
    total = areas.sum()
    mean = total / (count or math.nan)
    whole = [mean, total, mean * pixel, total * pixel, *size]
    of_image, *of_objects = [[*place, count, *map(_text, row)] for row in (whole, *rows)]
    return of_image, of_objects


def _text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.12g}"
