"""Measures the objects of an image for a table."""

import math
from typing import Any

import numpy as np

from jaxdp.data.tiff import Plane

# Cells of an image, which are the last of each of its objects.
_SIZE = "pixel_height_um pixel_width_um"
IMAGE_COLUMNS = (
    f"page t z objects mean_area_pixels total_area_pixels mean_area_um2 total_area_um2 {_SIZE}"
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


def measurements(instances: np.ndarray, image: np.ndarray, plane: Plane | None) -> list[list[Any]]:
    """Returns table cells for each object, as `columns` names them after the page. Cells in
    micrometres are empty if a file has no pixel size.

    Args:
        instances: (H, W), as `instances.label_instances` returns it.
        image: (H, W, C), as stored.
        plane: facts of the image in a TIFF file.
    """
    from skimage import measure, segmentation  # pyright: ignore

    properties = "label area centroid bbox eccentricity intensity_mean".split()
    shapes = "perimeter axis_major_length axis_minor_length solidity".split()
    table = measure.regionprops_table(instances, image, properties + shapes)
    inside = np.isin(table["label"], segmentation.clear_border(instances))
    numbers, shape = np.split(np.column_stack([*table.values()]), [-len(shapes)], axis=1)
    place, size = _place(plane)
    lengths = numbers[:, 1:8] * [math.prod(size), *size * 3]
    sums = numbers[:, 1:2] * numbers[:, 9:]
    sizes = np.tile(size, (len(numbers), 1))
    numbers = np.column_stack([numbers, ~inside, lengths, shape, sums, sizes])
    return [[*place, len(numbers), *map(_text, row)] for row in numbers]


def image_cells(instances: np.ndarray, plane: Plane | None) -> list[Any]:
    """Returns table cells of an image, as `IMAGE_COLUMNS` names them after the page. The mean area
    of no object is empty.
    """
    place, size = _place(plane)
    count, area = int(instances.max(initial=0)), np.count_nonzero(instances)
    areas = [area / count if count else math.nan, area]
    numbers = [*areas, *(each * math.prod(size) for each in areas), *size]
    return [*place, count, *map(_text, numbers)]


def _place(plane: Plane | None) -> tuple[list[Any], list[float]]:
    """Returns the indices along T and Z, and the pixel size, which is NaN if it is unknown."""
    if plane is None:
        return [None] * 2, [math.nan] * 2
    return plane.place[:2], plane.pixel_size or [math.nan] * 2


def _text(value: Any) -> str:
    return "" if math.isnan(value) else f"{value:.12g}"
