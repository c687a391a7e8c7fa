"""Images have the pixels that Pillow decodes, or nearly so at reduced scale."""

import dataclasses
import io
import pathlib
from typing import Any

import numpy as np
import pytest
from example_files import read
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp import data
from jaxdp.build.data import open_data
from jaxdp.build.inputs import Inputs
from jaxdp.build.resolve import with_dataset
from jaxdp.config import DataConfig, TrainConfig
from jaxdp.data import image_file as images
from jaxdp.data.opening import check_dataset
from jaxdp.data.resize import Resize
from jaxdp.data.split import empty_aligned


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Waves of all lengths, and some noise."""
    rows, columns = np.mgrid[:height, :width]
    waves = [
        np.sin(rows / (3 + 7 * k) + k) * np.cos(columns / (5 + 4 * k)) for k in range(channels)
    ]
    noise = np.random.default_rng(height).normal(0, 6, (height, width, channels))
    pixels = np.clip(120 + 90 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)
    return pixels if channels > 1 else pixels[..., 0]


def encoded(pixels: np.ndarray, form: str, **options: Any) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, form, **options)
    return written.getvalue()


def turned(orientation: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


PLAIN = {
    "colour PNG": encoded(picture(33, 47), "PNG"),
    "grey PNG": encoded(picture(33, 47, 1), "PNG"),
    "PNG with a text and a resolution": encoded(picture(8, 8), "PNG", dpi=(72, 72)),
    "4:2:0": encoded(picture(75, 101), "JPEG", quality=90),
    "4:4:4": encoded(picture(75, 101), "JPEG", quality=95, subsampling=0),
    "4:2:2": encoded(picture(64, 65), "JPEG", quality=60, subsampling=1),
    "progressive": encoded(picture(75, 101), "JPEG", quality=80, progressive=True),
    "grey JPEG": encoded(picture(31, 17, 1), "JPEG"),
    "JPEG with EXIF data, upright": encoded(picture(31, 17), "JPEG", **turned(1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_images_and_masks_have_the_pixels_that_pillow_gives(name: str) -> None:
    with Image.open(io.BytesIO(PLAIN[name])) as image:
        expected = np.asarray(image)
    assert_array_equal(images.read_mask(PLAIN[name], name), expected)
    found, _ = images.read_image(PLAIN[name], name)
    assert_array_equal(found, expected if expected.ndim == 3 else expected[..., None])


@pytest.mark.parametrize(
    ("text", "size", "factor"),
    [
        ("resize_crop:224", (375, 500), 1),
        ("resize_crop:224", (894, 2000), 1),
        ("resize_crop:224", (896, 2000), 2),
        ("resize_crop:224", (3000, 4000), 4),
        ("resize_crop:224", (9000, 8000), 8),
        ("letterbox:224", (10, 896), 2),
        ("letterbox:224", (894, 10), 1),
        ("100x50", (400, 198), 1),
        ("100x50", (400, 200), 2),
        ("64", (32, 32), 1),
        # Half of it, 128x138, would be resized to 64x69, not 64x68.
        ("resize_crop:64", (256, 275), 1),
        ("resize_crop:64", (256, 272), 2),
    ],
)
def test_a_reduced_image_is_at_least_twice_as_large_as_asked_for(
    text: str, size: tuple[int, int], factor: int
) -> None:
    assert Resize.parse(text).reduction(size) == factor


def photos(folder: pathlib.Path, side: int) -> None:
    for number in range(20):
        path = folder / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = turned(6 if number % 3 == 0 else 1)
        path.write_bytes(encoded(picture(side, side + number), "JPEG", quality=92, **exif))


@pytest.mark.parametrize(("side", "largest"), [(254, 0), (256, 20)])
def test_photos_that_are_large_enough_are_decoded_at_reduced_scale(
    side: int, largest: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, side)
    train = data.from_folder(tmp_path, image_size="resize_crop:64").train
    reduced = read(train)["images"].astype(int)
    monkeypatch.setattr(Resize, "reduction", lambda self, size: 1)
    differences = np.abs(read(train)["images"] - reduced)
    assert differences.max() <= largest
    assert differences.mean() < 1
    assert differences.any() == (largest > 0)


def test_a_folder_is_resized_once_whoever_asks_for_the_size(tmp_path: pathlib.Path) -> None:
    photos(tmp_path, 300)
    opened = data.from_folder(tmp_path, on_bad_example="skip")
    assert opened.image_shape == (224, 224, 3)
    inputs = Inputs(dataset=opened)
    config, resized = open_data(TrainConfig.of(model="cnn", image_size="64"), inputs)
    config = with_dataset(config, resized, inputs)
    loaded = data.from_folder(tmp_path, image_size=64)
    for split, source in loaded.splits().items():
        found = read(resized.splits()[split])
        assert_array_equal(found["images"], read(source)["images"])
    assert (resized.mean, resized.std) == (loaded.mean, loaded.std)
    assert resized.image_shape == loaded.image_shape == (64, 64, 3)
    # The default crop belonged to the default size.
    assert config.augment == loaded.augment == ()
    # A declared mean is the user's.
    mine = dataclasses.replace(opened, mean=(1.0,) * 3, std=(2.0,) * 3, measured=False)
    assert check_dataset(mine, DataConfig(image_size="64")).mean == (1.0,) * 3


def test_a_size_that_is_asked_for_twice_is_that_of_the_original() -> None:
    halved = data.load("digits-denoise", image_size=8)
    again = check_dataset(halved, DataConfig(image_size="12"))
    expected = data.load("digits-denoise", image_size=12)
    for name in ("images", "targets"):
        assert_array_equal(again.train[5][name], expected.train[5][name])
    assert check_dataset(again, DataConfig(image_size="12")).train is again.train


def test_a_batch_lies_where_a_device_that_is_the_cpu_takes_it_without_a_copy() -> None:
    for shape, dtype in (
        ((3, 375, 500, 3), np.uint8),
        ((5,), np.float32),
        ((2, 7, 9, 1), np.uint16),
    ):
        array = empty_aligned(shape, np.dtype(dtype))
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, dtype, True)
        assert array.ctypes.data % 64 == 0
