"""What the libraries print is filtered where they print too much."""

import contextlib
import os
import re

import pytest

from jaxdp.runtime import native_output


def test_lines_of_noise_are_left_out_and_others_stay(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(ValueError), native_output.without(re.compile("noise")):
        os.write(2, b"noise of one kind\nsaid\nand noise within\n" + b"noise\n" * 100_000)
        os.write(2, b"without an end")
        raise ValueError("failed")
    os.write(2, b" after\n")
    assert capfd.readouterr().err == "said\nand noise within\nwithout an end after\n"
