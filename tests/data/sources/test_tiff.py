"""TIFF files of every kind against tifffile and Pillow: which planes are examples, which are
channels, and their pixels.
"""

# Over 300 lines: all that one decoder must answer.

import pathlib
from typing import Any

import numpy as np
import pytest
import tifffile
from example_files import bad_example, opened, read, refused
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.data.image_file import Picture, decode_mask, pages_of, read_header, read_image
from jaxdp.data.splits import random_share
from jaxdp.registry import ConfigError

RNG = np.random.default_rng(0)
PATH = pathlib.Path("stack.tif")


def deep(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**16, shape, np.uint16)


def decoded(choice: str | None = None, channels: int | None = None) -> list[np.ndarray]:
    return [
        read_image(picture, picture, channels)[0]
        for picture in pages_of(PATH, read_header(PATH, choice), choice)
    ]


@pytest.mark.parametrize(
    ("shape", "options", "choice", "examples"),
    [
        # examples: axes of the stored array that become (page, height, width, channel)
        ((5, 6), {}, None, lambda a: a[None, ..., None]),
        ((4, 5, 6), {"imagej": True, "metadata": {"axes": "ZYX"}}, None, lambda a: a[..., None]),
        ((4, 5, 6), {"imagej": True, "metadata": {"axes": "TYX"}}, None, lambda a: a[..., None]),
        (
            (2, 5, 6),
            {"imagej": True, "metadata": {"axes": "CYX"}},
            None,
            lambda a: a.transpose(1, 2, 0)[None],
        ),
        (
            (3, 2, 5, 6),
            {"imagej": True, "metadata": {"axes": "ZCYX"}},
            None,
            lambda a: a.transpose(0, 2, 3, 1),
        ),
        (
            (5, 3, 5, 6),
            {"ome": True, "metadata": {"axes": "CZYX"}},
            None,
            lambda a: a.transpose(1, 2, 3, 0),
        ),
        (
            (4, 5, 6),
            {"ome": True, "metadata": {"axes": "ZYX"}, "compression": "zlib"},
            None,
            lambda a: a[..., None],
        ),
        ((4, 5, 6), {"metadata": None}, None, lambda a: a[..., None]),
        ((4, 5, 6), {"metadata": None, "byteorder": ">"}, None, lambda a: a[..., None]),
        ((4, 5, 6), {"metadata": None, "compression": "zlib"}, None, lambda a: a[..., None]),
        ((4, 5, 6), {"metadata": None}, "channels", lambda a: a.transpose(1, 2, 0)[None]),
        ((7, 5, 6), {"imagej": True, "metadata": {"axes": "CYX"}}, "pages", lambda a: a[..., None]),
        (
            (3, 2, 5, 6),
            {"imagej": True, "metadata": {"axes": "ZCYX"}},
            "pages",
            lambda a: a.reshape(6, 5, 6, 1),
        ),
        ((5, 6, 3), {"photometric": "rgb"}, None, lambda a: a[None]),
        (
            (3, 5, 6),
            {"photometric": "rgb", "planarconfig": "separate"},
            None,
            lambda a: a.transpose(1, 2, 0)[None],
        ),
        (
            (3, 5, 6),
            {"photometric": "rgb", "planarconfig": "separate"},
            "pages",
            lambda a: a[..., None],
        ),
        ((2, 5, 6, 3), {"photometric": "rgb", "metadata": None}, None, lambda a: a),
        (
            (5, 6, 6),
            {"photometric": "minisblack", "planarconfig": "contig"},
            None,
            lambda a: a[None],
        ),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_planes_are_pages_or_channels(
    shape: Any, options: dict[str, Any], choice: Any, examples: Any, dtype: Any
) -> None:
    stored = (deep(*shape) >> (8 if dtype == np.uint8 else 0)).astype(dtype)
    tifffile.imwrite(PATH, stored, **({"photometric": "minisblack"} | options))
    assert_array_equal(tifffile.imread(PATH).reshape(shape), stored)
    wanted, found = examples(stored), decoded(choice)
    header = read_header(PATH, choice)
    assert header is not None
    assert (header.channels, header.dtype, len(header.sizes)) == (
        wanted.shape[-1],
        np.dtype(dtype).name,
        len(wanted),
    )
    assert header.sizes[0] == wanted.shape[1:3]
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == dtype
        assert_array_equal(ours, theirs)


def test_pages_of_unequal_size_are_all_there() -> None:
    pages = [deep(5, 6), deep(7, 4), deep(5, 6)]
    with tifffile.TiffWriter(PATH) as writer:
        for page in pages:
            writer.write(page, metadata=None, photometric="minisblack")
    found = decoded()
    assert sorted(page.tobytes() for page in found) == sorted(page.tobytes() for page in pages)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "1", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_what_pillow_writes(mode: str, compression: Any) -> None:
    colour = Image.fromarray((deep(8, 9, 3) >> 8).astype(np.uint8))
    picture = Image.fromarray(deep(8, 9)) if mode == "I;16" else colour.convert(mode)
    second = picture.transpose(Image.Transpose.ROTATE_180)
    picture.save(PATH, save_all=True, append_images=[second], compression=compression)
    found = decoded()
    wanted = [
        np.asarray(
            each if mode == "I;16" else each.convert("L" if mode in ("1", "L", "LA") else "RGB")
        )
        for each in (picture, second)
    ]
    assert len(found) == 2
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert_array_equal(ours.squeeze(), theirs)


def test_deep_colour_and_transparency_keep_their_depth() -> None:
    stored = deep(5, 6, 4)
    tifffile.imwrite(PATH, stored, photometric="rgb", extrasamples=["unassalpha"])
    (flat,), (grey,), (whole,) = decoded(channels=3), decoded(channels=1), decoded(channels=4)
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
    tifffile.imwrite(PATH, stored)
    (found,) = decoded()
    assert found.dtype == as_dtype
    assert_array_equal(found[..., 0], stored)


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (np.full((5, 6), np.nan, np.float32), "has NaN or infinite pixels"),
        (np.full((5, 6), 2**20, np.uint32), "has 32 bits a pixel"),
        (np.zeros((5, 6), np.complex64), "has 64 bits a pixel"),
    ],
)
def test_what_cannot_be_used_is_one_line(stored: np.ndarray, problem: str) -> None:
    tifffile.imwrite(PATH, stored)
    with bad_example(problem):
        read_image(PATH, PATH)


