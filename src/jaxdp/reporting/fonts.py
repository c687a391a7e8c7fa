"""Draws text with the fonts of Matplotlib; its own has no Chinese, Japanese or Korean."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib


@contextlib.contextmanager
def without_warnings(style: Any) -> Iterator[None]:
    """Draws in a style; a character that no font has becomes a box, without a warning."""
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield
