"""Data that cannot be trained on end the command at once: exit code 2, and one line that says what
is wrong and what to do.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_files import noise, with_masks, write

from jaxdp import train

RNG = np.random.default_rng(0)
SLIDES = with_masks([noise(number, 16, 16, high=2) for number in range(12)])


def photos(*counts: int) -> dict[str, Any]:
    return {
        f"{'abcd'[label]}/{number:02d}.png": noise(number, 16, 16)
        for label, count in enumerate(counts)
        for number in range(count)
    }


def float_stacks() -> dict[str, Any]:
    stacks = RNG.random((4, 2, 16, 16)).astype(np.float32)
    masks = (stacks > 0.5).astype(np.uint8)
    stacks[1, 1, 3, 4] = np.nan
    images = {f"images/{number}.tif": stack for number, stack in enumerate(stacks)}
    return images | {f"masks/{number}.tif": mask for number, mask in enumerate(masks)}


def arrays(*, nan: bool = False, classes: int = 2) -> None:
    images = RNG.random((24, 16, 16, 1)).astype(np.float32)
    images[5, 2, 2] = np.nan if nan else 0.5
    np.savez("set.npz", images=images, labels=np.arange(24) % classes)


def weights(**named: np.ndarray) -> dict[str, Any]:
    np.savez("weights.npz", **named)
    return photos(8, 8)


FOLDER, NPZ = "--model cnn --dataset folder:set", "--model cnn --dataset npz:set.npz"
UNET = "--model unet --dataset folder:set"
WEIGHTS = "--model resnet --model-kwargs depth=20 --dataset folder:set --init-from weights.npz"
CASES: dict[str, tuple[Callable[[], dict[str, Any] | None], str, str]] = {
    "empty classes": (
        lambda: {"a/x.txt": "x", "b/x.txt": "x"},
        FOLDER,
        "set should hold a folder of pictures for each class, or the folders images and masks",
    ),
    "a mask without image": (
        lambda: {name: each for name, each in SLIDES.items() if name != "images/03.png"},
        UNET,
        "03.png: is a mask without an image of the same name",
    ),
    "all broken": (
        lambda: dict.fromkeys(photos(6, 6), "no image"),
        f"{FOLDER} --on-bad-example skip",
        "nothing of it can be used; set/a/0",
    ),
    "NaN in TIFF": (float_stacks, UNET, "1.tif[1]: has NaN or infinite pixels; fix or remove it"),
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
}


@pytest.mark.parametrize("name", CASES)
def test_data_that_cannot_be_trained_on(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, flags, says = CASES[name]
    write(make() or {})
    before = sorted(pathlib.Path().rglob("*"))
    assert train.main(f"{flags} --strategy single --steps 1".split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("jaxdp.train: error: ")
    assert says in line
    assert captured.out == ""
    assert sorted(pathlib.Path().rglob("*")) == before  # no folder of a run is begun
