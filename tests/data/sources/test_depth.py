"""Images of 16 bits and of floating point keep their depth, and a percentile range of the training
set becomes 0 to 255.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tifffile
from example_files import read
from PIL import Image

from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.augment import Preprocess
from jaxdp.data.sources import BadExample, Dataset, open_dataset
from jaxdp.registry import ConfigError

RNG = np.random.default_rng(0)
LABELS = np.arange(40) % 2
DEEP = (RNG.gamma(2.0, 900.0, (40, 9, 8, 2)) + 300).clip(0, 65535).astype(np.uint16)
FLOATS = (RNG.normal(3.0, 0.1, (40, 9, 8, 1))).astype(np.float32)


def mapped(images: np.ndarray, dataset: Dataset) -> np.ndarray:
    assert dataset.pixel_range is not None
    low, high = dataset.pixel_range
    return 255 * (images.astype(np.float64) - low) / (high - low)


@pytest.mark.parametrize("images", [DEEP, FLOATS])
@pytest.mark.parametrize("form", ["arrays", "npz"])
def test_arrays_keep_their_depth(images: np.ndarray, form: str) -> None:
    if form == "arrays":
        dataset = data.from_arrays(images[:30], LABELS[:30], test=(images[30:], LABELS[30:]))
    else:
        np.savez(
            "set.npz",
            train_images=images[:30],
            train_labels=LABELS[:30],
            test_images=images[30:],
            test_labels=LABELS[30:],
        )
        dataset = open_dataset("npz:set.npz")
    train = read(dataset.train)["images"]
    assert train.dtype == images.dtype == dataset.dtype
    np.testing.assert_array_equal(train, images[:30])
    assert dataset.pixel_range == pytest.approx(np.percentile(images[:30], (0.1, 99.9)), rel=1e-6)
    assert dataset.mean == pytest.approx(mapped(train, dataset).mean((0, 1, 2)), abs=0.01)
    assert dataset.std == pytest.approx(mapped(train, dataset).std((0, 1, 2)), abs=0.01)
    description = dataset.describe()
    assert (description.dtype, description.pixel_range) == (images.dtype.name, dataset.pixel_range)


@pytest.mark.parametrize("images", [DEEP, FLOATS])
def test_the_compiled_step_normalizes_what_the_range_gives_without_clipping(
    images: np.ndarray,
) -> None:
    dataset = data.from_arrays(images, LABELS)
    preprocess = Preprocess(dataset.mean, dataset.std, pixel_range=dataset.pixel_range)
    found = jax.jit(lambda images: preprocess({"images": images}, None)["images"])(images)
    np.testing.assert_allclose(
        found, (mapped(images, dataset) - dataset.mean) / dataset.std, atol=1e-4
    )
    assert found.dtype == jnp.float32
    assert np.asarray(found).mean() == pytest.approx(0, abs=0.01)


def test_a_large_set_is_sampled_alike_each_time() -> None:
    images = RNG.integers(0, 60000, (520, 100, 100, 1), np.uint16)
    first, second = (data.from_arrays(images, np.arange(520) % 2, seed=seed) for seed in (0, 1))
    assert first.pixel_range == second.pixel_range == pytest.approx((60, 59940), abs=30)


def test_uint8_has_no_range_and_its_program_is_what_it_was() -> None:
    dataset = data.from_arrays((DEEP >> 8).astype(np.uint8), LABELS)
    assert (dataset.dtype, dataset.pixel_range) == ("uint8", None)
    preprocess = Preprocess(dataset.mean, dataset.std, pixel_range=None)
    program = jax.make_jaxpr(lambda images: preprocess({"images": images}, None)["images"])(
        np.zeros((1, 9, 8, 2), np.uint8)
    )
    assert [
        equation.primitive.name
        for equation in program.eqns
        if equation.primitive.name in ("sub", "div", "mul")
    ] == [
        "sub",
        "div",
    ]


def test_nan_is_a_bad_example() -> None:
    images = FLOATS.copy()
    images[3, 0, 0, 0] = np.nan
    with pytest.raises(
        ConfigError, match="arrays: the images of train hold NaN or infinity, first in example 3"
    ):
        data.from_arrays(images, LABELS)
    np.savez(
        "set.npz",
        train_images=images,
        train_labels=LABELS,
        test_images=images[4:],
        test_labels=LABELS[4:],
    )
    with pytest.raises(
        BadExample, match=r"npz:set\.npz train\[3\]: has NaN or infinite pixels; fix or remove it"
    ):
        open_dataset("npz:set.npz")
    dataset = open_dataset(DataConfig(dataset="npz:set.npz", on_bad_example="skip"))
    assert list(np.flatnonzero(read(dataset.train)["weights"] == 0)) == [3]
    assert np.isfinite(dataset.mean).all()


def test_splits_of_another_depth_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"test\[0\] is uint8; those of the training set are uint16"
    ):
        data.from_arrays(DEEP, LABELS, test=((DEEP >> 8).astype(np.uint8), LABELS))
    np.savez(
        "set.npz",
        train_images=DEEP,
        train_labels=LABELS,
        test_images=DEEP.astype(np.float32),
        test_labels=LABELS,
    )
    with pytest.raises(
        ConfigError, match=r"test_images is float32; those of the training set are uint16"
    ):
        open_dataset("npz:set.npz")


def test_a_dataset_of_ones_own_needs_a_range() -> None:
    from jaxdp.data.opening import check_dataset

    own = data.Dataset(
        train=data.ArraySource(DEEP, LABELS),
        test=None,
        num_classes=2,
        image_shape=(9, 8, 2),
        mean=(1.0,) * 2,
        std=(1.0,) * 2,
        dtype="uint16",
        name="mine",
    )
    with pytest.raises(ConfigError, match="mine: a dataset of uint16 needs a pixel_range"):
        check_dataset(own, DataConfig())


def write(root: pathlib.Path, kinds: list[str]) -> list[pathlib.Path]:
    paths = []
    for number, kind in enumerate(kinds):
        path = (
            root
            / "ab"[number % 2]
            / f"{number:02d}.{'png' if kind == 'png8' else 'tif' if kind == 'float' else 'png'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "png8":
            Image.fromarray((DEEP[number, ..., 0] >> 8).astype(np.uint8)).save(path)
        elif kind == "png16":
            Image.fromarray(DEEP[number, ..., 0]).save(path)
        else:
            tifffile.imwrite(path, FLOATS[number, ..., 0])
        paths.append(path)
    return paths


def test_folders_of_deep_pictures(tmp_path: pathlib.Path) -> None:
    write(tmp_path, ["png16"] * 40)
    dataset = open_dataset(f"folder:{tmp_path}")
    assert (dataset.dtype, dataset.image_shape) == ("uint16", (9, 8, 1))
    found = {
        image.tobytes() for part in (dataset.train, dataset.test) for image in read(part)["images"]
    }
    assert found == {image.tobytes() for image in DEEP[..., :1]}
    resized = open_dataset(DataConfig(dataset=f"folder:{tmp_path}", image_size="4x4"))
    assert read(resized.train)["images"].dtype == np.uint16
    assert read(resized.train)["images"].max() > 255


def test_a_picture_of_another_depth_than_most_is_named(tmp_path: pathlib.Path) -> None:
    paths = write(tmp_path, ["png16"] * 12 + ["png8"] + ["png16"] * 12)
    with pytest.raises(
        BadExample,
        match=r"12\.png: has 8 bits a channel \(uint8\), not 16 \(uint16\)",
    ):
        _ = [read(source) for source in open_dataset(f"folder:{tmp_path}").splits().values()]
    dataset = open_dataset(DataConfig(dataset=f"folder:{tmp_path}", on_bad_example="skip"))
    assert (
        read(dataset.train)["weights"].sum() + read(dataset.test)["weights"].sum() == len(paths) - 1
    )
    two = write(tmp_path / "two", ["png8", "png8", "png16", "png16"])
    assert len(two) == 4
    # The wider of two that are as many.
    with pytest.raises(BadExample, match=r"00\.png: has 8 bits"):
        _ = [
            read(source) for source in open_dataset(f"folder:{tmp_path / 'two'}").splits().values()
        ]
