"""TIFF files of every kind against tifffile and Pillow: which planes are examples, which are
channels, and their pixels.
"""

import pathlib
from typing import Any

import numpy as np
import pytest
import tifffile
from example_files import ROOT, bad_example, opened, read, refused, sizes, write
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.data.image_file import (
    Picture,
    decode_mask,
    pages_of,
    planes_of,
    read_header,
    read_image,
)
from jaxdp.data.sources import Dataset

RNG = np.random.default_rng(0)
PATH = pathlib.Path("stack.tif")


def deep(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**16, shape, np.uint16)


def save(stored: np.ndarray, **options: Any) -> None:
    options = {"photometric": "minisblack"} | options
    tifffile.imwrite(PATH, stored, **options)


def decoded(choice: str | None = None, channels: int | None = None) -> list[np.ndarray]:
    return [
        read_image(picture, picture, channels)[0]
        for picture in pages_of(PATH, read_header(PATH, choice), choice)
    ]


SIDES = {"Z": 3, "T": 4, "C": 2, "S": 3, "N": 6, "Y": 5, "X": 6}
PLAIN, ZLIB, IMAGEJ, OME = (
    {"metadata": None},
    {"compression": "zlib"},
    {"imagej": True},
    {"ome": True},
)
RGB = {"photometric": "rgb"}
SEPARATE = RGB | {"planarconfig": "separate"}


