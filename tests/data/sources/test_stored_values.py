"""Numbers in PGM, PPM, GIF, PNG and BMP are those that were written, where Pillow scales, renumbers
or misreads them.
"""

import io
import pathlib
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from example_files import ROOT, bad_example, noise, opened, read_splits, refused
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.data.image_file import Picture, read_header, read_image, read_mask

RNG = np.random.default_rng(0)


def netpbm(numbers: np.ndarray, largest: int, *, plain: bool = False) -> bytes:
    kind = {2: 5, 3: 6}[numbers.ndim] - 3 * plain
    height, width = numbers.shape[:2]
    header = f"P{kind}\n# a comment\n{width} {height}\n{largest}\n".encode()
    if plain:
        rows = [b" ".join(b"%d" % number for number in row.ravel()) for row in numbers]
        return header + b" # so many\n".join(rows)
    return header + numbers.astype(">u2" if largest > 255 else "u1").tobytes()


def gif(pixels: np.ndarray, palette: list[int] | None = None) -> bytes:
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if palette is not None:
        image = Image.frombytes("P", image.size, pixels.tobytes())
        image.putpalette(palette)
    image.save(buffer, "GIF")
    return buffer.getvalue()


def bmp(bits: int, rows: np.ndarray, colours: list[int]) -> bytes:
    """Returns a picture with a palette of greys."""
    lines = []
    for row in rows[::-1].tolist():
        text = "".join(format(number, f"0{bits}b") for number in row)
        text += "0" * (-len(text) % 32)
        lines.append(int(text, 2).to_bytes(len(text) // 8, "big"))
    palette = b"".join(bytes([grey, grey, grey, 0]) for grey in colours)
    body, start = palette + b"".join(lines), 54 + len(palette)
    sizes = (40, rows.shape[1], rows.shape[0], 1, bits, 0, 0, 0, 0, len(colours), 0)
    head = b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, start)
    return head + struct.pack("<IiiHHIIiiII", *sizes) + body


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("largest", [1, 3, 100, 254, 255, 256, 1000, 4095, 65534, 65535])
def test_numbers_of_pgm_and_ppm_stay(largest: int, channels: int, plain: bool) -> None:
    shape = (5, 7) if channels == 1 else (5, 7, 3)
    numbers = RNG.integers(0, largest, shape, endpoint=True)
    numbers[0, 0], numbers[0, 1] = 0, largest
    path = pathlib.Path("x.pgm")
    path.write_bytes(netpbm(numbers, largest, plain=plain))
    dtype = "uint8" if largest < 256 else "uint16"
    header = read_header(path)
    assert header is not None
    assert (header.dtype, header.channels, header.sizes) == (dtype, channels, ((5, 7),))
    for each in (path, Picture(path), path.read_bytes(), Image.open(io.BytesIO(path.read_bytes()))):
        pixels, _ = read_image(each, "x")
        assert pixels.dtype == dtype
        assert_array_equal(pixels, numbers.reshape(5, 7, channels))
        assert_array_equal(read_mask(each, "x"), numbers)
    assert read_image(path, path, 3, dtype)[0].shape == (5, 7, 3)
    assert read_image(path, path, 1, dtype)[0].shape == (5, 7, 1)


def test_an_open_picture_of_pgm_can_still_be_used() -> None:
    numbers = RNG.integers(0, 4096, (5, 7))
    pathlib.Path("x.pgm").write_bytes(netpbm(numbers, 4095))
    with Image.open("x.pgm") as image:
        assert_array_equal(read_image(image, "x")[0][..., 0], numbers)
        assert_array_equal(np.asarray(image), (numbers / 4095 * 65535).round())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (netpbm(np.full((4, 4), 200), 4095)[:-1], "cannot be read as an image"),
        (netpbm(np.full((4, 4), 200), 100), "holds 200, but its header says 100 at most"),
        (netpbm(np.full((4, 4), 5000), 4095, plain=True), "holds 5000, but its header says 4095"),
        (netpbm(np.full((4, 4), -1), 3, plain=True), "cannot be read as an image"),
        (netpbm(np.full((4, 4), 3), 7, plain=True)[:-4], "cannot be read as an image"),
        (netpbm(np.full((4, 4), 3), 7, plain=True)[:-1] + b"x", "cannot be read as an image"),
    ],
)
def test_damaged_pgm_is_one_line(content: bytes, message: str) -> None:
    with bad_example(message):
        read_image(content, "x")


