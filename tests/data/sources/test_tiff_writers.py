"""TIFF files as their writers meant them: where 0 is white, pages of several sizes and types,
thumbnails, and planes that are tagged as opacity. tifffile's own reading of each page is right.
"""

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import tifffile
from example_files import ROOT, bad_example, opened, read, refused, write
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from jaxdp.config.values import MaskValues
from jaxdp.data import tiff
from jaxdp.data.image_file import (
    Picture,
    decode_mask,
    pages_of,
    read_header,
    read_headers,
    read_image,
    read_mask,
)

PATH = pathlib.Path("stack.tif")
RNG = np.random.default_rng(0)
CLASSES = np.array([[0, 1, 2], [3, 0, 2]])
WHITE: dict[str, Any] = {"photometric": "miniswhite"}
BLACK: dict[str, Any] = {"photometric": "minisblack", "metadata": None}
BY_IMAGEJ = "ImageJ=1.54f\nimages=1\n"
PLANES = np.stack([np.full((4, 5), value) for value in (26500, 6000, 6500, 6000)])


def pictures(choice: str | None = None) -> list[Picture]:
    return pages_of(PATH, read_header(PATH, choice), choice)


def as_read(choice: str | None = None) -> list[np.ndarray]:
    return [read_image(each, each)[0].squeeze(-1) for each in pictures(choice)]


