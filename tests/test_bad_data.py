"""Data that cannot be trained on end the command at once: exit code 2, and one line that says what
is wrong and what to do.
"""

import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import tifffile
from example_files import refused
from PIL import Image

from jaxdp import data, train

RNG = np.random.default_rng(0)
ROOT = pathlib.Path("set")


def grey(path: str, value: int | None = None) -> None:
    pixels = (
        RNG.integers(0, 256, (16, 16), np.uint8)
        if value is None
        else np.full((16, 16), value, np.uint8)
    )
    (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(ROOT / path)


def photos(*counts: int) -> None:
    for label, count in enumerate(counts):
        for number in range(count):
            grey(f"{'abcd'[label]}/{number:02d}.png")


def slides(count: int = 12) -> None:
    for number in range(count):
        grey(f"images/{number:02d}.png")
        Image.fromarray(RNG.integers(0, 2, (16, 16), np.uint8)).save(
            _made(f"masks/{number:02d}.png")
        )


def _made(path: str) -> pathlib.Path:
    (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
    return ROOT / path


def nothing() -> None:
    ROOT.mkdir()


def empty_classes() -> None:
    for name in ("a", "b"):
        (ROOT / name).mkdir(parents=True)


def masks_without_images() -> None:
    slides()
    for path in (ROOT / "images").iterdir():
        path.rename(path.with_name(f"other-{path.name}"))


def half_without_images() -> None:
    slides()
    (ROOT / "images" / "03.png").unlink()


def broken() -> None:
    photos(6, 6)
    for path in ROOT.rglob("*.png"):
        path.write_text("no image")


def float_stacks() -> None:
    for number in range(4):
        pixels = RNG.random((2, 16, 16)).astype(np.float32)
        pixels[1, 3, 4] = np.nan if number == 1 else 0.5
        tifffile.imwrite(_made(f"images/{number}.tif"), pixels, photometric="minisblack")
        tifffile.imwrite(
            _made(f"masks/{number}.tif"), (pixels > 0.5).astype(np.uint8), photometric="minisblack"
        )


def arrays(*, nan: bool = False, classes: int = 2) -> None:
    images = RNG.random((24, 16, 16, 1)).astype(np.float32)
    images[5, 2, 2] = np.nan if nan else 0.5
    ROOT.mkdir()
    np.savez(ROOT / "set.npz", images=images, labels=np.arange(24) % classes)


def weights(**named: np.ndarray) -> None:
    photos(8, 8)
    np.savez("weights.npz", **named)


FOLDER, NPZ, UNET = (
    "--dataset folder:set",
    "--dataset npz:set/set.npz",
    "--model unet --dataset folder:set",
)
WEIGHTS = f"--model resnet --model-kwargs depth=20 {FOLDER} --init-from weights.npz"
CASES: dict[str, tuple[Callable[[], object], str, str]] = {
    "nothing": (
        nothing,
        FOLDER,
        "set should hold a folder of pictures for each class, or the folders images and masks",
    ),
    "empty classes": (empty_classes, FOLDER, "should hold a folder of pictures for each class"),
    "no such folder": (lambda: None, FOLDER, "there is no such folder"),
    "one class": (lambda: photos(8), FOLDER, "has one class only; there is nothing to tell apart"),
    "one class in arrays": (
        lambda: arrays(classes=1),
        NPZ,
        "has one class only; there is nothing to tell apart",
    ),
    "one class in masks": (
        lambda: [slides(), [grey(f"masks/{n:02d}.png", 0) for n in range(12)]],
        UNET,
        "hold one class only",
    ),
    "masks of other names": (masks_without_images, UNET, "no mask has the name of an image"),
    "a mask without image": (
        half_without_images,
        UNET,
        "03.png: is a mask without an image of the same name",
    ),
    "all broken": (broken, f"{FOLDER} --on-bad-example skip", "nothing of it can be used; set/a/0"),
    "NaN in TIFF": (float_stacks, UNET, "1.tif[1]: has NaN or infinite pixels; fix or remove it"),
    "NaN in npz": (lambda: arrays(nan=True), NPZ, "set.npz[5]: has NaN or infinite pixels"),
    "a share of a small class": (
        lambda: photos(20, 3),
        f"{FOLDER} --validation 0.1",
        "--validation 0.1: leaves no validation example of class 1, which has",
    ),
    "a single file of a class": (
        lambda: photos(1, 1),
        FOLDER,
        "would be held out as test data, the only file of its class",
    ),
    "weights that fit nothing": (
        lambda: weights(other=np.zeros((2, 3))),
        WEIGHTS,
        "none of its 1 arrays fits resnet by name",
    ),
    "weights without arrays": (weights, WEIGHTS, "none of its 0 arrays fits resnet"),
    "no weights": (lambda: photos(8, 8), WEIGHTS, "--init-from weights.npz: there is no such file"),
}


@pytest.mark.parametrize("name", CASES)
def test_data_that_cannot_be_trained_on(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, flags, says = CASES[name]
    make()
    before = sorted(pathlib.Path().rglob("*"))
    flags = flags if "--model" in flags else f"--model cnn {flags}"
    assert train.main(f"{flags} --strategy single --steps 1".split()) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("jaxdp.train: error: ")
    assert says in lines[0]
    assert captured.out == ""
    assert sorted(pathlib.Path().rglob("*")) == before  # no folder of a run is begun


def test_nan_in_arrays_is_one_line() -> None:
    images = RNG.random((24, 8, 8, 1)).astype(np.float32)
    images[7, 2, 2] = np.inf
    with refused("hold NaN or infinity, first in example 7"):
        data.from_arrays(images, np.arange(24) % 2)