def test_broken_files_are_one_line() -> None:
    tifffile.imwrite(PATH, deep(50, 60), compression="zlib")
    whole = PATH.read_bytes()
    for content in (whole[:100], whole[:-200], whole[: len(whole) // 2], b"II*\0", b"", b"text"):
        PATH.write_bytes(content)
        with bad_example("cannot be read as an image"):
            read_image(Picture(PATH), PATH)


def test_masks_are_class_numbers_of_any_depth() -> None:
    for dtype in (np.uint8, np.uint16, np.float32, np.int32):
        path = pathlib.Path(f"{np.dtype(dtype)}.tif")
        tifffile.imwrite(path, np.array([[0, 3], [255, 1]], dtype))
        assert_array_equal(decode_mask(path, path), np.array([[0, 3], [255, 1]], np.uint8))
    for number, (wrong, problem) in enumerate(
        (
            (np.full((2, 2), 300, np.uint16), "values from 0 to 300; class numbers are 0 to 255"),
            (np.full((2, 2), -1, np.int16), "values from -1 to 0"),
            (np.full((2, 2), 0.5, np.float32), "has fractions"),
            (np.zeros((5, 6, 3), np.uint8), "wrong number of channels"),
        )
    ):
        path = pathlib.Path(f"{number}.tif")
        tifffile.imwrite(path, wrong, photometric="rgb" if wrong.ndim == 3 else "minisblack")
        with bad_example(problem):
            decode_mask(path, path)


def stacks(
    root: pathlib.Path, pages: int = 3, files: int = 12, mask_pages: int = 0, **options: Any
) -> dict[str, np.ndarray]:
    written = {}
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
        for number in range(files):
            stored = deep(pages if part == "images" else mask_pages or pages, 6, 8)
            stored = stored if part == "images" else (stored % 2).astype(np.uint8)
            tifffile.imwrite(
                root / part / f"{number:02d}.tif",
                stored,
                **({"photometric": "minisblack"} | options),
            )
            written[f"{part}/{number:02d}"] = stored
    return written


def test_a_mask_stack_pairs_page_by_page_and_whole_files_are_held_out(
    tmp_path: pathlib.Path,
) -> None:
    written = stacks(tmp_path)
    dataset = opened(tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.dtype, dataset.image_shape) == (
        33,
        3,
        "uint16",
        (6, 8, 1),
    )
    pairs = {
        (image.tobytes(), mask.tobytes())
        for part in (dataset.train, dataset.test)
        for image, mask in zip(*(read(part)[field] for field in ("images", "masks")), strict=True)
    }
    assert pairs == {
        (
            written[f"images/{number:02d}"][page].tobytes(),
            written[f"masks/{number:02d}"][page].tobytes(),
        )
        for number in range(12)
        for page in range(3)
    }
    held = {mask.tobytes() for mask in read(dataset.test)["masks"]}
    assert any(
        held == {page.tobytes() for page in written[f"masks/{number:02d}"]} for number in range(12)
    )
    assert dataset.test.name(1).endswith(".tif[1]")


def test_of_a_single_stack_runs_of_pages_are_held_out(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=40, files=1)
    dataset = opened(tmp_path, validation="0.2")
    pages = {
        split: [int(source.name(index).partition("[")[2][:-1]) for index in range(len(source))]
        for split, source in dataset.splits().items()
    }
    assert sorted(page for numbers in pages.values() for page in numbers) == list(range(40))
    assert pages["test"] == [36, 37, 38, 39]
    runs = np.split(
        np.array(pages["validation"]), np.flatnonzero(np.diff(pages["validation"]) != 1) + 1
    )
    assert len(runs) <= 2
    assert 6 <= len(pages["validation"]) <= 8
    assert all(len(run) >= 3 for run in runs)


def test_too_small_a_share_of_a_single_stack_is_one_line(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=100, files=1)
    with refused(
        r"^--validation 0.02: leaves no validation section of the 10 that there are",
    ):
        opened(tmp_path, validation="0.02")


def test_a_single_image_cannot_be_held_out(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=1, files=1)
    with refused(r"holds one image only, and needs another as test data; add others"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["masks", "classes"])
@pytest.mark.parametrize("seed", [0, 1])
def test_pages_of_a_file_are_all_in_one_split(kind: str, seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(24):
        pages = int(rng.integers(1, 5))
        if kind == "classes":
            places, photometric = [tmp_path / ["left", "right"][number % 2]], "minisblack"
        else:
            places, photometric = [tmp_path / "images", tmp_path / "masks"], "minisblack"
        for place in places:
            place.mkdir(exist_ok=True)
            stored = (
                deep(pages, 6, 8)
                if place.name != "masks"
                else (deep(pages, 6, 8) % 2).astype(np.uint8)
            )
            tifffile.imwrite(place / f"{number:02d}.tif", stored, photometric=photometric)
    dataset = opened(tmp_path, validation="0.25", seed=seed)
    files = {
        split: [name.partition("[")[0] for name in map(source.name, range(len(source)))]
        for split, source in dataset.splits().items()
    }
    assert sorted(files) == ["test", "train", "validation"]
    whole = [name for names in files.values() for name in set(names)]
    assert len(whole) == len(set(whole)) == 24  # no file is in two splits
    counts = {split: len(set(names)) for split, names in files.items()}
    assert counts == {"train": 16, "validation": 6, "test": 2}
    if kind == "classes":
        for split, count in (("validation", 3), ("test", 1)):
            assert sum("left" in name for name in set(files[split])) == count
    again, other = (
        opened(tmp_path, validation="0.25", seed=each).validation for each in (seed, seed + 7)
    )
    assert [again.name(index) for index in range(len(again))] == [
        dataset.validation.name(index) for index in range(len(again))
    ]
    assert {other.name(index) for index in range(len(other))} != {
        again.name(index) for index in range(len(again))
    }


def test_too_few_stacks_for_a_share_are_one_line(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=30, files=3)
    with refused(
        (
            r"^--validation 0.1: leaves no validation file of the 2 that there are \(pages of a"
            r" file"
        ),
    ):
        opened(tmp_path, validation="0.1")
    dataset = opened(tmp_path, validation="0.5")
    assert {split: len(source) for split, source in dataset.splits().items()} == {
        "train": 30,
        "validation": 30,
        "test": 30,
    }


def test_single_pictures_are_drawn_one_by_one_as_before(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=1, files=30)
    dataset = opened(tmp_path, validation="0.2", seed=5)
    expected = random_share(np.zeros(27, int), 0.2, 5, lambda text: ConfigError("", "", text))
    train = sorted(path for path in (tmp_path / "images").iterdir())
    kept = [
        path
        for path in train
        if path.stem not in {pathlib.Path(dataset.test.name(index)).stem for index in range(3)}
    ]
    drawn = [dataset.validation.name(index) for index in range(len(dataset.validation))]
    assert drawn == [str(path) for path, wanted in zip(kept, expected, strict=True) if wanted]


def test_channels_by_the_flag_and_masks_of_one_page(tmp_path: pathlib.Path) -> None:
    written = stacks(tmp_path, pages=5, mask_pages=1)
    dataset = opened(tmp_path, tiff="channels")
    assert dataset.image_shape == (6, 8, 5)
    assert_array_equal(read(dataset.train)["images"][0], written["images/00"].transpose(1, 2, 0))
    with bad_example(
        r"00\.tif: has 5 pages, but its mask 1; give each its own, or say by --tiff",
    ):
        read(opened(tmp_path, num_classes=2).train)


def test_numbers_of_channels_that_do_not_fit_are_one_line(tmp_path: pathlib.Path) -> None:
    stacks(tmp_path, pages=5, mask_pages=1, imagej=True, metadata={"axes": "CYX"})
    assert opened(tmp_path).image_shape == (6, 8, 5)
    with refused(
        r"--channels 3: .*00\.tif has 5 channels, which cannot be made 3; leave it out",
    ):
        opened(tmp_path, channels=3)
    tifffile.imwrite(tmp_path / "images" / "03.tif", deep(6, 8), photometric="minisblack")
    with refused(r"00\.tif has 5 channels and .*03\.tif 1; give --tiff pages"):
        opened(tmp_path)


def test_a_file_that_is_written_again_is_read_again() -> None:
    tifffile.imwrite(PATH, deep(3, 5, 6), photometric="minisblack")
    assert len(decoded()) == 3
    again = deep(4, 7, 5)
    tifffile.imwrite(PATH, again, photometric="minisblack")
    assert_array_equal(np.stack(decoded())[..., 0], again)
