"""Arrays of another byte order have the same values, wherever they come in."""

from typing import Any

import numpy as np
import pytest
from example_files import noise, read
from numpy.testing import assert_array_equal
from PIL import Image

import jaxdp
from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.dataset import Dataset
from jaxdp.data.fingerprint import fingerprint
from jaxdp.data.image_file import read_image, read_mask
from jaxdp.data.npz_file import open_npz, read_array
from jaxdp.data.opening import check_dataset
from jaxdp.data.sources import open_dataset

LABELS = np.arange(20) % 2
WIDE = noise(0, 20, 8, 8).astype(np.uint16) * 200
KINDS = {"uint16": ">u2", "float32": ">f4"}


def swapped(array: np.ndarray) -> np.ndarray:
    other = array.astype(array.dtype.newbyteorder())
    assert other.dtype.byteorder == ">" or other.dtype.itemsize == 1
    return other


def assert_equal_examples(found: Any, expected: Any) -> None:
    for split, source in expected.splits().items():
        ours, theirs = read(found.splits()[split]), read(source)
        for field in theirs:
            assert_array_equal(ours[field], theirs[field])
            assert ours[field].dtype == theirs[field].dtype
        assert fingerprint(found.splits()[split]) == fingerprint(source)
    assert (found.mean, found.std, found.dtype) == (expected.mean, expected.std, expected.dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("field", ["labels", "masks"])
def test_datasets_of_swapped_arrays_equal_those_of_native_ones(dtype: str, field: str) -> None:
    images = WIDE.astype(dtype)
    targets = LABELS.astype(np.int32) if field == "labels" else (WIDE > 20000).astype(np.uint16)
    task = "classification" if field == "labels" else "segmentation"

    def arrays(images: np.ndarray, targets: np.ndarray) -> Dataset:
        return data.from_arrays(images, targets, validation=0.2)

    def items(images: np.ndarray, targets: np.ndarray) -> Dataset:
        pairs = list(zip(images, targets, strict=True))
        return data.from_dataset(pairs, validation=0.2, task=task)

    def npz(images: np.ndarray, targets: np.ndarray) -> Dataset:
        pair: Any = {"images": images, field: targets}
        np.savez("set.npz", **pair)
        return open_dataset(DataConfig(dataset="npz:set.npz"))

    for made in (arrays, items, npz):
        assert_equal_examples(made(swapped(images), swapped(targets)), made(images, targets))


def test_a_source_of_ones_own_may_have_them() -> None:
    images = WIDE[..., None]

    class Mine:
        def __init__(self, images: np.ndarray) -> None:
            self.images = images

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"images": self.images[index], "labels": LABELS[index]}

    found, expected = (
        check_dataset(
            Dataset(
                train=Mine(each),
                task="classification",
                num_classes=2,
                image_shape=(8, 8, 1),
                mean=(100.0,),
                std=(50.0,),
                dtype="uint16",
                pixel_range=(0.0, 51000.0),
            ),
            DataConfig(),
        )
        for each in (swapped(images), images)
    )
    for field, values in read(expected.train).items():
        assert_array_equal(read(found.train)[field], values)
        assert read(found.train)[field].dtype == values.dtype


@pytest.mark.parametrize("dtype", KINDS)
def test_predict_and_evaluate_take_them(dtype: str) -> None:
    images = WIDE.astype(dtype)
    result = jaxdp.Trainer(
        "cnn",
        data.from_arrays(images, LABELS),
        model_kwargs={"width": 4, "hidden": 8},
        devices=1,
        progress=False,
    ).fit(epochs=1)
    expected = result.predict(images)
    assert_array_equal(result.predict(swapped(images)), expected)
    assert_array_equal(result.predict(list(swapped(images))), expected)
    assert_array_equal(result.predict(swapped(images)[0]), expected[0])
    direct = [answer for _, answer in result.predictor()(swapped(images)[..., None])]
    assert_array_equal(direct, expected)
    assert result.evaluate(swapped(images), LABELS) == result.evaluate(images, LABELS)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L", "I;16N"])
def test_pictures_of_every_order_are_read(mode: str) -> None:
    stored = WIDE[0].astype(">u2" if mode == "I;16B" else "<u2")
    image = Image.frombytes(mode, (8, 8), stored.tobytes())
    pixels, _ = read_image(image, "x", 1, "uint16")
    assert pixels.dtype == np.uint16
    assert_array_equal(pixels[..., 0], WIDE[0])
    assert_array_equal(read_mask(image, "x"), WIDE[0])
    example = read(data.from_dataset([(image, 0), (image, 1)]).train)
    assert_array_equal(example["images"][1][..., 0], WIDE[0])


def test_weights_in_npz_become_native() -> None:
    np.savez("x.npz", a=swapped(WIDE))
    with open_npz("x.npz") as file:
        found = read_array(file, "a")
    assert found.dtype == np.uint16
    assert found.dtype.isnative
    assert_array_equal(found, WIDE)