@pytest.mark.parametrize(
    ("axes", "options", "choice", "wanted"),
    [
        # wanted: axes that become (page, Y, X, channel)
        ("YX", {}, None, "YX"),
        ("ZYX", IMAGEJ, None, "ZYX"),
        ("TYX", IMAGEJ, None, "TYX"),
        ("CYX", IMAGEJ, None, "YXC"),
        ("ZCYX", IMAGEJ, None, "ZYXC"),
        ("CZYX", OME, None, "ZYXC"),
        ("ZYX", OME | ZLIB, None, "ZYX"),
        ("ZYX", PLAIN, None, "ZYX"),
        ("ZYX", PLAIN | {"byteorder": ">"}, None, "ZYX"),
        ("ZYX", PLAIN | ZLIB, None, "ZYX"),
        ("ZYX", PLAIN, "channels", "YXZ"),
        ("CYX", IMAGEJ, "pages", "CYX"),
        ("ZCYX", IMAGEJ, "pages", "ZCYX"),
        ("YXS", RGB, None, "YXS"),
        ("SYX", SEPARATE, None, "YXS"),
        ("SYX", SEPARATE, "pages", "SYX"),
        ("ZYXS", RGB | PLAIN, None, "ZYXS"),
        ("YXN", {"planarconfig": "contig"}, None, "YXN"),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_planes_are_pages_or_channels(
    axes: str, options: dict[str, Any], choice: Any, wanted: str, dtype: Any
) -> None:
    stored = deep(*[SIDES[axis] for axis in axes])
    stored = (stored >> (8 if dtype == np.uint8 else 0)).astype(dtype)
    named = {"metadata": {"axes": axes}} if options.keys() & {"imagej", "ome"} else {}
    save(stored, **(named | options))
    channels = [SIDES[axis] for axis in wanted.partition("X")[2]]
    order = [axes.index(axis) for axis in wanted]
    examples = stored.transpose(order).reshape(-1, 5, 6, *(channels or [1]))
    header = read_header(PATH, choice)
    assert header is not None
    assert (header.channels, header.dtype) == (examples.shape[-1], np.dtype(dtype).name)
    assert header.sizes == ((5, 6),) * len(examples)
    found = np.stack(decoded(choice))
    assert found.dtype == dtype
    assert_array_equal(found, examples)


def test_pages_of_unequal_size_are_all_there() -> None:
    pages = [deep(5, 6), deep(7, 4), deep(5, 6)]
    with tifffile.TiffWriter(PATH) as writer:
        for page in pages:
            writer.write(page, metadata=None, photometric="minisblack")
    assert sorted(page.tobytes() for page in decoded()) == sorted(page.tobytes() for page in pages)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "1", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_what_pillow_writes(mode: str, compression: Any) -> None:
    colour = Image.fromarray((deep(8, 9, 3) >> 8).astype(np.uint8))
    picture = Image.fromarray(deep(8, 9)) if mode == "I;16" else colour.convert(mode)
    second = picture.transpose(Image.Transpose.ROTATE_180)
    picture.save(PATH, save_all=True, append_images=[second], compression=compression)
    plain = {"I;16": "I;16", "1": "L", "L": "L", "LA": "L"}.get(mode, "RGB")
    for ours, theirs in zip(decoded(), (picture, second), strict=True):
        wanted = np.asarray(theirs if mode == plain else theirs.convert(plain))
        assert ours.dtype == wanted.dtype
        assert_array_equal(ours.squeeze(), wanted)


def test_deep_colour_and_transparency_keep_their_depth() -> None:
    stored = deep(5, 6, 4)
    save(stored, photometric="rgb", extrasamples=["unassalpha"])
    (flat,), (grey,), (whole,) = (decoded(channels=channels) for channels in (3, 1, 4))
    wanted = stored[..., :3] * (stored[..., 3:] / 65535)
    np.testing.assert_allclose(flat, wanted, atol=1)
    np.testing.assert_allclose(grey[..., 0], wanted @ [0.299, 0.587, 0.114], atol=1)
    assert_array_equal(whole, stored)


@pytest.mark.parametrize(
    ("dtype", "as_dtype"),
    [("int16", "float32"), ("float64", "float32"), ("float16", "float32"), ("uint32", "uint16")],
)
def test_other_numbers_are_kept_where_nothing_is_lost(dtype: str, as_dtype: str) -> None:
    stored = np.arange(30).reshape(5, 6).astype(dtype)
    save(stored)
    (found,) = decoded()
    assert found.dtype == as_dtype
    assert_array_equal(found[..., 0], stored)


@pytest.mark.parametrize(
    ("value", "dtype", "problem"),
    [
        (np.nan, np.float32, "has NaN or infinite pixels"),
        (2**20, np.uint32, "has 32 bits a pixel"),
        (0, np.complex64, "has 64 bits a pixel"),
    ],
)
def test_what_cannot_be_used_is_one_line(value: float, dtype: Any, problem: str) -> None:
    save(np.full((5, 6), value, dtype))
    with bad_example(problem):
        read_image(PATH, PATH)


def test_broken_files_are_one_line() -> None:
    save(deep(50, 60), compression="zlib")
    whole = PATH.read_bytes()
    for content in (whole[:100], whole[:-200], whole[: len(whole) // 2], b"II*\0", b"", b"text"):
        PATH.write_bytes(content)
        with bad_example("cannot be read as an image"):
            read_image(Picture(PATH), PATH)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int32])
def test_masks_are_class_numbers_of_any_depth(dtype: Any) -> None:
    mask = np.array([[0, 3], [255, 1]])
    save(mask.astype(dtype))
    assert_array_equal(decode_mask(PATH, PATH), mask.astype(np.uint8))


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (np.full((2, 2), 300, np.uint16), "values from 0 to 300; class numbers are 0 to 255"),
        (np.full((2, 2), -1, np.int16), "values from -1 to 0"),
        (np.full((2, 2), 0.5, np.float32), "has fractions"),
        (np.zeros((5, 6, 3), np.uint8), "wrong number of channels"),
    ],
)
def test_other_masks_are_refused(mask: np.ndarray, problem: str) -> None:
    save(mask, photometric="rgb" if mask.ndim == 3 else "minisblack")
    with bad_example(problem):
        decode_mask(PATH, PATH)


def stacks(
    pages: int = 3, files: int = 12, mask_pages: int = 0, **options: Any
) -> dict[str, np.ndarray]:
    written: dict[str, np.ndarray] = {}
    for number in range(files):
        written[f"images/{number:02d}.tif"] = deep(pages, 6, 8)
        mask = deep(mask_pages or pages, 6, 8) % 2
        written[f"masks/{number:02d}.tif"] = mask.astype(np.uint8)
    write(written, **options)
    return written


def names(dataset: Dataset, split: str) -> list[str]:
    source: Any = dataset.splits()[split]
    return list(map(source.name, range(len(source))))


