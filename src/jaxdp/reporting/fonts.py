"""Draws text with the fonts of Matplotlib; its own has no Chinese, Japanese or Korean."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib
from matplotlib import font_manager


@contextlib.contextmanager
def without_warnings(style: Any) -> Iterator[None]:
    """Draws in a style; a character that no font has becomes a box, without a warning."""
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def can_show(text: str) -> bool:
    """Whether the fonts of Matplotlib's setting `font.family` have each character."""
    known = {ord("\n")}
    for family in matplotlib.rcParams["font.family"]:
        path = font_manager.findfont(font_manager.FontProperties(family=[family]))
        known |= set(font_manager.get_font(path).get_charmap())
    return set(map(ord, text)) <= known
