"""Folders of pictures: which files are which examples, and what is said of folders that do not
say.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read
from PIL import Image

from jaxdp.data.sources import open_dataset
from jaxdp.registry import ConfigError


def write(root: pathlib.Path, files: Mapping[str, Any]) -> pathlib.Path:
    """Writes arrays as pictures, and text as it is."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            (content if isinstance(content, Image.Image) else Image.fromarray(content)).save(path)
    return root


def classes(
    *names: str, count: int = 3, size: tuple[int, int] = (5, 6), split: str = ""
) -> dict[str, np.ndarray]:
    files = [f"{split}{name}/{number:02d}.png" for name in names for number in range(count)]
    return {file: noise(seed, *size, 3) for seed, file in enumerate(files)}


@pytest.mark.parametrize(
    ("folder", "part"), [("test", "test"), ("val", "validation"), ("validation", "validation")]
)
def test_class_folders_under_train_and_another(
    tmp_path: pathlib.Path, folder: str, part: str
) -> None:
    files = classes("cat", "dog", split="train/") | classes("dog", split=f"{folder}/")
    more = {
        "train/cat/deep/er.jpg": noise(9, 5, 6, 3),
        "train/.hidden/x.png": noise(1, 2, 2),
        "train/cat/notes.txt": "x",
    }
    dataset = opened(write(tmp_path, files | more))
    assert (dataset.class_names, dataset.num_classes, dataset.image_shape) == (
        ("cat", "dog"),
        2,
        (5, 6, 3),
    )
    assert list(dataset.splits()) == ["train", part]
    train, found = read(dataset.train), read(dataset.splits()[part])
    assert list(train["labels"]) == [0, 0, 0, 0, 1, 1, 1]
    assert list(found["labels"]) == [1, 1, 1]
    np.testing.assert_array_equal(train["images"][4], files["train/dog/00.png"])
    np.testing.assert_array_equal(found["images"][2], files[f"{folder}/dog/02.png"])
    assert dataset.mean == pytest.approx(train["images"].mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(train["images"].std((0, 1, 2)), abs=1e-3)


def test_train_val_and_test_are_three_splits(tmp_path: pathlib.Path) -> None:
    parts = (("train/", 4), ("val/", 3), ("test/", 2), ("dev/", 1))
    files: dict[str, Any] = {}
    for split, count in parts:
        files |= classes("a", "b", split=split, count=count)
    root = write(tmp_path, files)

    def sizes(**settings: Any) -> list[int]:
        return [len(source) for source in opened(root, **settings).splits().values()]

    assert sizes() == [8, 6, 4]
    assert sizes(validation="none") == [8, 4]
    assert sizes(validation="dev") == [8, 2, 4]
    assert sizes(test_split="val") == [8, 6]
    with pytest.raises(
        ConfigError,
        match=r"--validation 0.25: .* has validation data of its own; leave the share out",
    ):
        opened(root, validation="0.25")
    (root / "val").rename(root / "more")
    assert sizes(validation="0.25") == [6, 2, 4]
    with pytest.raises(ConfigError, match="--validation val: there is no such folder"):
        opened(root, validation="val")


def test_a_tenth_of_each_class_is_held_out_where_there_are_no_parts(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path, classes("cat", "dog", count=20))
    dataset, again = opened(root), opened(root)
    assert (len(dataset.train), len(dataset.test)) == (36, 4)
    assert list(read(dataset.test)["labels"]) == [0, 0, 1, 1]
    together = {
        image.tobytes()
        for split in (dataset.train, dataset.test)
        for image in read(split)["images"]
    }
    assert len(together) == 40
    np.testing.assert_array_equal(read(dataset.test)["images"], read(again.test)["images"])


def test_parts_of_other_names_are_named(tmp_path: pathlib.Path) -> None:
    root = write(
        tmp_path,
        classes("a", "b", split="2019/")
        | classes("a", "b", split="2020/", count=2)
        | classes("a", split="train/"),
    )
    dataset = opened(root, train_split="2019", test_split="2020")
    assert (len(dataset.train), len(dataset.test)) == (6, 4)


@pytest.mark.parametrize("split", ["", "train/"])
def test_images_beside_masks(tmp_path: pathlib.Path, split: str) -> None:
    numbers = range(20)
    images = {f"{split}images/{number:02d}.jpg": noise(number, 6, 8, 3) for number in numbers}
    masks = {f"{split}masks/{number:02d}.png": noise(number, 6, 8, high=3) for number in numbers}
    tests = (
        {"test/images/a.png": noise(1, 6, 8, 3), "test/masks/a.png": noise(1, 6, 8, high=3)}
        if split
        else {}
    )
    dataset = opened(write(tmp_path, images | masks | tests))
    assert (dataset.task, dataset.num_classes, dataset.image_shape) == (
        "segmentation",
        3,
        (6, 8, 3),
    )
    assert (len(dataset.train), len(dataset.test)) == ((20, 1) if split else (18, 2))
    found = {
        mask.tobytes() for part in (dataset.train, dataset.test) for mask in read(part)["masks"]
    }
    assert found == {mask.tobytes() for mask in masks.values()}
    if not split:
        held_out = [masks["masks/05.png"], masks["masks/15.png"]]  # evenly spaced
        np.testing.assert_array_equal(read(dataset.test)["masks"], held_out)


def masked(*masks: Any) -> dict[str, Any]:
    files = {f"train/masks/{number}.png": mask for number, mask in enumerate(masks)}
    files |= {f"train/images/{number}.png": noise(number, 4, 4) for number in range(len(masks))}
    return files | {"test/masks/0.png": masks[0], "test/images/0.png": noise(0, 4, 4)}


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
    tmp_path: pathlib.Path,
    masks: list[Any],
    settings: dict[str, Any],
    num_classes: int,
    values: set[int],
) -> None:
    dataset = opened(write(tmp_path, masked(*masks)), **settings)
    assert dataset.num_classes == num_classes
    assert set(np.unique(read(dataset.train)["masks"])) == values


