"""Masks as people have them: any values, colours and object numbers become classes, or one line
asks which.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from example_files import (
    ROOT,
    bad_example,
    noise,
    opened,
    read,
    refused,
    skipped,
    with_masks,
    write,
)
from numpy.testing import assert_array_equal
from PIL import Image, ImageColor

from jaxdp.config import DataConfig
from jaxdp.config.values import MaskValues
from jaxdp.data import from_arrays
from jaxdp.data.image_file import decode_mask
from jaxdp.data.sources import Dataset, open_dataset
from jaxdp.text.flags import for_command

COLOURS = ("black", "red", "lime", "blue")
HEX = "000000,ff0000,00ff00,0000ff"
NUMBERS = np.arange(48, dtype=np.uint8).reshape(6, 8) % 4


def split(*masks: Any, root: pathlib.Path = ROOT, suffix: str = "png") -> pathlib.Path:
    """Writes masks beside images, as training and as test data."""
    return write(with_masks([*masks], "train/", "test/", suffix=suffix), root)


def masks_of(dataset: Dataset) -> np.ndarray:
    return read(dataset.train)["masks"]


def painted(mode: str) -> Image.Image:
    """Paints NUMBERS by Pillow, pixel by pixel."""
    picture = Image.new("RGB", (8, 6))
    for (row, column), number in np.ndenumerate(NUMBERS):
        picture.putpixel((column, row), ImageColor.getrgb(COLOURS[number]))
    return picture.convert(mode, palette=Image.Palette.ADAPTIVE)


def objects(count: int, dtype: Any = np.uint8) -> np.ndarray:
    """Returns a mask of so many objects of two pixels, with background between."""
    mask = np.zeros((24, 24), dtype)
    mask.ravel()[: 3 * count : 3] = mask.ravel()[1 : 3 * count : 3] = np.arange(1, 1 + count)
    return mask


def constant(*values: int) -> np.ndarray:
    return np.resize(np.array(values, np.uint8), (4, 4))


@pytest.mark.parametrize(
    ("masks", "settings", "num_classes", "values"),
    [
        ([constant(0, 255), constant(0)], {}, 2, {0, 1}),  # black and white
        ([constant(0, 255), constant(0)], {"num_classes": 2}, 2, {0, 1}),
        ([constant(0, 1, 255), constant(2)], {}, 3, {0, 1, 2, 255}),  # 255 is ignored
        ([constant(1, 255), constant(0)], {}, 2, {0, 1, 255}),
        ([constant(0, 1), constant(0)], {"num_classes": 5}, 5, {0, 1}),
        ([Image.fromarray(constant(0, 1) > 0), constant(0)], {}, 2, {0, 1}),  # one bit a pixel
    ],
)
def test_classes_of_masks_are_found(
    masks: list[Any],
    settings: dict[str, Any],
    num_classes: int,
    values: set[int],
) -> None:
    dataset = opened(split(*masks), **settings)
    assert dataset.num_classes == num_classes
    assert set(np.unique(masks_of(dataset))) == values


def test_a_mask_with_a_palette_holds_class_numbers_not_colours() -> None:
    mask = Image.fromarray(constant(0, 1, 2))
    mask.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    assert_array_equal(masks_of(opened(split(mask)))[0], constant(0, 1, 2))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_listed_colours_are_classes(mode: str) -> None:
    names = ("ground", "r", "g", "b")
    dataset = opened(split(*[painted(mode)] * 2), mask_values=HEX, class_names=[*names])
    assert_array_equal(masks_of(dataset), [NUMBERS] * 2)
    assert (dataset.num_classes, dataset.class_names) == (4, names)
    other_order = opened(mask_values="#0000FF, 00ff00,ff0000,000000")
    assert_array_equal(masks_of(other_order), [3 - NUMBERS] * 2)
    if mode != "P":
        words = r"hold 4 colours; name the colours of class 0, 1, \.\.\.: --mask-values "
        with refused(words) as caught:
            opened()
        flag = for_command(caught.value).rsplit("--mask-values ", 1)[1]  # ready to paste
        assert sorted(flag.split(",")) == sorted(HEX.split(","))
        assert opened(mask_values=flag).num_classes == 4


def test_a_colour_that_is_no_class_is_a_bad_example_of_its_file() -> None:
    odd = painted("RGB")
    odd.putpixel((3, 2), (255, 0, 254))
    split(painted("RGB"), odd, painted("RGB"))
    with bad_example(
        r"train/masks/01\.png: its mask has the colour ff00fe, not one of --mask-values 0000"
    ):
        masks_of(opened(mask_values=HEX))
    dataset = opened(mask_values=HEX, on_bad_example="skip")
    masks_of(dataset)
    assert list(skipped(dataset.train)) == [1]  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_transparent_is_black_and_grey_is_a_colour() -> None:
    see_through = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    see_through.putpixel((1, 0), (255, 0, 0, 0))
    grey, colour = np.array([[0, 255]], np.uint8), np.array([[[0, 0, 0], [255, 0, 0]]], np.uint8)
    write({"a.png": see_through, "b.png": grey})
    write({"c.tif": colour}, photometric="rgb")

    def decoded(name: str, values: str) -> np.ndarray:
        return decode_mask(ROOT / name, name, MaskValues.parse(values))

    assert_array_equal(decoded("a.png", "000000,ff0000"), [[1, 0]])
    assert_array_equal(decoded("b.png", "ffffff,000000"), [[1, 0]])
    for values in ("000000,ff0000", "binary"):
        assert_array_equal(decoded("c.tif", values), [[0, 1]])
    with bad_example(r"has colours, e\.g\. ff0000, and --mask-values 0,255 are numbers"):
        decoded("c.tif", "0,255")


def test_photographs_as_masks_are_no_list_of_a_thousand_colours() -> None:
    words = r"hold 1000 colours or more \(.*, \.\.\.\); save them with one colour a class, as"
    with refused(words) as caught:
        opened(split(*[noise(number, 40, 40, 3) for number in range(2)]))
    assert len(str(caught.value)) < 300


def test_values_are_listed_ready_to_paste_and_255_is_then_a_class() -> None:
    mask = np.choose(NUMBERS % 3, [0, 128, 255]).astype(np.uint8)
    with refused(
        r"hold 2 values up to 128 \(0, 128\); give --mask-values 0,128,255 if each is a class"
    ):
        opened(split(mask, mask))
    dataset = opened(mask_values="0,128,255")
    assert_array_equal(masks_of(dataset)[0], NUMBERS % 3)
    assert dataset.num_classes == 3
    ignoring = masks_of(opened(mask_values="128,0"))[0]
    assert_array_equal(ignoring, np.choose(NUMBERS % 3, [1, 0, 255]))
    with bad_example(r"0\.png: its mask has the value 128, not one of --mask-values 0,7"):
        masks_of(opened(mask_values="0,7", num_classes=2))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_take_listed_values_or_binary(suffix: str) -> None:
    mask = np.choose(NUMBERS % 3, [0, 1000, 40000]).astype(np.uint16)
    with refused("--mask-values 0,1000,40000 if each is a class, or --mask-values binary"):
        opened(split(mask, mask, suffix=suffix))
    assert_array_equal(masks_of(opened(mask_values="0,1000,40000"))[0], NUMBERS % 3)
    assert_array_equal(masks_of(opened(mask_values="binary"))[0], mask > 0)


WIDE = [objects(count, np.uint16) for count in (190, 180, 20)]
WIDE[1][WIDE[1] == 4] = 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_whole_numbers_of_any_type_count_classes(dtype: Any) -> None:
    root = split(NUMBERS.astype(dtype), suffix="tif")
    dataset = opened(root)
    assert (repr(dataset.num_classes), repr(dataset.mask_values)) == ("4", "(0, 1, 2, 3)")
    assert_array_equal(masks_of(dataset)[0], NUMBERS)
    split((NUMBERS * 50).astype(dtype), suffix="tif", root=root)
    with refused("--mask-values 0,50,100,150 if each is a class"):
        opened(root)


@pytest.mark.parametrize(
    ("masks", "either"),
    [
        (
            [objects(count) for count in (12, 9, 0, 15)],
            "or --num-classes 16 if they are class numbers",
        ),
        ([objects(136)], "or --num-classes 137 if they are class numbers"),
        (WIDE, "191"),
    ],
)
def test_object_numbers_are_asked_about(masks: list[np.ndarray], either: str) -> None:
    words = r"give .*--mask-values binary if 0 is background .* --instances if they are numbers of"
    with refused(words) as caught:
        opened(split(*masks))
    assert either in for_command(caught.value)
    dataset = opened(mask_values="binary", class_names=["background", "cell"])
    assert_array_equal(masks_of(dataset), np.stack(masks) > 0)
    highest = int(max(mask.max() for mask in masks))
    assert opened(num_classes=highest + 1).num_classes == highest + 1


def test_more_than_255_objects_are_never_classes() -> None:
    wide = np.arange(576, dtype=np.uint16).reshape(24, 24)
    with refused(r"576 values up to 575 .* give --mask-values binary") as caught:
        opened(split(wide, wide // 2))
    assert "--num-classes" not in for_command(caught.value)


def test_many_classes_are_declared_by_their_number_or_names() -> None:
    rng = np.random.default_rng(0)
    # Each has some of 19 classes.
    streets = [rng.choice(rng.permutation(19)[:9], (24, 24)).astype(np.uint8) for _ in range(12)]
    streets[0].ravel()[:19] = range(19)
    root = split(*streets, root=ROOT / "some")
    with refused(r"up to 18 .* or --num-classes 19 if they are class numbers"):
        opened(root)
    assert opened(root, num_classes=19).num_classes == 19
    assert opened(root, class_names=[f"class {number}" for number in range(19)]).num_classes == 19
    few = np.resize(np.arange(9, dtype=np.uint8), (24, 24))
    assert opened(split(few, root=ROOT / "few")).num_classes == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_values": "0"}, "--mask-values 0: must be at least 2 values"),
        ({"mask_values": "0,1,0"}, "names a value twice"),
        (
            {"mask_values": "0,ff0000"},
            "must be binary, numbers below 65536, e.g. 0,128,255, or colours of 6",
        ),
        ({"mask_values": "0,70000"}, "numbers below 65536"),
        (
            {"mask_values": "0,1,2,3", "num_classes": 3},
            "--num-classes 3: .* has 4; give at least that",
        ),
        (
            {"mask_values": "binary", "class_names": ["a"]},
            "--class-names a: has 1 names for the 2 classes of",
        ),
        ({"class_names": ["a", "b", "c"]}, "--class-names a,b,c: has 3 names for the 4 classes of"),
        ({"class_names": ["a", "b", "c", "a"]}, "must be names that differ"),
        ({"class_names": "a,b,c,d"}, "must be a list of names"),
    ],
)
def test_settings_that_cannot_be_are_one_line(settings: Mapping[str, Any], message: str) -> None:
    split(NUMBERS, NUMBERS)
    with refused(message):
        opened(**settings)
    dataset = opened(mask_values="7,0,1,2,3", num_classes=5)
    assert_array_equal(masks_of(dataset)[0], NUMBERS + 1)


EMPTY = with_masks([NUMBERS * 0] * 3)
LABELLED = {f"{name}/{number}.png": NUMBERS for name in "ab" for number in range(3)}


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (
            {"images/a.png": NUMBERS},
            {},
            "images holds 1 images and .*masks no masks; a mask has the name of its image",
        ),
        (
            {"images/a.png": NUMBERS, "masks/b.png": NUMBERS},
            {},
            "no mask has the name of an image",
        ),
        (
            {"images/a.png": NUMBERS, "images/a.jpg": NUMBERS, "masks/a.png": NUMBERS},
            {},
            "have the same name",
        ),
        (EMPTY, {}, "hold one class only; give --num-classes"),
        (
            EMPTY,
            {"mask_values": "binary"},
            "--mask-values binary: leaves the training masks of .* one class only",
        ),
        (
            with_masks([constant(0, 128, 255)] * 2),
            {},
            r"hold 2 values up to 128 \(0, 128\); .* or --num-classes 129 if they are class numbers$",
        ),
        (LABELLED, {"mask_values": "0,1"}, "is for segmentation"),
        (LABELLED, {"class_names": ["x", "y"]}, r"have names already \(a, b\); leave it out"),
    ],
)
def test_folders_that_lack_something_say_so(
    files: Mapping[str, Any], settings: Mapping[str, Any], message: str
) -> None:
    with refused(message):
        opened(write(files), **settings)


def test_arrays_take_the_same_values_and_names() -> None:
    images, masks = noise(0, 12, 6, 8), np.stack([np.choose(NUMBERS, [0, 300, 7, 9])] * 12)
    with refused("has values from 0 to 300; class numbers must be 0 to 255; list the values"):
        from_arrays(images, masks)
    dataset = from_arrays(images, masks, mask_values="0,300,7,9", class_names=["a", "b", "c", "d"])
    assert_array_equal(masks_of(dataset)[0], NUMBERS)
    np.savez("x.npz", images=images, masks=masks)
    names = ("background", "cell")
    config = DataConfig.of(dataset="npz:x.npz", mask_values="binary", class_names=[*names])
    dataset = open_dataset(config)
    assert_array_equal(masks_of(dataset)[0], NUMBERS > 0)
    assert dataset.class_names == names
    with refused(r"masks\[0\]: its mask has the value 7, not one of --mask-values 0,300"):
        open_dataset(DataConfig.of(dataset="npz:x.npz", mask_values="0,300"))
