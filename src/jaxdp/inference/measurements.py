"""Measures the objects of an image for a table."""

import math
from typing import Any

import numpy as np

from jaxdp.data.tiff import Plane


def columns(channels: int) -> list[str]:
    """Returns the names of the page and of `measurements` of an image with this many channels."""
    intensities = " ".join(f"mean_intensity_{channel}" for channel in range(channels))
    return (
        "page t z objects label area_pixels centroid_y centroid_x top left bottom right"
        f" eccentricity {intensities} touches_edge"
        " area_um2 centroid_y_um centroid_x_um top_um left_um bottom_um right_um"
    ).split()


def measurements(instances: np.ndarray, image: np.ndarray, plane: Plane | None) -> list[list[Any]]:
    """Returns table cells for each object, as `columns` names them, or cells of the image if there
    is no object. The last cells are left out if a file has no pixel size.

    Args:
        instances: (H, W), as `instances.label_instances` returns it.
        image: (H, W, C), as stored.
        plane: facts of the image in a TIFF file.
    """
    from skimage import measure, segmentation  # pyright: ignore

    properties = "label area centroid bbox eccentricity intensity_mean".split()
    table = measure.regionprops_table(instances, image, properties)
    inside = np.isin(table["label"], segmentation.clear_border(instances))
    numbers = np.column_stack([*table.values(), ~inside])
    place, size = (plane.place, plane.pixel_size) if plane is not None else ([None] * 2, [])
    if size:
        numbers = np.hstack([numbers, numbers[:, 1:8] * [math.prod(size), *size * 3]])
    cells = [*place, len(numbers)]
    return [[*cells, *(f"{value:.9g}" for value in row)] for row in numbers] or [cells]
