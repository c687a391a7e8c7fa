"""Masks and labels whose classes are counted from 1 are said, wherever they come from."""

import numpy as np
import pytest
from example_files import noise, opened, with_masks, write

from jaxdp import data

MASKS = noise(0, 12, 8, 8, high=3) + np.uint8(1)
SAID = "no training mask has the value 0: class 0 is empty; if the classes are counted from 1, give"


def test_masks_of_folders_and_arrays_that_lack_class_0_are_said_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(with_masks(list(MASKS)))
    assert opened().num_classes == 4
    data.from_arrays(noise(1, 12, 8, 8), MASKS, name="mine")
    assert capsys.readouterr().err.splitlines() == [
        f'warning: folder:set: {SAID} mask_values="1,2,3"',
        f'warning: mine: {SAID} mask_values="1,2,3"',
    ]
    declared = data.from_arrays(noise(1, 12, 8, 8), MASKS, mask_values="1,2,3", name="other")
    assert declared.num_classes == 3
    data.from_arrays(noise(1, 12, 8, 8), MASKS - np.uint8(1), name="third")
    assert capsys.readouterr().err == ""


def test_labels_of_arrays_and_of_items_that_lack_class_0_are_said_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    images, labels = noise(0, 12, 8, 8), np.arange(12) % 3
    for shift in (0, 1):
        data.from_arrays(images, labels + shift, name="arrays")
        data.from_dataset(list(zip(images, labels + shift, strict=True)), name="items")
    assert [line.split(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "warning: arrays: no training label is 0: class 0 is empty",
        "warning: items: no training label is 0: class 0 is empty",
    ]