def test_pbm_keeps_white_as_one() -> None:
    white = RNG.integers(0, 2, (5, 7)).astype(bool)
    Image.fromarray(white).save("x.pbm")
    path = pathlib.Path("x.pbm")
    plain = b"P1\n7 5\n" + b"\n".join(b" ".join(b"%d" % (not bit) for bit in row) for row in white)
    for each in (path, plain):
        assert_array_equal(read_mask(each, "x"), white)
        assert_array_equal(read_image(each, "x")[0][..., 0], white * 255)


@pytest.mark.parametrize("settings", [{}, {"mask_values": "0,1,2,3"}, {"num_classes": 4}])
def test_masks_in_pgm_are_class_numbers(settings: dict[str, Any]) -> None:
    masks = [RNG.integers(0, 4, (8, 8), np.uint8) for _ in range(5)]
    for number, mask in enumerate(masks):
        for part, content in (("images", noise(number, 8, 8)), ("masks", mask)):
            path = ROOT / part / f"{number}.pgm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(netpbm(content, 3 if part == "masks" else 255))
    dataset = opened(**settings)
    assert dataset.num_classes == 4
    assert read_splits(dataset, "masks") == {mask.tobytes() for mask in masks}


@pytest.mark.parametrize("values", [[0, 1, 2, 3], [0, 2], [0, 5, 9], [1, 2, 3], [0, 255], [7]])
def test_grey_gif_keeps_its_numbers(values: list[int]) -> None:
    pixels = RNG.choice(np.array(values, np.uint8), (9, 8))
    stored = gif(pixels)
    for each in (stored, Image.open(io.BytesIO(stored))):
        assert_array_equal(read_mask(each, "x"), pixels)
        assert_array_equal(read_image(each, "x")[0][..., 0], pixels)


def test_gif_in_colour_has_places_of_its_palette_and_says_that_programs_change_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    palette = [0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255]
    masks = [RNG.integers(0, 3, (8, 8), np.uint8) for _ in range(4)]
    for number, mask in enumerate(masks):
        for part, content in (("images", gif(noise(number, 8, 8))), ("masks", gif(mask, palette))):
            path = ROOT / part / f"{number}.gif"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert opened().num_classes == 3
    assert (
        "programs renumber the colours of GIF, e.g. in set/masks/0.gif" in capsys.readouterr().err
    )
    by_colour = opened(mask_values="000000,00ff00,ff0000")
    expected = np.array([0, 2, 1], np.uint8)
    assert read_splits(by_colour, "masks") == {expected[mask].tobytes() for mask in masks}


def test_bmp_of_two_colours_is_read_or_refused() -> None:
    rows = np.tile(np.array([0, 1], np.uint8), (3, 20))
    assert_array_equal(read_mask(bmp(1, rows, [0, 255]), "x"), rows)
    assert_array_equal(read_mask(bmp(8, rows, [0, 30]), "x"), rows)
    for bits in (4, 8):  # Pillow 13 reads them as single bits
        with bad_example("two colours of 4 or 8 bits, which Pillow misreads; save it as PNG"):
            read_mask(bmp(bits, rows, [0, 255]), "x")


def test_grey_png_of_few_bits_is_scaled_and_asked_about() -> None:
    """As the format says, and as all its readers do: 1 of 2 bits is 85."""
    for number in range(4):
        mask = RNG.integers(0, 4, (8, 8), np.uint8) * np.uint8(85)
        image = Image.fromarray(mask)
        for part in ("images", "masks"):
            (ROOT / part).mkdir(parents=True, exist_ok=True)
            image.save(ROOT / part / f"{number}.png", bits=2)
    with refused("--mask-values 0,85,170,255 if each is a class"):
        opened()


def test_16_bits_in_colour_of_png_are_said_to_be_read_as_8(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    numbers = RNG.integers(0, 2**16, (8, 8, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in numbers)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    content += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path = ROOT
    for name in "ab":
        for number in range(3):
            path = ROOT / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert_array_equal(read_image(path, path)[0], numbers >> 8)
    assert opened().dtype == "uint8"
    said = "6 of 6 images are PNG in colour with 16 bits a channel, e.g. set/a/0.png: read with 8;"
    assert f"{said} save them as TIFF to keep 16" in capsys.readouterr().err
    for number in range(3):
        Image.fromarray(numbers[..., 0].astype(np.uint16)).save(ROOT / "a" / f"{number}.png")
        Image.fromarray(noise(number, 8, 8, 3)).save(ROOT / "b" / f"{number}.png")
    opened(on_bad_example="skip")
    assert "read with 8" not in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["La", "LAB"])
def test_a_mode_that_pillow_cannot_convert_is_one_line(mode: str) -> None:
    with bad_example("cannot be converted .conversion from .* not supported"):
        read_image(Image.new(mode, (8, 8)), "x", 1)