def test_a_mask_stack_pairs_page_by_page_and_whole_files_are_held_out() -> None:
    written = stacks()
    dataset = opened()
    assert (sizes(dataset), dataset.dtype, dataset.image_shape) == ([33, 3], "uint16", (6, 8, 1))
    for split in ("train", "test"):
        found = read(dataset.splits()[split])
        for index, name in enumerate(names(dataset, split)):
            file, _, page = name.removeprefix(f"{ROOT}/images/").removesuffix("]").partition("[")
            for part in ("images", "masks"):
                wanted = written[f"{part}/{file}"][int(page)]
                assert_array_equal(found[part][index].squeeze(), wanted)
    assert len({name.partition("[")[0] for name in names(dataset, "test")}) == 1


def test_of_a_single_stack_runs_of_pages_are_held_out() -> None:
    stacks(pages=40, files=1)
    dataset = opened(validation="0.2")
    pages = {
        split: [int(name.partition("[")[2][:-1]) for name in names(dataset, split)]
        for split in dataset.splits()
    }
    assert sorted(page for numbers in pages.values() for page in numbers) == list(range(40))
    assert pages["test"] == [36, 37, 38, 39]
    runs = np.split(
        np.array(pages["validation"]), np.flatnonzero(np.diff(pages["validation"]) != 1) + 1
    )
    assert len(runs) <= 2
    assert 6 <= len(pages["validation"]) <= 8
    assert all(len(run) >= 3 for run in runs)


@pytest.mark.parametrize(
    ("pages", "files", "settings", "message"),
    [
        (
            100,
            1,
            {"validation": "0.02"},
            "^validation=0.02: leaves no validation section of the 10 that there are",
        ),
        (1, 1, {}, "holds one image only, and needs another as test data; add others"),
        (
            30,
            3,
            {"validation": "0.1"},
            "^validation=0.1: leaves no validation file of the 2 that there are; choose another",
        ),
    ],
)
def test_too_few_stacks_are_one_line(
    pages: int, files: int, settings: dict[str, str], message: str
) -> None:
    stacks(pages, files)
    with refused(message):
        opened(**settings)


@pytest.mark.parametrize("kind", ["masks", "classes"])
@pytest.mark.parametrize("seed", [0, 1])
def test_pages_of_a_file_are_all_in_one_split(kind: str, seed: int) -> None:
    for number in range(24):
        pages = int(np.random.default_rng(number).integers(1, 5))
        file = f"{number:02d}.tif"
        if kind == "classes":
            write({f"{['left', 'right'][number % 2]}/{file}": deep(pages, 6, 8)})
        else:
            mask = (deep(pages, 6, 8) % 2).astype(np.uint8)
            write({f"images/{file}": deep(pages, 6, 8), f"masks/{file}": mask})

    def files(seed: int) -> dict[str, set[str]]:
        dataset = opened(validation="0.25", seed=seed)
        return {
            split: {name.partition("[")[0] for name in names(dataset, split)}
            for split in dataset.splits()
        }

    found = files(seed)
    counts = {split: len(some) for split, some in found.items()}
    assert counts == {"train": 16, "validation": 6, "test": 2}
    assert len(set.union(*found.values())) == 24  # no file is in two splits
    if kind == "classes":
        for split, count in (("validation", 3), ("test", 1)):
            assert sum("left" in name for name in found[split]) == count
    assert files(seed) == found
    assert files(seed + 7)["validation"] != found["validation"]


def test_channels_by_the_flag_and_masks_of_one_page() -> None:
    written = stacks(pages=5, mask_pages=1)
    dataset = opened(tiff="channels")
    assert dataset.image_shape == (6, 8, 5)
    assert_array_equal(
        read(dataset.train)["images"][0], written["images/00.tif"].transpose(1, 2, 0)
    )
    with bad_example(r"00\.tif: has 5 pages, but its mask 1; give each its own, or say by tiff"):
        read(opened(num_classes=2).train)


def test_numbers_of_channels_that_do_not_fit_are_one_line() -> None:
    stacks(pages=5, mask_pages=1, imagej=True, metadata={"axes": "CYX"})
    assert opened().image_shape == (6, 8, 5)
    with refused(r"channels=3: .*00\.tif has 5 channels, which cannot be made 3; leave it out"):
        opened(channels=3)
    write({"images/03.tif": deep(6, 8)})
    with refused(r"00\.tif has 5 channels and .*03\.tif 1; give tiff=\"pages\""):
        opened()