def write_pages(pages: list[np.ndarray], path: pathlib.Path = PATH, **options: Any) -> None:
    """Writes pages one by one; an option may be a list, of a value for each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path) as writer:
        for number, page in enumerate(pages):
            own = {
                name: value[number] if isinstance(value, list) else value
                for name, value in options.items()
            }
            writer.write(page, **(BLACK | own))


def sizes_of(*sides: int, dtype: Any = np.uint8) -> list[np.ndarray]:
    """Returns square pages; the values say which page it is."""
    return [np.full((side, side), number, dtype) for number, side in enumerate(sides)]


def by_nobody(pixels: np.ndarray) -> None:
    """Writes numbers with 0 as white, and nothing that says who did it."""
    tifffile.imwrite(PATH, pixels, software="", metadata=None, **WHITE)


@pytest.mark.parametrize("by_pillow", [False, True])
@pytest.mark.parametrize("kind", ["tifffile", "bare tifffile", "imagej", "bilevel", "fax"])
def test_masks_are_the_stored_numbers_where_zero_is_white(
    kind: str, by_pillow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_pillow:  # as where a compression takes imagecodecs
        monkeypatch.setattr(tiff, "read", lambda *args: None)
    stored = CLASSES.astype(np.uint8)
    if kind == "imagej":
        tifffile.imwrite(PATH, stored, description=BY_IMAGEJ, software="", metadata=None, **WHITE)
    elif kind == "bilevel":
        stored = CLASSES > 1
        tifffile.imwrite(PATH, stored)
    elif kind == "fax":
        stored = CLASSES > 1
        tags = {262: 0, 305: "tifffile.py"}  # Pillow inverts what it writes so
        Image.fromarray(~stored).save(PATH, compression="group4", tiffinfo=tags)
    else:
        tifffile.imwrite(PATH, stored, metadata={} if kind == "tifffile" else None, **WHITE)
    assert_array_equal(tifffile.imread(PATH), stored)
    for data in (PATH, Picture(PATH), Image.open(PATH)):
        assert_array_equal(read_mask(data, PATH), stored)
        assert_array_equal(decode_mask(data, PATH), stored.astype(np.uint8))


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.uint32, np.float32])
def test_deep_masks_are_the_stored_numbers_where_zero_is_white(dtype: Any) -> None:
    by_nobody(CLASSES.astype(dtype))
    assert_array_equal(decode_mask(PATH, PATH), CLASSES)


@pytest.mark.parametrize("options", [{}, {"instances": True}])
def test_masks_with_zero_as_white_are_what_they_are_with_zero_as_black(
    options: dict[str, Any],
) -> None:
    masks = [
        np.kron(np.roll(CLASSES, n).astype(np.uint8), np.ones((4, 4), np.uint8)) for n in range(12)
    ]
    found = []
    for photometric in ("miniswhite", "minisblack"):
        root = pathlib.Path(photometric)
        files = {f"images/{n:02d}.tif": np.full((8, 12), n, np.uint8) for n in range(12)}
        write(files, root)
        write(
            {f"masks/{n:02d}.tif": mask for n, mask in enumerate(masks)},
            root,
            photometric=photometric,
        )
        found.append(read(opened(root, **options).train))
    for field in found[0]:
        assert_array_equal(found[0][field], found[1][field])


@pytest.mark.parametrize(
    ("stored", "ends"),
    [(CLASSES > 1, 1), ((CLASSES > 1) * np.uint8(255), 255), (np.zeros((2, 3), np.uint16), 65535)],
)
def test_what_may_be_inverted_is_asked_for(stored: np.ndarray, ends: int) -> None:
    by_nobody(stored)
    ask = rf"--mask-values 0,{ends} if 0 is class 0, --mask-values {ends},0 if {ends} is"
    for values in (None, "binary"):
        named = MaskValues.parse(values) if values else None
        with refused(ask):
            decode_mask(PATH, PATH, named)
    with refused(ask):
        decode_mask(Image.open(PATH), PATH) if ends < 65535 else decode_mask(PATH, PATH)
    for order in (f"0,{ends}", f"{ends},0"):
        found = decode_mask(PATH, PATH, MaskValues.parse(order))
        assert_array_equal(found, (stored == int(order.partition(",")[2])))


def test_a_folder_of_masks_that_may_be_inverted_asks_and_understands_the_answer() -> None:
    truth = [np.roll(np.eye(8, 12, dtype=bool), n, 1) for n in range(12)]
    for n, mask in enumerate(truth):
        write({f"images/{n:02d}.png": np.full((8, 12), n, np.uint8)})
        write({f"masks/{n:02d}.tif": mask}, software="", metadata=None, **WHITE)
    settings: list[dict[str, Any]] = [{}, {"num_classes": 2}, {"instances": True}]
    for options in [*settings, {"on_bad_example": "skip"}]:
        with refused("give --mask-values 0,1 if 0 is class 0, --mask-values 1,0 if 1 is"):
            dataset = opened(**options)
            read(dataset.train)
    for order, classes in (("0,1", truth), ("1,0", [~mask for mask in truth])):
        found = read(opened(mask_values=order).train)
        for image, mask in zip(found["images"], found["masks"], strict=True):
            assert_array_equal(mask, classes[image.flat[0]])


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_masks_of_one_bit_hold_the_numbers_0_and_1(suffix: str) -> None:
    for n in range(12):
        write({f"images/{n:02d}.png": RNG.integers(0, 255, (8, 12), np.uint8)})
        write({f"masks/{n:02d}.{suffix}": np.roll(np.eye(8, 12, dtype=bool), n)}, photometric=None)
    description = opened().describe()
    assert description.mask_values == (0, 1)
    # `dataset.json` has them as numbers.
    assert [type(value) for value in description.mask_values] == [int, int]


@pytest.mark.parametrize("by_pillow", [False, True])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16, np.float32])
def test_images_are_the_stored_numbers_where_zero_is_white(
    dtype: Any, by_pillow: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = (CLASSES > 1 if dtype is bool else CLASSES).astype(dtype)
    by_nobody(stored)
    if by_pillow:
        monkeypatch.setattr(tiff, "read", lambda *args: None)
    wanted = stored * np.uint8(255) if dtype is bool else stored
    for data in (PATH, Image.open(PATH)):
        pixels, _ = read_image(data, PATH)
        assert pixels.dtype == wanted.dtype
        assert_array_equal(pixels[..., 0], wanted)
    read_headers([PATH, PATH.with_suffix(".png")])
    said = "note: in 1 of 2 files 0 is white (e.g. stack.tif): their numbers are read as stored"
    assert (said in capsys.readouterr().err) == (dtype is not np.float32)


@pytest.mark.parametrize("count", [6, 10, 12])
@pytest.mark.parametrize("pillow", [False, True])
@pytest.mark.parametrize("odd", [0, 3, 5])
def test_masks_of_several_types_belong_to_the_images_of_their_pages(
    count: int, pillow: bool, odd: int
) -> None:
    images = [np.full((8, 8), n, np.uint8) for n in range(count)]
    masks = [np.full((8, 8), n + 1, np.uint16 if n == odd else np.uint8) for n in range(count)]
    masks[odd] += 299
    for mask in masks:
        mask[:4] = 0
        mask[4:, :4] = 200
    write({"images/a.tif": np.stack(images)})
    path = ROOT / "masks" / "a.tif"
    if pillow:
        path.parent.mkdir()
        first, *others = map(Image.fromarray, masks)
        first.save(path, save_all=True, append_images=others)
    else:
        write_pages(masks, path)
    dataset = opened(instances=True)
    seen = set()
    for source in dataset.splits().values():
        for number in range(len(source)):
            inner: Any = source
            index = number if inner.indices is None else int(inner.indices[number])
            example = inner.source[index]
            page = int(example["images"].flat[0])
            assert example["masks"][7, 7] == page + 1 + 299 * (page == odd)
            seen.add(page)
    assert seen == set(range(count))


@pytest.mark.parametrize("odd", [0, 3, 11])
def test_an_image_of_another_type_in_a_stack_is_named(odd: int) -> None:
    write_pages(
        [
            np.full((8, 8), 300 if n == odd else n, np.uint16 if n == odd else np.uint8)
            for n in range(12)
        ]
    )
    header = read_header(PATH)
    assert header is not None
    assert header.dtype == "uint8"
    assert len(header.sizes) == 12
    for number, picture in enumerate(pictures()):
        if number == odd:
            with bad_example(rf"stack.tif\[{odd}\]: has 16 bits a channel \(uint16\), not 8"):
                read_image(picture, picture, dtype=header.dtype)
            assert read_image(picture, picture)[0].flat[0] == 300
        else:
            assert read_image(picture, picture, dtype=header.dtype)[0].flat[0] == number


def test_pages_with_other_channels_are_named() -> None:
    grey, colour = np.zeros((6, 8), np.uint8), np.zeros((6, 8, 3), np.uint8)
    for name in ("images", "masks"):
        write_pages(
            [grey, grey, colour],
            ROOT / name / "a.tif",
            photometric=["minisblack", "minisblack", "rgb"],
        )
    stack = np.zeros((3, 6, 8), np.uint8)
    problem = r"a\.tif: cannot be read as an image \(page 2 has 3 channels, unlike page 0 with 1;"
    for name in ("images", "masks"):
        with bad_example(problem):
            read_image(ROOT / name / "a.tif", ROOT / name / "a.tif")
        write({f"{'masks' if name == 'images' else 'images'}/a.tif": stack})
        write(
            {
                "images/b.tif": stack,
                "masks/b.tif": stack,
                "images/c.tif": stack,
                "masks/c.tif": stack,
            }
        )
        with refused(problem):
            read(opened(num_classes=2).train)
        write_pages(
            [grey, grey, colour],
            ROOT / "masks" / "a.tif",
            photometric=["minisblack", "minisblack", "rgb"],
        )


@pytest.mark.parametrize("dtype", [np.uint16, np.uint8])
def test_headers_that_tifffile_does_not_look_at_are_read(dtype: Any) -> None:
    """tifffile looks at the pages 0, 1, 7 and the last one, and takes all others for alike."""
    pages = sizes_of(*[16, 16, 32, 32, 48, 16, 32, 16, 32, 16])
    pages[3] = pages[3].astype(dtype) + dtype(200)
    write_pages(pages, compression=[None, None, *["zlib"] * 4, *[None] * 4])
    for found, page in zip(as_read(), pages, strict=True):
        assert_array_equal(found, page)
        assert found.dtype == page.dtype


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize("count", [1, 2])
def test_separate_samples_are_pages_if_that_is_asked_for(
    compression: Any, tile: Any, count: int
) -> None:
    pages = RNG.integers(0, 255, (count, 3, 32, 32), np.uint8)
    own: dict[str, Any] = {"photometric": "rgb", "planarconfig": "separate", "tile": tile}
    write_pages(list(pages), compression=compression, **own)
    assert_array_equal(as_read("pages"), pages.reshape(-1, 32, 32))


@pytest.mark.parametrize("metadata", [None, {}])
@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize(
    "sides", [(128, 64, 128, 64), (64, 128, 32), (120, 60, 40, 30), (80, 16, 80), (64, 96, 64)]
)
def test_every_page_is_an_example_whatever_its_size(
    sides: tuple[int, ...], tile: Any, metadata: Any
) -> None:
    for bigtiff in (False, True):
        with tifffile.TiffWriter(PATH, bigtiff=bigtiff) as writer:
            for page in sizes_of(*sides):
                writer.write(page, photometric="minisblack", tile=tile, metadata=metadata)
        found = as_read()
        assert [page.shape[0] for page in found] == list(sides)
        assert [page.flat[0] for page in found] == list(range(len(sides)))
    assert all(header.left_out == 0 for header in [read_header(PATH)] if header)


@pytest.mark.parametrize("metadata", [None, {}])
@pytest.mark.parametrize("mark", [1, 4, 5])
@pytest.mark.parametrize(
    ("sides", "marked"),
    [
        ((128, 64, 32), (1, 2)),
        ((100, 20, 100, 20), (1, 3)),
        ((20, 100, 100), (0,)),
        ((64, 64, 64), (1,)),
        ((100, 37), (1,)),
    ],
)
def test_pages_of_other_pages_are_left_out_by_their_marks(
    sides: tuple[int, ...],
    marked: tuple[int, ...],
    mark: int,
    metadata: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    marks = [mark if number in marked else 0 for number in range(len(sides))]
    photometric = ["mask" if each & 4 else "minisblack" for each in marks]
    pages = [
        page > 0 if each & 4 else page for page, each in zip(sizes_of(*sides), marks, strict=True)
    ]
    write_pages(pages, subfiletype=marks, metadata=metadata, photometric=photometric)
    assert [page.flat[0] for page in as_read()] == [n for n in range(len(sides)) if n not in marked]
    read_headers([PATH])
    said = (
        f"note: {len(marked)} pages of 1 TIFF files are thumbnails, levels of pyramids or the like"
    )
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("ome", [False, True])
@pytest.mark.parametrize("metadata", [None, {}])
def test_images_below_pages_are_left_out(ome: bool, metadata: Any) -> None:
    with tifffile.TiffWriter(PATH, ome=ome) as writer:
        for number in range(3):
            page = np.full((64, 64), number, np.uint8)
            own = {"photometric": "minisblack", "metadata": metadata}
            writer.write(page, subifds=2, **own)
            writer.write(page[::2, ::2] + 50, subfiletype=1, **own)
            writer.write(page[::5, ::5] + 50, **own)
    assert [page.flat[0] for page in as_read()] == [0, 1, 2]
    header = read_header(PATH)
    assert header is not None
    assert (header.sizes, header.left_out) == (((64, 64),) * 3, 6)


def test_marks_of_all_pages_say_nothing() -> None:
    write_pages(sizes_of(64, 32), subfiletype=1)
    assert [page.flat[0] for page in as_read()] == [0, 1]
    with tifffile.TiffWriter(PATH) as writer:  # as raw files of cameras
        writer.write(np.zeros((16, 16), np.uint8), subfiletype=1, subifds=1, **BLACK)
        writer.write(np.zeros((64, 64), np.uint8), **BLACK)
    with bad_example("its whole image lies below a thumbnail"):
        read_image(PATH, PATH)


@pytest.mark.parametrize("options", [{}, {"imagej": True}, {"ome": True}, {"metadata": None}])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_nothing_is_left_out_of_whole_stacks(options: dict[str, Any], compression: Any) -> None:
    stored = RNG.integers(0, 99, (12, 6, 8), np.uint8)
    own = {"photometric": "minisblack", "metadata": {"axes": "ZYX"}, "compression": compression}
    tifffile.imwrite(PATH, stored, **(own | options))
    header = read_header(PATH)
    assert header is not None
    assert (len(header.sizes), header.left_out) == (12, 0)
    assert_array_equal(as_read(), stored)


def test_a_file_of_crops_trains_and_is_predicted_page_by_page() -> None:
    for name in ("images", "masks"):
        write_pages(sizes_of(128, 64, 128, 64, 128, 64), ROOT / name / "a.tif")
    dataset = opened(mask_values="binary", num_classes=2)
    assert sum(dataset.describe().examples.values()) == 6
    header = read_header(ROOT / "images" / "a.tif")
    assert header is not None
    assert [size[0] for size in header.sizes] == [128, 64, 128, 64, 128, 64]


def test_pages_that_differ_are_no_channels() -> None:
    write_pages(sizes_of(64, 96))
    with bad_example("its pages differ in size or type, and so are no channels of one image"):
        read_image(Picture(PATH, tiff="channels"), PATH)
    write_pages(sizes_of(8, 8, 8), metadata={})
    assert read_image(Picture(PATH, tiff="channels"), PATH)[0].shape == (8, 8, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("axis", [0, 2])
def test_four_planes_by_plain_imwrite_are_asked_about(
    dtype: Any, axis: int, capsys: pytest.CaptureFixture[str]
) -> None:
    scale = 1 / 256 if dtype is np.uint8 else 1
    planes = (PLANES * scale).astype(dtype)
    for number in range(6):
        with warnings.catch_warnings(action="ignore"):  # of another default to come
            path = f"{'ab'[number % 2]}/{number}.tif"
            write({path: np.moveaxis(planes, 0, axis)}, photometric=None)
    if dtype is np.uint8 and axis:  # a picture
        assert_allclose(
            read(opened().train)["images"][0, 0, 0],
            planes[:3, 0, 0] * (planes[3, 0, 0] / 255),
            atol=1,
        )
        assert (
            "6 of 6 images have opacity (e.g. set/a/0.tif), and are laid on"
            in capsys.readouterr().err
        )
        return
    with refused(
        r"^channels=\(not given\): the last plane of set/a/0.tif is tagged as opacity; give 4"
    ):
        opened()
    answers: list[dict[str, Any]] = [{"channels": 4}, {"tiff": "channels"}]
    for options in answers:
        dataset = opened(**options)
        assert dataset.image_shape == (4, 5, 4)
        assert_array_equal(read(dataset.train)["images"][0], np.moveaxis(planes, 0, 2))
    flat = read(opened(channels=3).train)["images"][0, 0, 0]
    most = 1.0 if dtype is np.float32 else np.iinfo(dtype).max
    assert_allclose(flat, planes[:3, 0, 0] * (planes[3, 0, 0] / most), rtol=1e-3, atol=1)
    if axis == 0:
        dataset = opened(tiff="pages")
        assert dataset.image_shape == (4, 5, 1)
        assert sum(dataset.describe().examples.values()) == 24


@pytest.mark.parametrize(("grey", "by_pillow"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", ["assocalpha", "unassalpha", "unspecified"])
def test_opacity_is_applied_once(
    kind: str, grey: bool, by_pillow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = np.full((4, 5, 2 if grey else 4), 100, np.uint8)
    stored[..., -1] = 128
    photometric = "minisblack" if grey else "rgb"
    tifffile.imwrite(
        PATH, stored, photometric=photometric, extrasamples=[kind], planarconfig="contig"
    )
    if by_pillow:
        monkeypatch.setattr(tiff, "read", lambda *args: None)
        if kind == "unspecified":  # Pillow leaves the fourth plane out
            with bad_example("compressed in a way that takes pip install imagecodecs"):
                read_image(PATH, PATH)
            return
    for data in (PATH,) if grey else (PATH, Image.open(PATH)):
        pixels, _ = read_image(data, PATH)
        if kind == "unspecified" and data is PATH:
            assert_array_equal(pixels, stored)
        elif kind != "unspecified":
            assert pixels.shape[2] == stored.shape[2] - 1
            assert_allclose(pixels, {"assocalpha": 100, "unassalpha": 50}[kind], atol=1)


def test_masks_of_four_planes_keep_their_planes() -> None:
    planes = RNG.integers(0, 3, (4, 6, 8), np.uint8)
    images = RNG.integers(0, 255, (4, 6, 8), np.uint8)
    for number in range(3):
        write({f"images/{number}.tif": images})
        with warnings.catch_warnings(action="ignore"):  # of another default to come
            write({f"masks/{number}.tif": planes}, photometric=None)
    found = [
        decode_mask(each, each)
        for each in pages_of(
            ROOT / "masks" / "0.tif", read_header(ROOT / "masks" / "0.tif", "pages"), "pages"
        )
    ]
    assert_array_equal(found, planes)
    assert_array_equal(np.unique(read(opened().train)["masks"]), [0, 1, 2])
