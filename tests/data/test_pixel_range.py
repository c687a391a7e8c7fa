"""Images of floats that float32 cannot compute with are named before training."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from example_files import noise, read, refused
from numpy.testing import assert_allclose

from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.opening import check_dataset
from jaxdp.data.sources import open_dataset

LABELS = np.arange(40) % 4
FLOATS = noise(0, 40, 6, 6, 1) / np.float32(255)


def normalized(dataset: data.Dataset) -> np.ndarray:
    """Returns the training images as a step normalizes them, in float32."""
    low, high = np.array(dataset.pixel_range or (0, 255), np.float32)
    with np.errstate(all="raise", under="ignore"):
        images = (read(dataset.train)["images"] - low) * (np.float32(255) / (high - low))
        return (images - np.array(dataset.mean, np.float32)) / np.array(dataset.std, np.float32)


@pytest.mark.parametrize("scale", [1e-40, 3e-36, 1e36, 3e38])
@pytest.mark.parametrize("offset", [0.0, -0.5])
def test_a_range_that_float32_cannot_normalize_is_one_line(scale: float, offset: float) -> None:
    images = ((FLOATS + offset) * scale).astype(np.float32)
    held = "arrays: its pixels are .* to .*, which float32 cannot normalize; scale them"
    with refused(held):
        data.from_arrays(images, LABELS)


@pytest.mark.parametrize("scale", [1e-27, 1e-3, 1e5, 1e27])
def test_other_ranges_are_normalized_alike(scale: float) -> None:
    images = (FLOATS * np.float32(scale)).astype(np.float32)
    expected = normalized(data.from_arrays(FLOATS, LABELS))
    assert_allclose(normalized(data.from_arrays(images, LABELS)), expected, atol=1e-4)


def test_equal_pixels_of_any_size_have_a_range() -> None:
    for value in (0.0, 7.0, 1e17, -1e20, 2e-40):
        same = np.full_like(FLOATS, value)
        assert np.isfinite(normalized(data.from_arrays(same, LABELS))).all()
    with refused("arrays: its pixels are 3e[+]38 to 3.*e[+]38, which float32 cannot normalize"):
        data.from_arrays(np.full_like(FLOATS, 3e38), LABELS)


# Marks of missing data: of GDAL, NetCDF and CMIP.
@pytest.mark.parametrize("fill", [-3.4028235e38, 9.96921e36, 1e20])
def test_a_pixel_that_marks_missing_data_is_named_or_left_out(fill: float) -> None:
    holed = FLOATS.repeat(20, 1).repeat(20, 2)  # more than 1,000 pixels for each hole
    expected = data.from_arrays(np.delete(holed, 7, 0), np.delete(LABELS, 7))
    holed[7, 3, 2, 0] = fill
    problem = r"arrays train\[7\]: has a pixel of .*e[+]..?, where the pixels of the dataset are 0"
    with refused(problem):
        data.from_arrays(holed, LABELS)
    np.savez("holed.npz", images=holed, labels=LABELS)
    settings: dict[str, Any] = {"dataset": "npz:holed.npz", "validation": "0.25"}
    with refused(r"npz:holed.npz\[7\]: has a pixel of "):
        open_dataset(DataConfig.of(**settings))
    dataset = open_dataset(DataConfig.of(**settings, on_bad_example="skip"))
    assert max(dataset.std) > 10  # not of a range that one pixel decides
    assert_allclose(dataset.mean, expected.mean, rtol=0.1)


def test_a_later_example_is_checked_by_the_declared_range() -> None:
    images = FLOATS.copy()
    images[3, 0, 0, 0] = -1e33
    dataset = data.Dataset(
        train=data.ArraySource(images, LABELS),
        num_classes=4,
        image_shape=(6, 6, 1),
        mean=(127.0,),
        std=(70.0,),
        dtype="float32",
        pixel_range=(0.0, 1.0),
        name="mine",
    )
    checked = check_dataset(dataset, DataConfig())
    with refused(r"mine train\[3\]: has a pixel of -1e[+]33, where the pixels .* are 0 to 1;"):
        read(checked.train)
    for ends in ((0.0, 0.0), (1.0, 0.0), (0.0, 1e-40)):
        with refused(f"mine: its pixels are {ends[0]:g} to {ends[1]:g}, which float32 cannot"):
            check_dataset(dataclasses.replace(dataset, pixel_range=ends), DataConfig())
    for std in (0.0, -1.0, float("nan"), float("inf")):
        with refused(f"mine: its std is {std}; it must be a positive number for each channel"):
            check_dataset(dataclasses.replace(dataset, std=(std,)), DataConfig())
