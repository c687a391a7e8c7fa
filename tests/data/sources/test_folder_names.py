"""Folders as other programs name them: what is taken as what, and what is said of it."""

from typing import Any

import numpy as np
import pytest
from example_files import (
    ROOT,
    bad_example,
    noise,
    opened,
    read,
    read_splits,
    refused,
    sizes,
    with_masks,
    write,
)
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp import train
from jaxdp.data.image_file import read_image
from jaxdp.data.sources import open_dataset
from jaxdp.inference.files import find


def classes(*folders: str, names: str = "ab") -> dict[str, Any]:
    files = [
        f"{folder}{name}/{number}.png" for folder in folders for name in names for number in "01"
    ]
    return {file: noise(seed, 5, 6, 3) for seed, file in enumerate(files)}


def pairs(image: str, mask: str, count: int = 3) -> dict[str, np.ndarray]:
    """Returns images and masks, whose names have `*` for their number."""
    files: dict[str, np.ndarray] = {}
    for number in range(count):
        files[image.replace("*", str(number))] = noise(number, 6, 8)
        files[mask.replace("*", str(number))] = noise(number, 6, 8, high=3)
    return files


@pytest.mark.parametrize(
    ("folders", "splits", "said"),
    [
        (
            ["Train", "Validation", "Test"],
            ["train", "validation", "test"],
            "Train is read as train, ",
        ),
        (
            ["training", "testing"],
            ["train", "test"],
            "training is read as train, testing is read as test\n",
        ),
        (
            ["train", "valid", "test"],
            ["train", "validation", "test"],
            "valid is read as validation\n",
        ),
        (["train", "DEV"], ["train", "validation"], "DEV is read as validation\n"),
        (["train", "val", "valid", "test"], ["train", "validation", "test"], "valid is not read"),
        (["train", "val", "test"], ["train", "validation", "test"], ""),
    ],
)
def test_splits_go_by_their_usual_names(
    folders: list[str], splits: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(classes(*(f"{folder}/" for folder in folders)))
    dataset = opened()
    assert (list(dataset.splits()), dataset.class_names) == (splits, ("a", "b"))
    assert sizes(dataset) == [4] * len(splits)
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == bool(said)


def test_classes_that_are_called_like_splits_are_trained_on_below_train_alone() -> None:
    write(classes("valid/", "invalid/", names="."))
    with refused("its splits: invalid, valid.*; add or name one or put classes in train/"):
        opened()
    (ROOT / "train").mkdir()
    for name in ("valid", "invalid"):
        (ROOT / name).rename(ROOT / "train" / name)
    assert opened(validation="0.5").class_names == ("invalid", "valid")


@pytest.mark.parametrize(
    ("image", "mask", "said"),
    [
        ("images/*.png", "labels/*.png", "images/ holds the images, labels/ the masks"),
        ("Images/*.png", "Annotations/*.png", "Images/ holds the images, Annotations/ the masks"),
        (
            "images/*.png",
            "segmentations/*.png",
            "images/ holds the images, segmentations/ the masks",
        ),
        ("imagesTr/c*_0000.png", "labelsTr/c*.png", "imagesTr/ holds the images, labelsTr/ the"),
        ("images/*.png", "masks/*_mask.png", ""),
        ("images/frame_000*.png", "masks/frame_000*_mask.png", ""),
        ("images/*.png", "masks/*_cp_masks.png", ""),  # as Cellpose names them
        ("*.tif", "*_cp_masks.png", "files called NAME_mask or the like are masks"),
        ("images/*.ome.tif", "masks/*.tif", ""),
        ("*.png", "*_masks.tif", "files called NAME_mask or the like are masks"),
        ("*_img.ome.tif", "*_Mask.ome.tif", "files called NAME_mask or the like are masks"),
    ],
)
@pytest.mark.parametrize("folder", ["", "Train/"])
def test_masks_go_by_their_usual_names(
    image: str, mask: str, said: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write({folder + name: pixels for name, pixels in pairs(image, mask, 12).items()})
    dataset = opened(validation="0.5") if folder else opened()
    assert (dataset.task, dataset.num_classes) == ("segmentation", 3)
    train = read(dataset.train)
    assert len(train["masks"]) == (6 if folder else 11)
    for pixels, found in zip(train["images"], train["masks"], strict=True):
        number = next(each for each in range(12) if (noise(each, 6, 8) == pixels[..., 0]).all())
        assert_array_equal(found, noise(number, 6, 8, high=3))
    assert said in capsys.readouterr().err


def test_two_masks_for_an_image_are_not_chosen_from() -> None:
    write(pairs("images/*.png", "masks/*_mask.png") | {"masks/1-label.png": noise(9, 6, 8, high=3)})
    with refused("is a mask without an image of the same name"):
        read_splits(opened(), "masks")


def test_masks_that_jpeg_has_changed_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    mask = Image.fromarray(np.kron(np.eye(2, dtype=np.uint8), np.full((9, 9), 255, np.uint8)))
    write(with_masks([mask] * 12) | {"masks/00.JPG": mask})
    (ROOT / "masks" / "00.png").unlink()
    with refused("the training masks of folder:set hold"):
        opened()
    assert capsys.readouterr().err == (
        "warning: JPEG changes the numbers in masks, e.g. in set/masks/00.JPG; save masks as PNG or"
        " TIFF\n"
    )


def test_the_name_of_a_folder_alone_is_one_line() -> None:
    write(classes(""))
    with refused("--dataset set: is a folder; did you mean folder:set\\?"):
        open_dataset("set")


def test_what_is_left_out_is_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    photos = {f"train/a/{number}.HEIC": "x" for number in range(3)} | {"train/b/notes.txt": "x"}
    write(classes("train/") | classes("val/", names="a") | photos)
    (ROOT / "train" / "c").mkdir()
    assert opened().class_names == ("a", "b")
    assert capsys.readouterr().err.splitlines() == [
        "warning: set: .heic 3 are not read; save them as one of .bmp .gif .jfif .jpeg .jpg .pbm"
        " .pgm .png .ppm .tif .tiff .webp",
        "warning: set/train holds no picture of c",
        "warning: set/val holds no picture of b",
    ]


def cellpose(count: int = 12) -> dict[str, Any]:
    """Returns images, and what Cellpose saves beside them."""
    objects = np.kron([[1, 0], [0, 700]], np.ones((8, 8))).astype(np.uint16)
    files: dict[str, Any] = {"0_seg.npy": "a pickle", "1_cp_outlines.txt": "1,2,3"}
    for number in range(count):
        files[f"{number}.tif"] = noise(number, 16, 16)
        files[f"{number}_cp_masks.png"] = np.roll(objects, number)
        files[f"{number}_outlines_cp_masks.png"] = noise(number, 16, 16, 3)
        files[f"{number}_flows_cp_masks.tif"] = noise(number, 16, 16)
        files[f"{number}_dP_cp_masks.tif"] = noise(number, 16, 16)
        files[f"{number}_cp_output_cp_masks.png"] = noise(number, 90, 160, 3)
    return files


def test_masks_of_cellpose_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    write(cellpose())
    dataset = opened(instances=True)
    assert sizes(dataset) == [11, 1]
    for split in dataset.splits().values():
        assert all(
            len(np.unique(split.unchecked(each)["masks"])) == 3 for each in range(len(split))
        )  # pyright: ignore[reportAttributeAccessIssue]
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["", "masks/"])
def test_a_pickle_of_cellpose_is_not_read(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    parent = "images/" if folder else ""
    write({f"{parent}{number}.tif": noise(number, 16, 16) for number in range(12)})
    write({f"{folder}{name}_seg.npy": "a pickle" for name in range(12)})
    with refused(rf"set/{folder}0_seg\.npy is a pickle, which can run programs; save the masks in"):
        opened(instances=True)
    assert train.main(["--model", "unet", "--instances", "--dataset", f"folder:{ROOT}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("suffix", ["czi", "nd2", "LIF", "oib", "vsi"])
@pytest.mark.parametrize("where", ["images/", "a/", ""])
def test_formats_of_microscopes_are_named_with_their_conversion(suffix: str, where: str) -> None:
    write({f"{where}{number}.{suffix}": "ZISRAWFILE" for number in range(12)})
    if where == "images/":
        write({f"masks/{number}.png": noise(number, 16, 16, high=3) for number in range(12)})
    with refused(rf"set/{where}0\.{suffix} is a microscope's own format; convert it to OME-TIFF, "):
        opened()
    with refused(
        rf"^set.*: no images in that folder; set/{where}0\.{suffix} is a microscope's own"
    ):
        find([ROOT / where])
    path = ROOT / f"{where}0.{suffix}"
    with bad_example(
        rf"^{path}: is a microscope's own format; convert it to OME-TIFF, e\.g\. with"
    ):
        read_image(path, path)


def test_a_mask_with_the_channels_of_its_stack_is_one_line() -> None:
    stack = np.zeros((3, 2, 16, 16), np.uint16)
    stack[:, 0, :8, :8], stack[:, 0, 8:, 8:] = 1, 2
    files = {f"{part}/{n:02}.tif": stack for part in ("images", "masks") for n in range(12)}
    write(files, imagej=True, metadata={"axes": "TCYX"})
    line = (
        "has 3 pages, but its mask 6; the mask has a page for each channel: save only the channel"
    )
    with bad_example(line):
        read_splits(opened(instances=True), "masks")
    write({name: stack[:, 0] for name in files if "masks" in name})
    assert opened(instances=True).image_shape[-1] == 2
