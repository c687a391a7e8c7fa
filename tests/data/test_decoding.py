"""Reading quickly changes nothing: other decoders give Pillow's pixels, and decoding at reduced scale hardly others."""

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxdp import data
from jaxdp.data import checking
from jaxdp.data.sources import decoders, images
from jaxdp.data.sources.fitting import ImageSize


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Waves of all lengths, and some noise."""
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (3 + 7 * k) + k) * np.cos(columns / (5 + 4 * k)) for k in range(channels)]
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
LEFT_TO_PILLOW = {
    "turned JPEG": encoded(picture(31, 17), "JPEG", **turned(6)),
    "CMYK": encoded(np.asarray(Image.fromarray(picture(16, 16)).convert("CMYK")), "TIFF"),
    "transparent colour": encoded(picture(9, 9), "PNG", transparency=(0, 0, 0)),
    "opacity": encoded(np.concatenate([picture(9, 9), picture(9, 9)[..., :1]], -1), "PNG"),
    "palette": b"",
    "16 bits": encoded(picture(9, 9, 1).astype(np.uint16) * 257, "PNG"),
    "cut PNG": PLAIN["colour PNG"][:900],
    "cut JPEG": PLAIN["4:2:0"][:-300],
    "damaged PNG": PLAIN["colour PNG"][:60] + b"?" + PLAIN["colour PNG"][61:],
    "nothing": b"",
    "PNG's first bytes": PLAIN["colour PNG"][:12],
}
_palette = io.BytesIO()
Image.fromarray(picture(9, 9)).quantize(16).save(_palette, "PNG")
LEFT_TO_PILLOW["palette"] = _palette.getvalue()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_have_the_pixels_that_pillow_gives(name: str) -> None:
    pytest.importorskip("imagecodecs")
    found = decoders.decode(PLAIN[name])
    assert found is not None
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(PLAIN[name]))))
    other = 1 if found.ndim == 3 else 3
    assert decoders.decode(PLAIN[name], other) is None  # Pillow converts


@pytest.mark.parametrize("name", LEFT_TO_PILLOW)
def test_what_is_not_plain_is_left_to_pillow(name: str) -> None:
    pytest.importorskip("imagecodecs")
    assert decoders.decode(LEFT_TO_PILLOW[name]) is None


def test_a_huge_image_in_a_small_file_is_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 33 * 47 - 1)
    assert decoders.decode(PLAIN["colour PNG"]) is None


@pytest.mark.parametrize("name", [*PLAIN, *LEFT_TO_PILLOW])
def test_images_and_masks_are_the_same_with_and_without_imagecodecs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    stored = (PLAIN | LEFT_TO_PILLOW)[name]

    def read() -> list[Any]:
        found: list[Any] = []
        for channels in (None, 1, 3, 4):
            for how in (lambda: images.decode_image(stored, name, channels), lambda: images.read_mask(stored, name)):  # noqa: B023
                try:
                    found.append(how())
                except data.BadExample as error:
                    found.append(str(error))
        return found

    fast = read()
    monkeypatch.setattr(decoders, "_library", lambda: None)
    for mine, pillows in zip(fast, read(), strict=True):
        assert type(mine) is type(pillows)
        np.testing.assert_array_equal(mine, pillows)


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
        ("resize_crop:64", (256, 275), 1),  # half of it, 128x138, would be resized to 64x69, not 64x68
        ("resize_crop:64", (256, 272), 2),
    ],
)
def test_a_reduced_image_is_at_least_twice_as_large_as_asked_for(text: str, size: tuple[int, int], factor: int) -> None:
    assert ImageSize.parse(text).reduction(size) == factor


def photos(folder: pathlib.Path, side: int) -> None:
    for number in range(20):
        path = folder / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(side, side + number), "JPEG", quality=92, **turned(6 if number % 3 == 0 else 1)))


@pytest.mark.parametrize(("side", "largest"), [(254, 0), (256, 20)])
def test_photos_that_are_large_enough_are_decoded_at_reduced_scale(
    side: int, largest: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, side)
    dataset = data.from_folder(tmp_path, image_size="resize_crop:64")
    reduced = [dataset.train[index]["images"].astype(int) for index in range(len(dataset.train))]
    monkeypatch.setattr(ImageSize, "reduction", lambda self, size: 1)
    whole = [dataset.train[index]["images"].astype(int) for index in range(len(dataset.train))]
    differences = [np.abs(mine - other) for mine, other in zip(reduced, whole, strict=True)]
    assert max(difference.max() for difference in differences) <= largest
    assert np.mean(differences) < 1
    assert (np.max(differences) > 0) == (largest > 0)


def test_a_batch_lies_where_a_device_that_is_the_cpu_takes_it_without_a_copy() -> None:
    for shape, dtype in (((3, 375, 500, 3), np.uint8), ((5,), np.float32), ((2, 7, 9, 1), np.uint16)):
        array = checking._empty(shape, np.dtype(dtype))
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, dtype, True)
        assert array.ctypes.data % 64 == 0
