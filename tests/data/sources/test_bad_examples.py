"""A broken example stops the run, or is left out and counted, as `--on-bad-example` says.

The others stay as they are.
"""

import pathlib
from collections.abc import Callable
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
    split_classes,
    with_masks,
    write,
)
from numpy.testing import assert_array_equal
from PIL import Image

from jaxdp.data.sources import Split
from jaxdp.text.flags import for_command

COUNT, BROKEN = 30, 13


def pictures() -> pathlib.Path:
    return write(split_classes(COUNT)) / "train" / "b" / f"{BROKEN}.png"


def pairs() -> pathlib.Path:
    masks = [noise(number, 8, 8, high=2) for number in range(COUNT)]
    write(with_masks(masks, "train/") | with_masks(masks[:4], "test/"))
    return ROOT / "train" / "images" / f"{BROKEN}.png"


def mask_of(path: pathlib.Path) -> pathlib.Path:
    return path.parent.parent / "masks" / path.name


def cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def cut_photograph(path: pathlib.Path) -> None:
    Image.fromarray(noise(0, 8, 8, 3)).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:-20])


def mask(*image: Any) -> Callable[[pathlib.Path], None]:
    return lambda path: Image.new(*image).save(mask_of(path))


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
            lambda path: Image.new("I;16", (8, 8)).save(path),
            "has 16 bits a channel (uint16), not 8 (uint8); convert all images to one depth",
        ),
        (pairs, cut, "cannot be read as an image"),
        (pairs, lambda path: path.unlink(), "is a mask without an image of the same name"),
        (pairs, lambda path: mask_of(path).unlink(), "is an image without a mask of the same name"),
        (
            pairs,
            mask("RGB", (8, 8)),
            "has the wrong number of channels (3 of uint8); save it as class numbers",
        ),
        (pairs, mask("L", (8, 9)), "its mask has 9x8 pixels, but its image 8x8"),
        (pairs, mask("L", (8, 8), 7), "its mask has the value 7, not one of 0 to 1, or 255"),
    ],
)
def test_a_broken_example_stops_or_is_left_out(
    layout: Callable[..., pathlib.Path],
    spoil: Callable[[pathlib.Path], object],
    problem: str,
) -> None:
    path = layout()
    whole = read(opened(num_classes=2).train)
    spoil(path)
    remedy = '; fix or remove it, or leave such examples out with on_bad_example="skip"$'
    with bad_example(remedy) as caught:
        read(opened(num_classes=2).train)
    assert problem in for_command(caught.value)
    assert f"{BROKEN}.png" in str(caught.value).split(": ")[0]

    dataset = opened(num_classes=2, on_bad_example="skip")
    found = read(dataset.train)
    row = int(np.flatnonzero(found["weights"] == 0)[0])
    assert found["weights"].sum() == COUNT - 1
    assert not found["images"][row].any()
    assert isinstance(dataset.train, Split)
    assert list(skipped(dataset.train)) == [row]
    assert problem in skipped(dataset.train)[row]
    for name, values in whole.items():
        assert_array_equal(np.delete(found[name], row, 0), np.delete(values, row, 0))
    if layout is pictures:  # nor does it take part in mean and deviation
        good = np.delete(found["images"], row, 0)
        assert dataset.mean == pytest.approx(good.mean((0, 1, 2)), abs=1e-3)
        assert dataset.std == pytest.approx(good.std((0, 1, 2)), abs=1e-3)


def test_a_file_that_goes_away_while_training_is_a_broken_example() -> None:
    path = pictures()
    dataset = opened()
    path.unlink()
    with bad_example(f"{BROKEN}.png: cannot be read as an image \\(No such file or directory\\)"):
        read(dataset.train)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_broken_examples_alone_is_an_error_either_way(split: str) -> None:
    pictures()
    for path in (ROOT / split).rglob("*.png"):
        path.write_text("no image")
    with refused(rf"nothing of it can be used; .*/{split}/a/00\.png: cannot be read as an image"):
        opened(on_bad_example="skip")


def test_a_split_of_which_nothing_is_left_names_a_reason() -> None:
    masks = [np.full((8, 8), number % 2, np.uint8) for number in range(3)]
    write(
        with_masks(masks, "train/") | with_masks([mask // 2 + 7 for mask in masks], "test/"),
    )
    dataset = opened(on_bad_example="skip")
    assert read(dataset.train)["weights"].all()
    with refused(
        r"test: none of its 3 examples .*/0.\.png: its mask has the value 7, not one of 0"
    ):
        read(dataset.test)
