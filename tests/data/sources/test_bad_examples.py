"""A broken example stops the run, or is left out and counted, as `--on-bad-example` says.

The others stay as they are.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read
from PIL import Image

from jaxdp.data.sources import BadExample, Split
from jaxdp.registry import ConfigError

COUNT, BROKEN = 30, 13


def pictures(root: pathlib.Path) -> pathlib.Path:
    for split, count in (("train", COUNT), ("test", 4)):
        for number in range(count):
            path = root / split / "ab"[number % 2] / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise(number, 8, 8, 3)).save(path)
    return root / "train" / "b" / f"{BROKEN}.png"


def pairs(root: pathlib.Path) -> pathlib.Path:
    for split, count in (("train", COUNT), ("test", 4)):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(noise(number, 8, 8)).save(root / split / "images" / f"{number:02d}.png")
            Image.fromarray(noise(number, 8, 8, high=2)).save(
                root / split / "masks" / f"{number:02d}.png"
            )
    return root / "train" / "images" / f"{BROKEN}.png"


def cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def cut_photograph(path: pathlib.Path) -> None:
    Image.fromarray(noise(0, 8, 8, 3)).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:-20])


def save(*args: Any, mask: bool = False) -> Callable[[pathlib.Path], None]:
    def change(path: pathlib.Path) -> None:
        Image.new(*args).save(path.parent.parent / "masks" / path.name if mask else path)

    return change


@pytest.mark.parametrize(
    ("layout", "spoil", "problem"),
    [
        (pictures, cut, "cannot be read as an image (image file is truncated"),
        (pictures, cut_photograph, "cannot be read as an image (image file is truncated"),
        (
            pictures,
            lambda path: path.write_text("no image"),
            "cannot be read as an image (no known format)",
        ),
        (
            pictures,
            lambda path: path.write_bytes(b""),
            "cannot be read as an image (no known format)",
        ),
        (
            pictures,
            save("I;16", (8, 8)),
            "has 16 bits a channel (uint16), not 8 (uint8); convert all images to one depth",
        ),
        (pairs, cut, "cannot be read as an image"),
        (pairs, lambda path: path.unlink(), "is a mask without an image of the same name"),
        (
            pairs,
            lambda path: (path.parent.parent / "masks" / path.name).unlink(),
            "is an image without a mask of the same name",
        ),
        (
            pairs,
            save("RGB", (8, 8), mask=True),
            "has the wrong number of channels (mode RGB); save it as class numbers",
        ),
        (pairs, save("L", (8, 9), mask=True), "its mask has 9x8 pixels, but its image 8x8"),
        (
            pairs,
            save("L", (8, 8), 7, mask=True),
            "its mask has the value 7, not one of 0 to 1, or 255",
        ),
    ],
)
def test_a_broken_example_stops_or_is_left_out(
    tmp_path: pathlib.Path,
    layout: Callable[..., pathlib.Path],
    spoil: Callable[[pathlib.Path], object],
    problem: str,
) -> None:
    path = layout(tmp_path)
    whole = read(opened(tmp_path, num_classes=2).train)
    spoil(path)
    with pytest.raises(BadExample) as caught:
        read(opened(tmp_path, num_classes=2).train)
    message = str(caught.value)
    assert problem in message
    assert message.endswith(
        "; fix or remove it, or leave such examples out with --on-bad-example skip"
    )
    assert f"{BROKEN}.png" in message.split(": ")[0]
    assert "\n" not in message

    dataset = opened(tmp_path, num_classes=2, on_bad_example="skip")
    found = read(dataset.train)
    row = int(np.flatnonzero(found["weights"] == 0)[0])
    assert found["weights"].sum() == COUNT - 1
    assert not found["images"][row].any()
    assert isinstance(dataset.train, Split)
    assert list(dataset.train.skipped) == [row]
    assert problem in dataset.train.skipped[row]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.delete(found[name], row, 0), np.delete(values, row, 0))


def test_a_file_that_goes_away_while_training_is_a_broken_example(tmp_path: pathlib.Path) -> None:
    path = pictures(tmp_path)
    dataset = opened(tmp_path)
    path.unlink()
    with pytest.raises(
        BadExample,
        match=f"{BROKEN}.png: cannot be read as an image \\(No such file or directory\\)",
    ):
        read(dataset.train)


def test_broken_examples_take_no_part_in_mean_and_deviation(tmp_path: pathlib.Path) -> None:
    path = pictures(tmp_path)
    path.write_text("no image")
    dataset = opened(tmp_path, on_bad_example="skip")
    good = read(dataset.train)
    pixels = good["images"][good["weights"] == 1]
    assert dataset.mean == pytest.approx(pixels.mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(pixels.std((0, 1, 2)), abs=1e-3)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_broken_examples_alone_is_an_error_either_way(
    tmp_path: pathlib.Path, split: str
) -> None:
    pictures(tmp_path)
    for path in (tmp_path / split).rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(
        ConfigError,
        match=rf"nothing of it can be used; .*/{split}/a/00\.png: cannot be read as an image",
    ):
        opened(tmp_path, on_bad_example="skip")
