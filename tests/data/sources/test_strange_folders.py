"""Folders as systems, storage and other trainers leave them: what is no class is none, pairs of
images and masks are never two classes, and what is left out decides nothing.
"""

import unicodedata
from typing import Any

import numpy as np
import pytest
from example_files import ROOT, noise, opened, read, refused, sizes, skipped, with_masks, write

from jaxdp.data.sources import open_dataset
from jaxdp.data.sources.folder import FolderSource

MASKS = [np.resize(np.array([0, 1], np.uint8), (8, 8))] * 12
OF_SYSTEMS = [
    ".ipynb_checkpoints", "__MACOSX", "@eaDir", "#recycle", "lost+found", "$RECYCLE.BIN",
    "System Volume Information", "@Recycle",
]  # fmt: skip


def photos(*names: str, split: str = "", count: int = 10) -> dict[str, Any]:
    files = [f"{split}{name}/{number}.png" for name in names for number in range(count)]
    return {file: noise(seed, 8, 8) for seed, file in enumerate(files)}


def pairs(images: str, masks: str, end: str = "", split: str = "") -> dict[str, Any]:
    files = with_masks(MASKS)
    return {
        f"{split}{name}".replace("images/", f"{images}/")
        .replace("masks/", f"{masks}/")
        .replace(".png", f"{end}.png" if name.startswith("masks") else ".png"): content
        for name, content in files.items()
    }


@pytest.mark.parametrize("name", [*OF_SYSTEMS, "@EADIR"])
def test_folders_of_systems_hold_no_classes_and_no_images(name: str) -> None:
    write(photos("cat", "dog") | photos(name) | photos(f"cat/{name}"))
    dataset = opened()
    assert (dataset.class_names, sizes(dataset)) == (("cat", "dog"), [18, 2])


def test_names_that_only_look_like_those_of_systems_are_classes() -> None:
    names = ("#1", "$5", "@home", "lost", "recycle")
    assert opened(write(photos(*names))).class_names == names