def test_a_mask_with_a_palette_holds_class_numbers_not_colours(tmp_path: pathlib.Path) -> None:
    mask = Image.fromarray(constant(0, 1, 2))
    mask.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    dataset = opened(write(tmp_path, masked(mask)))
    np.testing.assert_array_equal(read(dataset.train)["masks"][0], constant(0, 1, 2))


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
    tmp_path: pathlib.Path, picture: Image.Image, channels: int, pixel: tuple[int, ...]
) -> None:
    files = {f"{split}/{name}/x.png": picture for split in ("train", "test") for name in "ab"}
    dataset = opened(write(tmp_path, files))
    assert dataset.image_shape == (2, 3, channels)
    assert tuple(read(dataset.train)["images"][0, 1, 2]) == pixel
    assert dataset.std == (1.0,) * channels  # no contrast


def test_photographs_are_turned_as_the_camera_was_held(tmp_path: pathlib.Path) -> None:
    turned = Image.new("L", (16, 8), 10)
    turned.paste(200, (0, 0, 8, 8))  # left half bright; shown, that is the upper one
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("train/a", "train/b", "test/a"):
        (tmp_path / name).mkdir(parents=True)
        turned.save(tmp_path / name / "x.jpg", exif=exif, quality=95)
    dataset = opened(tmp_path)
    assert dataset.image_shape == (16, 8, 1)
    image = read(dataset.train)["images"][0]
    assert image[:8].min() > 150
    assert image[8:].max() < 60


def test_images_of_several_sizes_are_resized_and_masks_keep_their_values(
    tmp_path: pathlib.Path,
) -> None:
    files = {
        "train/images/0.png": noise(0, 64, 48, 3),
        "train/masks/0.png": noise(0, 64, 48, high=2) * 2,
    }
    files |= {
        "train/images/1.png": noise(1, 32, 48, 3),
        "train/masks/1.png": noise(1, 32, 48, high=2) * 2,
    }
    files |= {
        "test/images/0.png": np.full((8, 8, 3), 77, np.uint8),
        "test/masks/0.png": noise(0, 8, 8, high=2),
    }
    root = write(tmp_path, files)
    dataset = opened(root, image_size="16x12", num_classes=3)
    assert dataset.image_shape == (16, 12, 3)
    found = read(dataset.train)
    assert set(np.unique(found["masks"])) == {0, 2}
    # 16 pixels become one: antialiased noise has less contrast than the 74 it had.
    assert found["images"].std() < 50
    assert np.all(read(dataset.test)["images"] == 77)


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({}, {}, r"should hold a folder of pictures for each class, .* it holds nothing$"),
        ({"x.png": noise(0, 4, 4), "y.txt": "x"}, {}, r"it holds x\.png, y\.txt$"),
        ({"readme/y.txt": "x"}, {}, r"it holds readme/$"),
        (classes("cat", count=20), {}, "has one class only"),
        (
            classes("a", "b", split="train/"),
            {},
            r"--test-split test: .* has train, but no test; add it, or give folder:.*train to",
        ),
        (
            classes("a", "b", split="test/"),
            {},
            r"--train-split train: .* has test, but no train; add it$",
        ),
        (
            classes("a", "b", split="train/") | {"test/a/x.txt": "x"},
            {},
            "--test-split test: .* has no example there",
        ),
        (
            classes("a", "b", split="train/") | classes("c", split="test/"),
            {},
            "train has no picture: c$",
        ),
        (
            classes("a", "b"),
            {"train_split": "train[:90%]"},
            "a folder takes the name of a subfolder",
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
        (
            {"images/a.png": noise(0, 4, 4), "masks/a_mask.png": noise(0, 4, 4)},
            {},
            "no mask has the name of an image",
        ),
        (masked(constant(0)), {}, "hold one class only; give --num-classes"),
        (
            masked(constant(0, 128, 255)),
            {},
            r"hold 2 values up to 128 \(0, 128\); .* or give --num-classes 129$",
        ),
        (
            {
                "images/a.png": noise(0, 4, 4),
                "images/a.jpg": noise(0, 4, 4),
                "masks/a.png": noise(0, 4, 4),
            },
            {},
            "have the same name",
        ),
    ],
)
def test_what_a_folder_lacks_is_said_in_one_line(
    tmp_path: pathlib.Path, files: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    root = tmp_path / "pictures"
    root.mkdir()
    with pytest.raises(ConfigError, match=message) as caught:
        opened(write(root, files), **settings)
    assert "\n" not in str(caught.value)


def test_the_folder_itself_must_be_named_and_be_there() -> None:
    with pytest.raises(ConfigError, match="write folder:PATH"):
        open_dataset("folder")
    with pytest.raises(ConfigError, match="--dataset folder:nowhere: there is no such folder"):
        open_dataset("folder:nowhere")
