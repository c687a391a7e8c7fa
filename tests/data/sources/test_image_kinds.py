"""Pictures of every colour mode and depth become alike, whichever comes first, and none is dropped
for its mode.
"""

import pathlib
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read, read_splits, refused, split_classes, write
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.image_file import read_image
from jaxdp.data.sources import open_dataset

COLOUR = Image.fromarray(noise(0, 8, 8, 3))
GREY = Image.fromarray(noise(1, 8, 8))
ALPHA = Image.fromarray(noise(2, 8, 8))
KINDS = {
    "CMYK": COLOUR.convert("CMYK"),
    "RGBA": Image.merge("RGBA", (*COLOUR.split(), ALPHA)),
    "LA": Image.merge("LA", (GREY, ALPHA)),
    "P": COLOUR.convert("P", palette=Image.Palette.ADAPTIVE),
    "1": GREY.convert("1"),
    "L": GREY,
}


def photos(first: Image.Image, name: str = "0.png") -> pathlib.Path:
    """Writes a picture in front of colour photos."""
    return write(split_classes(5, 2) | {f"train/a/{name}": first})


@pytest.mark.parametrize("on_bad_example", ["error", "skip"])
def test_one_grey_photo_in_front_drops_no_colour_photo(on_bad_example: Any) -> None:
    dataset = opened(photos(GREY), on_bad_example=on_bad_example)
    found = read(dataset.train)
    assert dataset.image_shape == (8, 8, 3)
    assert found["weights"].sum() == len(dataset.train) == 6
    assert_array_equal(found["images"][0], np.repeat(np.asarray(GREY)[..., None], 3, -1))
    assert_array_equal(found["images"][1], noise(0, 8, 8, 3))


def on_black(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image.convert("RGBA"), np.float32)
    return pixels[..., :3] * pixels[..., 3:] / 255


@pytest.mark.parametrize("kind", KINDS)
def test_each_mode_is_converted_as_prediction_does(kind: str) -> None:
    picture, name = KINDS[kind], f"0.{'tif' if kind == 'CMYK' else 'png'}"
    root = photos(picture, name)
    for channels in (None, 1, 3, 4):
        image = read(opened(root, channels=channels).train)["images"][0]
        assert image.shape == (8, 8, channels or 3)
        path = root / "train" / "a" / name
        predicted, _ = read_image(path, path, channels or 3, "uint8")
        assert_array_equal(image, predicted)
        if channels is None:
            wanted = on_black(picture) if "A" in kind else np.asarray(picture.convert("RGB"))
            np.testing.assert_allclose(image, wanted, atol=1)
        if channels == 4:
            assert_array_equal(image, np.asarray(picture.convert("RGBA")))


def test_a_cmyk_jpeg_and_a_transparent_palette() -> None:
    root, palette = photos(KINDS["CMYK"], "0.jpg"), KINDS["P"]
    palette.save(root / "train/a/0.png", transparency=palette.getpixel((0, 0)))
    with Image.open(root / "train/a/0.jpg") as stored:
        wanted = np.asarray(stored.convert("RGB"))
    found = read(opened(root).train)["images"]
    assert_array_equal(found[0], wanted)
    assert not found[1][0, 0].any()
    assert found[1].any()


def test_grey_alone_is_one_channel_and_a_mask_has_none_of_this() -> None:
    masks = [noise(number, 8, 8, high=2) for number in range(3)]
    for number, kind in enumerate(("L", "1", "LA")):
        pair = {"images": KINDS[kind], "masks": masks[number].astype(np.uint16)}
        write({f"{part}/{number}.png": content for part, content in pair.items()})
    dataset = opened()
    assert dataset.image_shape == (8, 8, 1)
    assert read_splits(dataset, "masks") == {mask.tobytes() for mask in masks}


def test_other_datasets_take_no_channels() -> None:
    with refused("--channels 1: digits does not take it"):
        open_dataset(DataConfig(dataset="digits", channels=1))
    with refused("--channels 2: "):
        DataConfig.of(channels=2)