@pytest.mark.parametrize(
    ("images", "masks", "end"),
    [
        ("image", "mask", ""), ("imgs", "masks", "_mask"), ("img", "gt", ""), ("Images", "GT", ""),
        ("images", "label", ""), ("JPEGImages", "SegmentationClass", ""), ("img", "label", "_label"),
        ("cells", "cells_masks", ""), ("train", "train_masks", "_mask"), ("a b", "a b mask", ""),
        ("images", "ground_truth", "_gt"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("split", ["", "train/"])
def test_images_and_masks_are_pairs_by_other_usual_names(
    images: str, masks: str, end: str, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(pairs(images, masks, end, split))
    if split:
        write(with_masks(MASKS[:2], "test/"))
    dataset = opened()
    assert (dataset.task, sizes(dataset)) == ("segmentation", [12, 2] if split else [11, 1])
    assert f"{images}/ holds the images, {masks}/ the masks" in capsys.readouterr().err


def test_a_split_and_its_masks_lie_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the Carvana set, whose test images have no masks."""
    write(pairs("train", "train_masks", "_mask") | pairs("val", "val_masks", "_mask"))
    write({f"test/{number}.png": noise(number, 8, 8) for number in range(3)})
    dataset = opened()
    assert (dataset.task, [*dataset.splits()]) == ("segmentation", ["train", "validation"])
    assert sizes(dataset) == [12, 12]
    said = "note: folder:set: set/test holds pictures without labels, and is not read\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("test", ["test/", "test/images/"])
def test_test_images_without_labels_are_not_read_which_is_said(
    test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write({f"{test}{number}.png": noise(number, 8, 8) for number in range(3)})
    write(
        with_masks(MASKS, "train/") if test == "test/images/" else photos("a", "b", split="train/")
    )
    with refused(r"has no test data \(its splits: train\); add or name a split, or give --validat"):
        opened()
    assert "set/test holds pictures without labels, and is not read" in capsys.readouterr().err
    assert [*opened(validation="0.25").splits()] == ["train", "validation"]
    with refused("has no example there|no masks"):
        opened(test_split="test")


def test_a_class_with_the_name_of_masks_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert opened(write(photos("mask", "no_mask"))).class_names == ("mask", "no_mask")
    line = "note: folder:set: mask/ is read as a class; of images and masks, call the folders so\n"
    assert line in capsys.readouterr().err
    dataset = opened(write(photos("with_mask", "without_mask"), ROOT / "faces"))
    assert dataset.class_names == ("with_mask", "without_mask")
    assert "is read as a class" not in capsys.readouterr().err


COMPOSED = unicodedata.normalize("NFC", "Größe")
DECOMPOSED = unicodedata.normalize("NFD", "Größe")


def test_one_name_in_two_spellings_is_one_class_of_two_splits() -> None:
    write(photos(COMPOSED, "z", split="train/") | photos(DECOMPOSED, split="test/"))
    dataset = opened()
    assert dataset.class_names == (COMPOSED, "z")
    assert set(read(dataset.test)["labels"]) == {0}


def test_one_name_in_two_spellings_in_one_folder_is_one_line_that_shows_them() -> None:
    write(photos(COMPOSED, DECOMPOSED))
    with refused(
        r"in two spellings of Unicode, 'Gro\\u0308\\xdfe' and 'Gr\\xf6\\xdfe'|'Gr\\xf6\\xdfe' and"
    ):
        opened()


def test_a_mask_has_the_name_of_its_image_in_any_spelling() -> None:
    files = {f"images/{COMPOSED} {n}.png": noise(n, 8, 8) for n in range(12)}
    write(files | {f"masks/{DECOMPOSED} {n}.png": mask for n, mask in enumerate(MASKS)})
    assert sizes(opened()) == [11, 1]
    write({f"masks/{COMPOSED} 3.png": MASKS[0]})
    with refused("in two spellings of Unicode"):
        opened()


# What is left out has no say.


def facts(**settings: Any) -> tuple[Any, ...]:
    dataset = opened(on_bad_example="skip", **settings)
    return dataset.image_shape, dataset.dtype, dataset.task


BROKEN_MASK = {"masks/99.png": "text"}
WRONG_SIZE = {"masks/99.png": MASKS[0]}


@pytest.mark.parametrize("mask", [{}, BROKEN_MASK, WRONG_SIZE], ids=["none", "broken", "other"])
@pytest.mark.parametrize(
    "image", [noise(9, 300, 400), noise(9, 8, 8, 3), noise(9, 24, 32, 3)], ids=str
)
def test_an_image_that_is_left_out_decides_neither_size_nor_colour(
    image: np.ndarray, mask: dict[str, Any]
) -> None:
    if mask is WRONG_SIZE and image.shape[0] == 8:
        mask = {"masks/99.png": noise(0, 3, 3, high=2)}
    write(with_masks(MASKS) | {"images/99.png": image} | mask)
    assert facts() == ((8, 8, 1), "uint8", "segmentation")
    dataset = opened(on_bad_example="skip")
    batches = [read(split) for split in dataset.splits().values()]
    assert sum(batch["weights"].sum() for batch in batches) == 12
    assert sum(len(skipped(split)) for split in dataset.splits().values()) == 1
    with refused(r"99\.png: "):
        for split in opened().splits().values():
            read(split)


def test_fields_of_floats_without_masks_do_not_decide_the_depth() -> None:
    fields = {f"images/{n}_flows.tif": noise(n, 8, 8).astype(np.float32) / 7 for n in range(20)}
    write(with_masks(MASKS) | fields)
    assert facts() == ((8, 8, 1), "uint8", "segmentation")


def test_an_image_of_another_depth_does_not_decide_the_size() -> None:
    write(with_masks(MASKS) | {"images/99.tif": noise(9, 64, 64).astype(np.uint16)})
    write({"masks/99.png": np.zeros((64, 64), np.uint8)})
    assert facts() == ((8, 8, 1), "uint8", "segmentation")


def test_a_damaged_photo_in_colour_decides_nothing() -> None:
    write(photos("a", "b") | {"a/x.png": noise(1, 40, 40, 3)})
    whole = (ROOT / "a/x.png").read_bytes()
    (ROOT / "a/x.png").write_bytes(whole[: len(whole) // 2])
    assert facts() == ((8, 8, 1), "uint8", "classification")
    write({"a/y.png": noise(1, 8, 8, 3)})  # but a sound one does
    assert facts() == ((8, 8, 3), "uint8", "classification")


def test_without_a_doubt_no_file_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    write(with_masks(MASKS))
    reads: list[int] = []
    own = FolderSource.__getitem__
    monkeypatch.setattr(
        FolderSource, "__getitem__", lambda self, index: reads.append(index) or own(self, index)
    )
    open_dataset(f"folder:{ROOT}")
    plain = len(reads)
    facts()
    assert len(reads) - plain <= plain + 3
