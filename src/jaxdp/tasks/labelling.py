"""Makes instance labels of directions and depths."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false

import numpy as np
from jaxtyping import Bool, Float, UInt16

from jaxdp.errors import ConfigError

Depth = Float[np.ndarray, "height width"]  # in pixels
Pixels = Bool[np.ndarray, "height width"]
EDGE = 0.5  # depth of a pixel at the edge of an object: its centre is half a pixel from the edge
# Two pixels side by side belong to two objects if their directions part by more than this.
_PARTING = 1.0
# A weight so small that it matters only where nothing else decides the depth, and that depth.
_WEAK, _DEEP = 1e-4, 16.0
_HIGHEST = 2**16 - 1


def grow(
    depth: Depth, rise: float, inside: Pixels, height: Depth, mask: Pixels, *, smallest: int
) -> UInt16[np.ndarray, "height width"]:
    """Returns the number of the object at each pixel, counted from 1, with 0 for background.

    Args:
        depth: its maxima, if they rise by `rise` above the path to a higher one, are the seeds.
        inside: pixels that may be seeds.
        height: in which a watershed grows the seeds, from the lowest on.
        mask: pixels that may belong to objects.
        smallest: pixels of an object; smaller ones are left out.

    Raises:
        ConfigError: for more objects than 16 bits can number.
    """
    from skimage import measure, morphology, segmentation  # an extra

    # Around the image it is less deep, so that even a flat image has a maximum.
    padded = np.pad(depth, 1, constant_values=depth.min() - 2 * rise)
    seeds = measure.label((morphology.h_maxima(padded, rise)[1:-1, 1:-1] > 0) & inside)
    grown = segmentation.watershed(height, seeds, mask=mask)
    large = np.bincount(grown.ravel()) >= smallest
    large[0] = False
    numbers = np.cumsum(large) * large
    if numbers.max(initial=0) > _HIGHEST:
        remedy = f"an image has {numbers.max()} objects, and 16 bits number {_HIGHEST}"
        raise ConfigError("", "", f"{remedy}; predict parts of it")
    return numbers.astype(np.uint16)[grown]


def fill_holes(labels: UInt16[np.ndarray, "height width"]) -> UInt16[np.ndarray, "height width"]:
    """Returns labels in which background that one object encloses belongs to the object."""
    import scipy.ndimage

    filled = labels.copy()
    for number, box in enumerate(scipy.ndimage.find_objects(labels), 1):
        inside = scipy.ndimage.binary_fill_holes(labels[box] == number)
        filled[box][inside & (labels[box] == 0)] = number
    return filled


def integrate(cell: Pixels, direction: Float[np.ndarray, "height width 2"]) -> Depth:
    """Returns the depth whose gradient is closest to the directions, by least squares, and which is
    `EDGE` at the edge; 0 for background.

    A pair of neighbours has a gradient unless one is background or their directions part, which
    makes an edge.

    Args:
        direction: away from the edge, as steps down and to the right.
    """
    import scipy.sparse  # 0.1 s, which few runs need
    import scipy.sparse.linalg

    height, width = cell.shape
    rows, columns = np.nonzero(cell)
    count = len(rows)
    number = np.full((height + 1, width + 1), -1)
    number[rows, columns] = np.arange(count)
    beside = scipy.sparse.csr_array((count, count))
    given = np.zeros(count)
    for axis, (down, right) in enumerate(((1, 0), (0, 1))):
        after = number[rows + down, columns + right]
        before = np.flatnonzero(after >= 0)
        after = after[before]
        here, there = (direction[rows[each], columns[each], axis] for each in (before, after))
        joined = there - here < _PARTING
        before, after, rise = before[joined], after[joined], ((here + there) / 2)[joined]
        beside += scipy.sparse.coo_array((np.ones(len(rise)), (before, after)), beside.shape)
        given += np.bincount(after, rise, count) - np.bincount(before, rise, count)
    beside += beside.T
    sides = 4.0 - (rows == 0) - (rows == height - 1) - (columns == 0) - (columns == width - 1)
    given += EDGE * (sides - beside.sum(0))
    # Without an edge, as in an object that fills the image, any depth would do.
    given += _WEAK * _DEEP
    matrix = scipy.sparse.diags_array(sides + _WEAK) - beside
    depth = np.zeros(cell.shape)
    if count:
        depth[rows, columns] = scipy.sparse.linalg.cg(matrix, given, rtol=1e-3)[0]
    return depth