def test_a_file_that_is_written_again_is_read_again() -> None:
    save(deep(3, 5, 6))
    assert len(decoded()) == 3
    again = deep(4, 7, 5)
    save(again)
    assert_array_equal(np.stack(decoded())[..., 0], again)


@pytest.mark.parametrize(
    ("options", "height"),
    [
        # tags alone: what a printer or a screen has says nothing of the image
        ({"resolution": (2e4, 1e4), "resolutionunit": "CENTIMETER"}, 1.0),
        ({"resolution": (25400, 25400 / 9), "resolutionunit": "INCH"}, 9.0),
        ({"resolution": (1181, 1181), "resolutionunit": "CENTIMETER"}, 8.467400),  # 3000 dpi
        *(({"resolution": (dpi, dpi), "resolutionunit": "INCH"}, None) for dpi in (72, 300, 2400)),
        ({"resolution": (118.11, 118.11), "resolutionunit": "CENTIMETER"}, None),
        ({"resolution": (2e5, 2e5), "resolutionunit": "NONE"}, None),
        ({}, None),
        # units of ImageJ
        *(
            ({"imagej": True, "resolution": (2, 4), "metadata": {"unit": unit}}, height)
            for unit, height in (
                ("micron", 0.25),
                ("um", 0.25),
                ("nm", 0.00025),
                ("mm", 250.0),
                ("cm", 2500.0),
                ("pixel", None),
                ("inch", None),
            )
        ),
        ({"imagej": True, "resolution": (8e3, 4e3), "metadata": {"unit": "inch"}}, 6.35),
        ({"imagej": True, "resolution": (2e3, 4e3), "resolutionunit": "CENTIMETER"}, None),
        # ImageJ reads such a density in centimetres, whatever the unit
        (
            {
                "imagej": True,
                "resolution": (2e4, 4e4),
                "resolutionunit": "CENTIMETER",
                "metadata": {"unit": "um"},
            },
            0.25,
        ),
        (
            {
                "imagej": True,
                "resolution": (2, 4),
                "resolutionunit": "CENTIMETER",
                "metadata": {"unit": "micron"},
            },
            0.25,
        ),
        # units of OME
        *(
            (
                {"ome": True, "metadata": {"PhysicalSizeX": 0.5, "PhysicalSizeY": size} | unit},
                None if any(name.startswith("PhysicalSizeX") for name in unit) else 0.25,
            )
            for size, unit in (
                (0.25, {}),
                (250.0, {"PhysicalSizeYUnit": "nm"}),
                (0.25, {"PhysicalSizeYUnit": "µm"}),
                (0.25, {"PhysicalSizeXUnit": "parsec"}),
                (0.25, {"PhysicalSizeX": 1e-15}),
                (0.25, {"PhysicalSizeX": 1e300}),
                (0.25, {"PhysicalSizeX": -1.0}),
            )
        ),
    ],
)
def test_the_pixel_size_is_of_the_microscope_and_not_of_a_printer(
    options: dict[str, Any], height: float | None
) -> None:
    save(deep(5, 6), **options)
    [plane] = planes_of(Picture(PATH))
    assert plane.pixel_size[:1] == ([] if height is None else [pytest.approx(height, rel=1e-5)])
    assert ("unit" in plane.facts) == (height is not None)


def test_units_of_ome_may_be_escaped() -> None:
    """TIFF holds ASCII, and so some programs escape the letter."""
    sizes = {f"PhysicalSize{axis}": 0.25 for axis in "XY"}
    units = {f"PhysicalSize{axis}Unit": "µm" for axis in "XY"}
    save(deep(5, 6), ome=True, metadata=sizes | units)
    with tifffile.TiffFile(PATH) as file:
        assert file.ome_metadata is not None
        escaped = file.ome_metadata.encode("ascii", "xmlcharrefreplace")
    assert escaped.count(b'"&#181;m"') == 2
    save(deep(5, 6), ome=False, description=escaped, metadata=None)
    [plane] = planes_of(Picture(PATH))
    assert plane.pixel_size == [0.25, 0.25]
