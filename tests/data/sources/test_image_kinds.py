"""Pictures of every colour mode become alike, whichever comes first, and none is dropped for its
mode.
"""

import pathlib
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset
from jaxdp.inference import files
from jaxdp.registry import ConfigError

COLOUR = Image.fromarray(noise(0, 8, 8, 3))
GREY = Image.fromarray(noise(1, 8, 8))
ALPHA = Image.fromarray(noise(2, 8, 8))


def photos(
    root: pathlib.Path, first: Image.Image, name: str = "000.png", count: int = 57
) -> pathlib.Path:
    """Writes a picture in front of so many colour photos, in train/a and train/b, and two test
    photos.
    """
    for number in range(count):
        path = root / "train" / "ab"[number % 2] / f"{number + 1:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number, 8, 8, 3)).save(path)
    for label in "ab":
        (root / "test" / label).mkdir(parents=True)
        COLOUR.save(root / "test" / label / "x.png")
    first.save(root / "train" / "a" / name)
    return root


@pytest.mark.parametrize("on_bad_example", ["error", "skip"])
def test_one_grey_photo_in_front_drops_no_colour_photo(
    tmp_path: pathlib.Path, on_bad_example: Any
) -> None:
    dataset = opened(photos(tmp_path, GREY), on_bad_example=on_bad_example)
    found = read(dataset.train)
    assert dataset.image_shape == (8, 8, 3)
    assert found["weights"].sum() == len(dataset.train) == 58
    np.testing.assert_array_equal(found["images"][0], np.repeat(np.asarray(GREY)[..., None], 3, -1))
    np.testing.assert_array_equal(
        found["images"][1], np.asarray(Image.open(tmp_path / "train/a/001.jpg"))
    )


def on_black(image: Image.Image) -> np.ndarray:
    red, green, blue, alpha = (
        np.asarray(band, np.float32) for band in image.convert("RGBA").split()
    )
    return np.stack([red, green, blue], -1) * alpha[..., None] / 255


KINDS = {
    "CMYK": COLOUR.convert("CMYK"),
    "RGBA": Image.merge("RGBA", (*COLOUR.split(), ALPHA)),
    "LA": Image.merge("LA", (GREY, ALPHA)),
    "P": COLOUR.convert("P", palette=Image.Palette.ADAPTIVE),
    "1": GREY.convert("1"),
    "L": GREY,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_mode_is_converted_as_prediction_does(tmp_path: pathlib.Path, kind: str) -> None:
    suffix = "tif" if kind == "CMYK" else "png"
    root = photos(tmp_path, KINDS[kind], f"000.{suffix}", count=3)
    first = root / "train" / "a" / f"000.{suffix}"
    for channels in (None, 1, 3, 4):
        dataset = opened(root, channels=channels)
        image = read(dataset.train)["images"][0]
        assert image.shape == (8, 8, channels or 3)
        np.testing.assert_array_equal(image, files.read(first, channels or 3)[0])
        if channels is None:
            wanted = (
                on_black(KINDS[kind]) if "A" in kind else np.asarray(KINDS[kind].convert("RGB"))
            )
            np.testing.assert_allclose(image, wanted, atol=1)
        if channels == 4:
            np.testing.assert_array_equal(image, np.asarray(KINDS[kind].convert("RGBA")))


def test_a_cmyk_jpeg_and_a_transparent_palette(tmp_path: pathlib.Path) -> None:
    root = photos(tmp_path, COLOUR.convert("CMYK"), "000.jpg", count=3)
    image = read(opened(root).train)["images"][0]
    np.testing.assert_array_equal(
        image, np.asarray(Image.open(root / "train/a/000.jpg").convert("RGB"))
    )
    KINDS["P"].save(root / "train/a/0000.png", transparency=KINDS["P"].getpixel((0, 0)))
    image = read(opened(root).train)["images"][1]
    assert not image[0, 0].any()
    assert image.any()


def test_grey_alone_is_one_channel_and_a_mask_has_none_of_this(tmp_path: pathlib.Path) -> None:
    for number, kind in enumerate(("L", "1", "LA")):
        for part in ("images", "masks"):
            (tmp_path / part).mkdir(exist_ok=True)
        KINDS[kind].save(tmp_path / "images" / f"{number}.png")
        # 16 bits.
        Image.fromarray(noise(number, 8, 8, high=2).astype(np.uint16)).save(
            tmp_path / "masks" / f"{number}.png"
        )
    dataset = opened(tmp_path)
    assert dataset.image_shape == (8, 8, 1)
    masks = {
        mask.tobytes() for part in (dataset.train, dataset.test) for mask in read(part)["masks"]
    }
    assert masks == {noise(number, 8, 8, high=2).tobytes() for number in range(3)}


def test_a_split_of_which_nothing_is_left_names_the_commonest_reason(
    tmp_path: pathlib.Path,
) -> None:
    for split in ("train", "test"):
        for part in ("images", "masks"):
            (tmp_path / split / part).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(noise(number, 8, 8)).save(tmp_path / split / "images" / f"{number}.png")
            value = 7 if split == "test" else number % 2  # a value that is no class
            Image.new("L", (8, 9 if split == "test" and not number else 8), value).save(
                tmp_path / split / "masks" / f"{number}.png"
            )
    dataset = opened(tmp_path, on_bad_example="skip")
    assert read(dataset.train)["weights"].all()
    with pytest.raises(
        ConfigError,
        match=r"test: none of its 3 examples .*/1\.png: its mask has the value 7, not one of 0",
    ) as caught:
        read(dataset.test)
    assert "\n" not in str(caught.value)


def test_other_datasets_take_no_channels() -> None:
    with pytest.raises(ConfigError, match="--channels 1: digits does not take it"):
        open_dataset(DataConfig(dataset="digits", channels=1))
    with pytest.raises(ConfigError, match="--channels 2: "):
        DataConfig.of(channels=2)
