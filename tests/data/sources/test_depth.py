"""Images of 16 bits and of floating point keep their depth, and a percentile range of the training
set becomes 0 to 255.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_files import ROOT, bad_example, opened, read, read_splits, refused, write
from numpy.testing import assert_array_equal

from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.augment import Preprocess
from jaxdp.data.opening import check_dataset
from jaxdp.data.sources import Dataset, open_dataset

RNG = np.random.default_rng(0)
LABELS = np.arange(40) % 2
DEEP = (RNG.gamma(2.0, 900.0, (40, 9, 8, 2)) + 300).clip(0, 65535).astype(np.uint16)
SHALLOW = (DEEP >> 8).astype(np.uint8)
FLOATS = RNG.normal(3.0, 0.1, (40, 9, 8, 1)).astype(np.float32)


def npz(images: np.ndarray, tests: np.ndarray, **settings: str) -> Dataset:
    labels: dict[str, Any] = {
        "train_labels": LABELS[: len(images)],
        "test_labels": LABELS[: len(tests)],
    }
    np.savez("set.npz", train_images=images, test_images=tests, **labels)
    return open_dataset(DataConfig.of(dataset="npz:set.npz", **settings))


def mapped(images: np.ndarray, dataset: Dataset) -> np.ndarray:
    assert dataset.pixel_range is not None
    low, high = dataset.pixel_range
    return 255 * (images.astype(np.float64) - low) / (high - low)


@pytest.mark.parametrize("images", [DEEP, FLOATS])
@pytest.mark.parametrize("form", ["arrays", "npz"])
def test_arrays_keep_their_depth_and_the_step_normalizes_them(
    images: np.ndarray, form: str
) -> None:
    if form == "arrays":
        dataset = data.from_arrays(images[:30], LABELS[:30], test=(images[30:], LABELS[30:]))
    else:
        dataset = npz(images[:30], images[30:])
    train = read(dataset.train)["images"]
    assert train.dtype == images.dtype == dataset.dtype
    assert_array_equal(train, images[:30])
    assert dataset.pixel_range == pytest.approx(np.percentile(images[:30], (0.1, 99.9)), rel=1e-6)
    assert dataset.mean == pytest.approx(mapped(train, dataset).mean((0, 1, 2)), abs=0.01)
    assert dataset.std == pytest.approx(mapped(train, dataset).std((0, 1, 2)), abs=0.01)
    description = dataset.describe()
    assert (description.dtype, description.pixel_range) == (images.dtype.name, dataset.pixel_range)
    # Without clipping.
    preprocess = Preprocess(dataset.mean, dataset.std, pixel_range=dataset.pixel_range)
    found = jax.jit(lambda images: preprocess({"images": images}, None)["images"])(images)
    wanted = (mapped(images, dataset) - dataset.mean) / dataset.std
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert found.dtype == jnp.float32


def test_a_large_set_is_sampled_alike_each_time() -> None:
    images = RNG.integers(0, 60000, (520, 100, 100, 1), np.uint16)
    first, second = (data.from_arrays(images, np.arange(520) % 2, seed=seed) for seed in (0, 1))
    assert first.pixel_range == second.pixel_range == pytest.approx((60, 59940), abs=30)


def test_uint8_has_no_range_and_its_program_is_what_it_was() -> None:
    dataset = data.from_arrays(SHALLOW, LABELS)
    assert (dataset.dtype, dataset.pixel_range) == ("uint8", None)
    preprocess = Preprocess(dataset.mean, dataset.std, pixel_range=None)
    program = jax.make_jaxpr(lambda images: preprocess({"images": images}, None)["images"])(SHALLOW)
    names = [equation.primitive.name for equation in program.eqns]
    assert [name for name in names if name in ("sub", "div", "mul")] == ["sub", "div"]


def test_nan_is_a_bad_example() -> None:
    images = FLOATS.copy()
    images[3, 0, 0, 0] = np.nan
    with refused("arrays: the images of train hold NaN or infinity, first in example 3"):
        data.from_arrays(images, LABELS)
    with bad_example(r"npz:set\.npz train\[3\]: has NaN or infinite pixels; fix or remove it"):
        npz(images, images[4:])
    dataset = npz(images, images[4:], on_bad_example="skip")
    assert list(np.flatnonzero(read(dataset.train)["weights"] == 0)) == [3]
    assert np.isfinite(dataset.mean).all()


def test_splits_of_another_depth_are_refused() -> None:
    with refused(r"test\[0\] is uint8; pixels of the training set are uint16"):
        data.from_arrays(DEEP, LABELS, test=(SHALLOW, LABELS))
    with refused("test_images is float32; pixels of the training set are uint16"):
        npz(DEEP, DEEP.astype(np.float32))


def test_a_dataset_of_ones_own_needs_a_range() -> None:
    own = data.Dataset(
        train=data.ArraySource(DEEP, LABELS),
        num_classes=2,
        image_shape=(9, 8, 2),
        mean=(1.0,) * 2,
        std=(1.0,) * 2,
        dtype="uint16",
        name="mine",
    )
    with refused("mine: a dataset of uint16 needs a pixel_range"):
        check_dataset(own, DataConfig())


def photos(*shallow: int, root: pathlib.Path = ROOT, count: int = 40) -> pathlib.Path:
    files = {
        f"{'ab'[number % 2]}/{number:02d}.png": (SHALLOW if number in shallow else DEEP)[
            number, ..., 0
        ]
        for number in range(count)
    }
    return write(files, root)


def test_folders_of_deep_pictures() -> None:
    dataset = opened(photos())
    assert (dataset.dtype, dataset.image_shape) == ("uint16", (9, 8, 1))
    assert read_splits(dataset, "images") == {image.tobytes() for image in DEEP[..., :1]}
    resized = read(opened(image_size="4x4").train)["images"]
    assert resized.dtype == np.uint16
    assert resized.max() > 255


def test_a_picture_of_another_depth_than_most_is_named() -> None:
    photos(12, root=ROOT / "one", count=25)
    with bad_example(r"12\.png: has 8 bits a channel \(uint8\), not 16 \(uint16\)"):
        read_splits(opened(ROOT / "one"), "images")
    dataset = opened(ROOT / "one", on_bad_example="skip")
    splits = dataset.splits().values()
    assert sum(read(split)["weights"].sum() for split in splits) == 24
    # The wider of two that are as many.
    with bad_example(r"00\.png: has 8 bits"):
        read_splits(opened(photos(0, 1, root=ROOT / "two", count=4)), "images")


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (np.int16, r"has 16 bits a channel \(int16, read as float32\), not 8 \(uint8\)"),
        (np.uint32, r"has 32 bits a channel \(uint32, read as uint16\), not 8 \(uint8\)"),
        (">u2", r"has 16 bits a channel \(uint16\), not 8 \(uint8\)"),
        (np.float64, r"has 64 bits a channel \(float64, read as float32\), not 8 \(uint8\)"),
    ],
)
def test_the_depth_said_is_the_stored_one(dtype: Any, said: str) -> None:
    write({f"a/{number}.tif": SHALLOW[number, ..., 0] for number in range(9)})
    write({f"b/{number}.tif": SHALLOW[number, ..., 0] for number in range(9)})
    write({"a/0.tif": SHALLOW[0, ..., 0].astype(dtype)})
    with bad_example(rf"0\.tif: {said}; convert all images to one depth"):
        read_splits(opened(), "images")
