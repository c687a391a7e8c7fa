"""Masks whose classes are counted from 1 are said, in folders and arrays alike."""

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
        f"warning: folder:set: {SAID} mask_values=1,2,3",
        f"warning: mine: {SAID} mask_values=1,2,3",
    ]
    declared = data.from_arrays(noise(1, 12, 8, 8), MASKS, mask_values="1,2,3", name="other")
    assert declared.num_classes == 3
    data.from_arrays(noise(1, 12, 8, 8), MASKS - np.uint8(1), name="third")
    assert capsys.readouterr().err == ""
