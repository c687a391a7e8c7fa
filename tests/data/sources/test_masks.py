"""Masks as people have them: any values, colours and object numbers become classes, or one line
asks which.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tifffile
from example_files import noise, opened
from PIL import Image, ImageColor

from jaxdp.config import DataConfig, TrainConfig, defining, run_hash
from jaxdp.config.values import MaskValues
from jaxdp.data import from_arrays
from jaxdp.data.image_file import decode_mask
from jaxdp.data.sources import BadExample, Dataset, Split, open_dataset
from jaxdp.registry import ConfigError

COLOURS = ("black", "red", "lime", "blue")
HEX = "000000,ff0000,00ff00,0000ff"
NUMBERS = np.arange(48, dtype=np.uint8).reshape(6, 8) % 4


def write(root: pathlib.Path, masks: list[Any], suffix: str = "png") -> pathlib.Path:
    """Writes masks beside images, the first of them as test data, too."""
    for split, some in (("train", masks), ("test", masks[:1])):
        for part in ("images", "masks"):
            (root / split / part).mkdir(parents=True)
        for number, mask in enumerate(some):
            if suffix == "tif":
                tifffile.imwrite(root / split / "masks" / f"{number}.tif", mask)
            else:
                picture = mask if isinstance(mask, Image.Image) else Image.fromarray(mask)
                picture.save(root / split / "masks" / f"{number}.{suffix}")
            height, width = np.asarray(mask).shape[:2]
            Image.fromarray(noise(number, height, width)).save(
                root / split / "images" / f"{number}.png"
            )
    return root


def masks_of(dataset: Dataset) -> np.ndarray:
    assert isinstance(dataset.train, Split)
    return dataset.train.read(range(len(dataset.train)))["masks"]


def painted(mode: str) -> Image.Image:
    """Paints NUMBERS by Pillow, pixel by pixel."""
    picture = Image.new("RGB", (8, 6))
    for (row, column), number in np.ndenumerate(NUMBERS):
        picture.putpixel((column, row), ImageColor.getrgb(COLOURS[number]))
    return (
        picture.convert("P", palette=Image.Palette.ADAPTIVE)
        if mode == "P"
        else picture.convert(mode)
    )


def objects(count: int, dtype: Any = np.uint8, first: int = 1) -> np.ndarray:
    """Returns a mask of so many objects of two pixels, with background between."""
    mask = np.zeros((24, 24), dtype)
    mask.ravel()[: 3 * count : 3] = mask.ravel()[1 : 3 * count : 3] = np.arange(
        first, first + count
    )
    return mask


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_listed_colours_are_classes(tmp_path: pathlib.Path, mode: str) -> None:
    dataset = opened(
        write(tmp_path, [painted(mode)] * 2), mask_values=HEX, class_names=["ground", "r", "g", "b"]
    )
    np.testing.assert_array_equal(masks_of(dataset), [NUMBERS] * 2)
    assert (dataset.num_classes, dataset.class_names) == (4, ("ground", "r", "g", "b"))
    other_order = opened(tmp_path, mask_values="#0000FF, 00ff00,ff0000,000000")
    np.testing.assert_array_equal(masks_of(other_order), [3 - NUMBERS] * 2)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_are_found_and_listed_ready_to_paste(tmp_path: pathlib.Path, mode: str) -> None:
    with pytest.raises(
        ConfigError, match=r"hold 4 colours; name those of class 0, 1, \.\.\.: --mask-values "
    ) as caught:
        opened(write(tmp_path, [painted(mode)] * 2))
    flag = str(caught.value).rsplit("--mask-values ", 1)[1]
    assert (sorted(flag.split(",")), "\n" in str(caught.value)) == (sorted(HEX.split(",")), False)
    assert opened(tmp_path, mask_values=flag).num_classes == 4


def test_a_colour_that_is_no_class_is_a_bad_example_of_its_file(tmp_path: pathlib.Path) -> None:
    odd = painted("RGB")
    odd.putpixel((3, 2), (255, 0, 254))
    write(tmp_path, [painted("RGB"), odd, painted("RGB")])
    with pytest.raises(
        BadExample,
        match=r"train/masks/1\.png: its mask has the colour ff00fe, not one of --mask-values 0000",
    ):
        masks_of(opened(tmp_path, mask_values=HEX))
    dataset = opened(tmp_path, mask_values=HEX, on_bad_example="skip")
    masks_of(dataset)
    assert list(dataset.train.skipped) == [1]  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_transparent_is_black_and_grey_is_a_colour() -> None:
    see_through = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    see_through.putpixel((1, 0), (255, 0, 0, 0))
    see_through.save("a.png")
    Image.fromarray(np.array([[0, 255]], np.uint8)).save("b.png")
    tifffile.imwrite("c.tif", np.array([[[0, 0, 0], [255, 0, 0]]], np.uint8), photometric="rgb")
    for name, values, wanted in (
        ("a.png", "000000,ff0000", [[1, 0]]),
        ("b.png", "ffffff,000000", [[1, 0]]),
        ("c.tif", "000000,ff0000", [[0, 1]]),
        ("c.tif", "binary", [[0, 1]]),
    ):
        np.testing.assert_array_equal(
            decode_mask(pathlib.Path(name), name, MaskValues.parse(values)), wanted
        )
    with pytest.raises(
        BadExample, match=r"has colours, e\.g\. ff0000, and --mask-values 0,255 are numbers"
    ):
        decode_mask(pathlib.Path("c.tif"), "c.tif", MaskValues.parse("0,255"))


def test_photographs_as_masks_are_no_list_of_a_thousand_colours(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"hold over 1000 colours \(.*, \.\.\.\); save them with one colour a class, as PNG",
    ) as caught:
        opened(write(tmp_path, [noise(number, 40, 40, 3) for number in range(2)]))
    assert len(str(caught.value)) < 300


def test_values_are_listed_ready_to_paste_and_255_is_then_a_class(tmp_path: pathlib.Path) -> None:
    mask = np.choose(NUMBERS % 3, [0, 128, 255]).astype(np.uint8)
    with pytest.raises(
        ConfigError,
        match=(
            r"hold 2 values up to 128 \(0, 128\); give --mask-values 0,128,255 if each is a class"
        ),
    ):
        opened(write(tmp_path, [mask] * 2))
    dataset = opened(tmp_path, mask_values="0,128,255")
    np.testing.assert_array_equal(masks_of(dataset)[0], NUMBERS % 3)
    assert dataset.num_classes == 3
    ignoring = masks_of(opened(tmp_path, mask_values="128,0"))[0]
    np.testing.assert_array_equal(ignoring, np.choose(NUMBERS % 3, [1, 0, 255]))
    with pytest.raises(
        BadExample, match=r"0\.png: its mask has the value 128, not one of --mask-values 0,7"
    ):
        masks_of(opened(tmp_path, mask_values="0,7", num_classes=2))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_take_listed_values_or_binary(tmp_path: pathlib.Path, suffix: str) -> None:
    mask = np.choose(NUMBERS % 3, [0, 1000, 40000]).astype(np.uint16)
    with pytest.raises(
        ConfigError, match="--mask-values 0,1000,40000 if each is a class, or number the classes"
    ):
        opened(write(tmp_path, [mask] * 2, suffix))
    np.testing.assert_array_equal(
        masks_of(opened(tmp_path, mask_values="0,1000,40000"))[0], NUMBERS % 3
    )
    np.testing.assert_array_equal(masks_of(opened(tmp_path, mask_values="binary"))[0], mask > 0)


@pytest.mark.parametrize(
    ("masks", "either"),
    [
        (
            [objects(12), objects(9), np.zeros((24, 24), np.uint8), objects(15)],
            "or --num-classes 16 if they are classes",
        ),
        ([objects(136)], "or --num-classes 137 if they are classes"),
        (
            [
                objects(190, np.uint16),
                objects(180, np.uint16) * (objects(180, np.uint16) != 4),
                objects(20, np.uint16),
            ],
            "191",
        ),
    ],
)
def test_object_numbers_are_asked_about(
    tmp_path: pathlib.Path, masks: list[np.ndarray], either: str
) -> None:
    with pytest.raises(
        ConfigError, match=r"numbers of objects; give --mask-values binary \(0 is background"
    ) as caught:
        opened(write(tmp_path, masks))
    assert either in str(caught.value)
    assert "\n" not in str(caught.value)
    dataset = opened(tmp_path, mask_values="binary", class_names=["background", "cell"])
    np.testing.assert_array_equal(masks_of(dataset), np.stack(masks) > 0)
    highest = int(max(mask.max() for mask in masks))
    assert opened(tmp_path, num_classes=highest + 1).num_classes == highest + 1


def test_more_than_255_objects_are_never_classes(tmp_path: pathlib.Path) -> None:
    wide = [
        np.arange(576, dtype=np.uint16).reshape(24, 24),
        np.arange(576, dtype=np.uint16).reshape(24, 24) // 2,
    ]
    with pytest.raises(
        ConfigError, match=r"numbers up to 575, .* give --mask-values binary"
    ) as caught:
        opened(write(tmp_path, wide))
    assert "--num-classes" not in str(caught.value)


def test_many_classes_are_declared_by_their_number_or_names(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    # Each has some of 19 classes.
    streets = [rng.choice(rng.permutation(19)[:9], (24, 24)).astype(np.uint8) for _ in range(12)]
    streets[0].ravel()[:19] = range(19)
    root = write(tmp_path / "some", streets)
    with pytest.raises(ConfigError, match=r"up to 18, .* or --num-classes 19 if they are classes"):
        opened(root)
    assert opened(root, num_classes=19).num_classes == 19
    assert opened(root, class_names=[f"class {number}" for number in range(19)]).num_classes == 19
    few = [np.resize(np.arange(9, dtype=np.uint8), (24, 24))] * 4
    assert opened(write(tmp_path / "few", few)).num_classes == 9


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
        ({"mask_values": "7,0,1,2,3", "num_classes": 5}, None),
    ],
)
def test_settings_that_cannot_be_are_one_line(
    tmp_path: pathlib.Path, settings: Mapping[str, Any], message: str | None
) -> None:
    write(tmp_path, [NUMBERS] * 2)
    if message is None:
        np.testing.assert_array_equal(masks_of(opened(tmp_path, **settings))[0], NUMBERS + 1)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        opened(tmp_path, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (
            {"images/a.png": NUMBERS},
            {},
            "has the folder images, but no masks; add it: a mask has the name of its image",
        ),
        ({"masks/a.png": NUMBERS}, {}, "has the folder masks, but no images; add it"),
        (
            {"images/a.png": NUMBERS, "masks/a.txt": None},
            {},
            "images holds 1 images and .*masks no masks; a mask has",
        ),
        (
            {"images/a.txt": None, "masks/a.png": NUMBERS},
            {},
            "images holds no images and .*masks 1 masks; a mask has",
        ),
        (
            {"images/a.txt": None, "masks/a.txt": None},
            {},
            "images holds no images and .*masks no masks",
        ),
        (
            {f"{part}/{name}.png": NUMBERS * 0 for part in ("images", "masks") for name in "abc"},
            {},
            "hold one class only",
        ),
        (
            {f"{part}/{name}.png": NUMBERS * 0 for part in ("images", "masks") for name in "abc"},
            {"mask_values": "binary"},
            "--mask-values binary: leaves the training masks of .* one class only",
        ),
        (
            {f"{name}/{number}.png": NUMBERS for name in "ab" for number in range(3)},
            {"mask_values": "0,1"},
            "is for segmentation",
        ),
        (
            {f"{name}/{number}.png": NUMBERS for name in "ab" for number in range(3)},
            {"class_names": ["x", "y"]},
            r"--class-names x,y: the classes of .* have names already \(a, b\); leave it out",
        ),
    ],
)
def test_folders_that_lack_something_say_so(
    tmp_path: pathlib.Path,
    files: Mapping[str, np.ndarray | None],
    settings: Mapping[str, Any],
    message: str,
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if content is None:
            (tmp_path / name).write_text("notes")
        else:
            Image.fromarray(content).save(tmp_path / name)
    with pytest.raises(ConfigError, match=message) as caught:
        opened(tmp_path, **settings)
    assert "\n" not in str(caught.value)


def test_arrays_take_the_same_values_and_names() -> None:
    images, masks = noise(0, 12, 6, 8), np.stack([np.choose(NUMBERS, [0, 300, 7, 9])] * 12)
    with pytest.raises(
        ConfigError,
        match="has values from 0 to 300; class numbers must be 0 to 255; list the values",
    ):
        from_arrays(images, masks)
    dataset = from_arrays(images, masks, mask_values="0,300,7,9", class_names=["a", "b", "c", "d"])
    np.testing.assert_array_equal(masks_of(dataset)[0], NUMBERS)
    np.savez("x.npz", images=images, masks=masks)
    config = DataConfig.of(
        dataset="npz:x.npz", mask_values="binary", class_names=["background", "cell"]
    )
    dataset = open_dataset(config)
    np.testing.assert_array_equal(masks_of(dataset)[0], NUMBERS > 0)
    assert dataset.class_names == ("background", "cell")
    with pytest.raises(
        ConfigError,
        match=(
            r"train_masks\[0\]|masks\[0\]: its mask has the value 7, not one of --mask-values 0,300"
        ),
    ):
        open_dataset(DataConfig.of(dataset="npz:x.npz", mask_values="0,300"))


def test_runs_without_these_settings_keep_their_folders() -> None:
    assert not {"mask_values", "class_names"} & defining(TrainConfig()).keys()
    hashes = [
        run_hash(TrainConfig.of(**settings))
        for settings in ({}, {"mask_values": "0,1"}, {"mask_values": "binary"})
    ]
    assert len(set(hashes)) == 3
