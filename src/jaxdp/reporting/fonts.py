"""Fits text to the fonts of Matplotlib; its own has no Chinese, Japanese or Korean."""

import matplotlib
from matplotlib import font_manager


def missing(text: str) -> set[str]:
    """Returns the characters that no font of Matplotlib's setting `font.family` has."""
    fonts = [
        font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=[family])))
        for family in matplotlib.rcParams["font.family"]
    ]
    wanted = set(text) - {"\n"}
    return {each for each in wanted if not any(font.get_char_index(ord(each)) for font in fonts)}


def drawn(text: str) -> str:
    """Returns a text as Matplotlib shows it literally and without a warning.

    Dollar signs begin no mathematics, and `?` stands for each character that no font has.
    """
    unknown = missing(text)
    shown = "".join("?" if character in unknown else character for character in text)
    return shown.replace("$", r"\$")
