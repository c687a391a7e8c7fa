"""The tag Orientation turns an image, whatever its format and wherever it comes from: a file, bytes,
an open picture, a mask.
"""

import io
import pathlib
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import tifffile
from example_files import noise, opened, read, refused, write
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps

import jaxdp
from jaxdp import data
from jaxdp.data import image_file
from jaxdp.data.image_file import Picture, read_header, read_image, read_mask
from jaxdp.data.resize import Resize
from jaxdp.inference import files

GREY, COLOUR = noise(0, 4, 6), noise(1, 4, 6, 3)
WIDE = (GREY.astype(np.uint16) << 8) + 7
FORMATS = ("jpg", "png", "webp", "avif", "tif", "mpo")
TURNS: dict[int, Any] = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: np.rot90,
}


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def save(name: str, pixels: np.ndarray, orientation: int = 6, **options: Any) -> pathlib.Path:
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, exif=exif(orientation), **options)
    return path


def open_picture(path: pathlib.Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def with_chunk_at_the_end(path: pathlib.Path, kind: bytes, content: bytes) -> pathlib.Path:
    plain = io.BytesIO()
    Image.fromarray(GREY).save(plain, "PNG")
    path.write_bytes(plain.getvalue()[:-12] + chunk(kind, content) + plain.getvalue()[-12:])
    return path


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_file_its_bytes_and_an_open_picture_are_turned_alike(form: str, orientation: int) -> None:
    options = {"lossless": True} if form == "webp" else {}
    path = save(f"x.{form}", COLOUR, orientation, **options)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    if form in ("png", "tif", "webp"):
        assert_array_equal(expected, TURNS[orientation](COLOUR))
    header = read_header(path)
    assert header is not None
    assert header.sizes == (expected.shape[:2],)
    for each in (Picture(path), path, path.read_bytes(), open_picture(path)):
        assert_array_equal(read_image(each, "x")[0], expected)
        assert_array_equal(read_mask(each, "x"), expected)


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiff_of_every_depth_is_turned(orientation: int, compression: str | None) -> None:
    for stored in (GREY, WIDE, COLOUR, WIDE.astype(np.float32), np.stack([WIDE, WIDE // 3])):
        photometric = "rgb" if stored is COLOUR else "minisblack"
        tag = [(274, "H", 1, orientation, True)]
        tifffile.imwrite(
            "x.tif", stored, photometric=photometric, extratags=tag, compression=compression
        )
        pages = stored if stored.ndim == 3 and stored is not COLOUR else [stored]
        header = read_header(path := pathlib.Path("x.tif"))
        assert header is not None
        turned = [TURNS[orientation](page) for page in pages]
        assert header.sizes == tuple(page.shape[:2] for page in turned)
        for picture, page in zip(image_file.pages_of(path, header, "pages"), turned, strict=True):
            assert_array_equal(read_image(picture, "x")[0], page.reshape(*page.shape[:2], -1))
            assert_array_equal(read_mask(picture, "x"), page)
    # A pixel's height and width are turned, too.
    tifffile.imwrite("x.tif", WIDE, imagej=True, resolution=(2, 4), metadata={"unit": "um"})
    upright = image_file.planes_of(Picture(path))[0].pixel_size
    tag = [(274, "H", 1, orientation, True)]
    resolution = {"resolution": (2, 4), "metadata": {"unit": "um"}}
    tifffile.imwrite("x.tif", WIDE, imagej=True, extratags=tag, **resolution)
    found = image_file.planes_of(Picture(path))[0].pixel_size
    assert found == (upright if orientation < 5 else upright[::-1]) != []


def test_the_tag_may_follow_the_pixels_of_png_or_be_xmp() -> None:
    path = pathlib.Path("x.png")
    tags = exif(6).tobytes()[6:]  # without the mark that JPEG wants
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0<rdf tiff:Orientation='' tiff:Orientation=\"6\"/>"
    for kind, content in ((b"eXIf", tags), (b"iTXt", xmp)):
        with_chunk_at_the_end(path, kind, content)
        header = read_header(path)
        assert header is not None
        assert header.sizes == ((6, 4),)
        for each in (path, open_picture(path)):
            assert_array_equal(read_image(each, "x")[0][..., 0], TURNS[6](GREY))


def test_the_header_of_png_without_a_tag_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(GREY).save("x.png", dpi=(72, 72))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    header = read_header(pathlib.Path("x.png"))
    assert header is not None
    assert header.sizes == ((4, 6),)


def test_a_large_photo_is_decoded_at_reduced_scale_by_its_turned_size() -> None:
    path = save("x.jpg", noise(0, 64, 512, 3), 6)
    small, _ = read_image(path, path, resize=Resize.parse("128x16"))
    assert small.shape == (256, 32, 3)
    assert_array_equal(read_image(path, path)[0].shape, (512, 64, 3))


def test_an_open_picture_stays_as_it_is_and_is_turned_once() -> None:
    path = save("x.png", GREY, 6)
    with Image.open(path) as image:
        for _ in range(2):
            assert read_image(image, "x")[0].shape == (6, 4, 1)
        assert image.size == (6, 4)
        assert image.getexif()[0x0112] == 6
        upright = ImageOps.exif_transpose(image)
    assert read_image(upright, "x")[0].shape == (6, 4, 1)


@pytest.mark.parametrize("orientation", TURNS)
def test_tiff_that_pillow_maps_into_memory_is_turned(orientation: int) -> None:
    for mode in ("L", "P", "RGBA", "CMYK", "I;16"):
        stored = Image.fromarray(WIDE if mode == "I;16" else COLOUR).convert(mode)
        stored.save("x.tif", exif=exif(orientation))
        shown = stored.convert("RGB") if mode == "CMYK" else stored
        wanted = TURNS[orientation](np.asarray(shown))
        path = pathlib.Path("x.tif")
        assert_array_equal(read_mask(path, "x"), wanted)
        with Image.open(path) as image:
            for _ in range(2):
                assert_array_equal(read_mask(image, "x"), wanted)
            assert image.filename == "x.tif"


def test_a_mask_goes_by_its_own_tag() -> None:
    mask = noise(3, 4, 6, high=2)
    for number in range(4):
        save(f"set/images/{number}.jpg", COLOUR, 6)
        save(f"set/masks/{number}.png", mask, 6)
    example = read(opened().train)
    assert_array_equal(example["masks"][0][:6, :4], TURNS[6](mask))
    for number in range(4):
        Image.fromarray(mask).save(f"set/masks/{number}.png")
    with refused("4x6 pixels, but its image 6x4; each is turned as its own tag Orientation says"):
        read(opened().train)


def test_items_that_are_open_pictures_equal_their_files() -> None:
    for number in range(4):
        save(f"set/images/{number}.png", noise(number, 4, 6), 5 + number % 2)
        save(f"set/masks/{number}.png", noise(9 - number, 4, 6, high=2), 5 + number % 2)
    folder = [pathlib.Path(f"set/{part}") for part in ("images", "masks")]
    items = [[open_picture(path) for path in sorted(each.iterdir())] for each in folder]
    found = data.from_dataset(list(zip(*items, strict=True)), task="segmentation")
    example = read(found.train)
    for field in ("images", "masks"):
        for number, orientation in enumerate((5, 6, 5, 6)):
            stored = noise(number, 4, 6) if field == "images" else noise(9 - number, 4, 6, high=2)
            turned = TURNS[orientation](stored)
            assert_array_equal(example[field][number].reshape(6, 4), turned)


def test_predict_answers_alike_for_a_file_and_the_open_picture() -> None:
    labels = np.arange(12) % 2
    arrays = data.from_arrays(noise(0, 12, 16, 16, 3), labels)
    result = jaxdp.Trainer(
        "cnn", arrays, model_kwargs={"width": 4, "hidden": 8}, devices=1, progress=False
    ).fit(epochs=1)
    path = save("x.png", noise(1, 16, 24, 3), 6)
    expected = result.predict(path)
    assert_array_equal(result.predict(open_picture(path)), expected)
    assert_array_equal(result.predict([open_picture(path)]), expected[None])
    Image.fromarray(noise(1, 16, 24, 3)).save("y.png")
    assert not np.array_equal(result.predict("y.png"), expected)


def test_images_in_folders_count_by_their_turned_sizes() -> None:
    write({f"{name}/{number}.png": GREY for name in "ab" for number in range(3)})
    for number, name in enumerate("ab"):
        save(f"set/{name}/turned.webp", GREY.T.copy(), 6 + 2 * number, lossless=True)
    assert opened().image_shape[:2] == (4, 6)
    assert [str(each) for each in files.find(["set/a"])][-1] == "set/a/turned.webp"
