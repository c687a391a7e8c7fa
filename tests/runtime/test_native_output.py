"""What the libraries print is filtered where they print too much."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from jaxdp.runtime import native_output


def test_lines_of_noise_are_left_out_and_others_stay(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(ValueError), native_output.without(re.compile("noise")):
        os.write(2, b"noise of one kind\nsaid\nand noise within\n" + b"noise\n" * 100_000)
        os.write(2, b"without an end")
        raise ValueError("failed")
    os.write(2, b" after\n")
    assert capfd.readouterr().err == "said\nand noise within\nwithout an end after\n"


PIECES = """
import os
from jaxdp.runtime import native_output
native_output.capture(1.0)
os.write(2, b"[Gloo] Rank 1 is connected to \\n3\\n : 3\\nfailed 3 times\\n")
native_output.forward()
"""


def test_pieces_of_gloos_lines_are_left_out() -> None:
    """Its threads write into one another's lines: a number may stand alone."""
    done = subprocess.run(
        [sys.executable, "-c", PIECES], capture_output=True, text=True, check=True
    )
    assert done.stderr == "failed 3 times\n"
