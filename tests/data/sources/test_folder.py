"""Folders of pictures: which files are which examples, and what is said of folders that do not
say.
"""

from typing import Any

import pytest
from example_files import ROOT, noise, opened, read, read_splits, refused, sizes, with_masks, write
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.data.sources import open_dataset


def classes(*names: str, count: int = 3, split: str = "") -> dict[str, Any]:
    files = [f"{split}{name}/{number:02d}.png" for name in names for number in range(count)]
    return {file: noise(seed, 5, 6, 3) for seed, file in enumerate(files)}


TRAIN = classes("a", "b", split="train/")


@pytest.mark.parametrize(
    ("folder", "part"), [("test", "test"), ("val", "validation"), ("validation", "validation")]
)
def test_class_folders_under_train_and_another(folder: str, part: str) -> None:
    files = classes("cat", "dog", split="train/") | classes("dog", split=f"{folder}/")
    more = {
        "train/cat/deep/er.jpg": noise(9, 5, 6, 3),
        "train/.hidden/x.png": noise(1, 2, 2),
        "train/cat/notes.txt": "x",
    }
    dataset = opened(write(files | more))
    assert (dataset.class_names, dataset.num_classes) == (("cat", "dog"), 2)
    assert dataset.image_shape == (5, 6, 3)
    assert list(dataset.splits()) == ["train", part]
    train, found = read(dataset.train), read(dataset.splits()[part])
    assert list(train["labels"]) == [0, 0, 0, 0, 1, 1, 1]
    assert list(found["labels"]) == [1, 1, 1]
    assert_array_equal(train["images"][4], files["train/dog/00.png"])
    assert_array_equal(found["images"][2], files[f"{folder}/dog/02.png"])
    assert dataset.mean == pytest.approx(train["images"].mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(train["images"].std((0, 1, 2)), abs=1e-3)


def test_train_val_and_test_are_three_splits() -> None:
    for split, count in (("train/", 4), ("val/", 3), ("test/", 2), ("third/", 1)):
        write(classes("a", "b", split=split, count=count))

    def counts(**settings: Any) -> list[int]:
        return sizes(opened(**settings))

    assert counts() == [8, 6, 4]
    assert counts(validation="none") == [8, 4]
    assert counts(validation="third") == [8, 2, 4]
    assert counts(test_split="val") == [8, 6]
    assert counts(train_split="third", test_split="val") == [2, 6]
    with refused(r"--validation 0.25: .* has validation data of its own; leave the share out"):
        counts(validation="0.25")
    (ROOT / "val").rename(ROOT / "more")
    assert counts(validation="0.25") == [6, 2, 4]
    with refused("--validation val: there is no such folder"):
        counts(validation="val")


def test_a_tenth_of_each_class_is_held_out_where_there_are_no_parts() -> None:
    root = write(classes("cat", "dog", count=20))
    dataset, again = opened(root), opened(root)
    assert sizes(dataset) == [36, 4]
    assert list(read(dataset.test)["labels"]) == [0, 0, 1, 1]
    assert len(read_splits(dataset, "images")) == 40
    assert_array_equal(read(dataset.test)["images"], read(again.test)["images"])


@pytest.mark.parametrize("split", ["", "train/"])
def test_images_beside_masks(split: str) -> None:
    masks = [noise(number, 6, 8, high=3) for number in range(20)]
    tests = with_masks(masks[:1], "test/") if split else {}
    dataset = opened(write(with_masks(masks, split) | tests))
    assert (dataset.task, dataset.num_classes) == ("segmentation", 3)
    assert dataset.image_shape == (6, 8, 1)
    assert sizes(dataset) == ([20, 1] if split else [18, 2])
    assert read_splits(dataset, "masks") == {mask.tobytes() for mask in masks}
    if not split:  # evenly spaced
        assert_array_equal(read(dataset.test)["masks"], [masks[5], masks[15]])


@pytest.mark.parametrize(
    ("picture", "channels", "pixel"),
    [
        (Image.new("L", (3, 2), 7), 1, (7,)),
        (Image.new("1", (3, 2), 1), 1, (255,)),
        (Image.new("RGB", (3, 2), (1, 2, 3)), 3, (1, 2, 3)),
        (
            Image.new("RGB", (3, 2), (9, 8, 7)).convert("P", palette=Image.Palette.ADAPTIVE),
            3,
            (9, 8, 7),
        ),
    ],
)
def test_eight_bit_pictures_are_grey_or_colour(
    picture: Image.Image, channels: int, pixel: tuple[int, ...]
) -> None:
    files = {f"{split}/{name}/x.png": picture for split in ("train", "test") for name in "ab"}
    dataset = opened(write(files))
    assert dataset.image_shape == (2, 3, channels)
    assert tuple(read(dataset.train)["images"][0, 1, 2]) == pixel
    assert dataset.std == (1.0,) * channels  # no contrast


def test_photographs_are_turned_as_the_camera_was_held() -> None:
    turned = Image.new("L", (16, 8), 10)
    turned.paste(200, (0, 0, 8, 8))  # left half bright; shown, that is the upper one
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("train/a", "train/b", "test/a"):
        (ROOT / name).mkdir(parents=True)
        turned.save(ROOT / name / "x.jpg", exif=exif, quality=95)
    dataset = opened()
    assert dataset.image_shape == (16, 8, 1)
    image = read(dataset.train)["images"][0]
    assert image[:8].min() > 150
    assert image[8:].max() < 60


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({}, {}, r"should hold a folder of pictures for each class, .* it holds nothing$"),
        ({"x.png": noise(0, 4, 4), "y.txt": "x"}, {}, r"it holds x\.png, y\.txt$"),
        ({"readme/y.txt": "x"}, {}, r"it holds readme/$"),
        (classes("cat", count=20), {}, "has one class only; there is nothing to learn"),
        (
            TRAIN,
            {},
            r"--test-split \(not given\): .* has no test data \(its splits: train\); add or name",
        ),
        (
            classes("a", "b", split="test/"),
            {},
            r"--train-split \(not given\): .* has no training data \(its splits: test\); add or name",
        ),
        (TRAIN | {"test/a/x.txt": "x"}, {}, "--test-split test: .* has no example there"),
        (TRAIN | classes("c", split="test/"), {}, "without a picture in set/train: c$"),
        (
            classes("a", "b"),
            {"train_split": "train[:90%]"},
            r"--train-split train\[:90%\]: there is no such folder in .*; it holds a/, b/$",
        ),
        (
            classes("a", "b"),
            {"test_split": "test"},
            r"--test-split test: there is no such folder in .*; it holds a/, b/$",
        ),
        (
            classes("a", "b", "c"),
            {"num_classes": 2},
            "--num-classes 2: .* has 3; give at least that",
        ),
    ],
)
def test_what_a_folder_lacks_is_said_in_one_line(
    files: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    ROOT.mkdir()
    with refused(message):
        opened(write(files), **settings)


def test_the_folder_itself_must_be_named_and_be_there() -> None:
    with refused("write folder:PATH"):
        open_dataset("folder")
    with refused("--dataset folder:nowhere: there is no such folder"):
        open_dataset("folder:nowhere")
