"""Finds fonts for the texts of figures, so that names in Chinese, Japanese and Korean are characters rather than boxes."""

import functools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib import font_manager

# Asked in this order for each character that Matplotlib's own font lacks.
_CJK = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Noto Sans CJK TC", "Noto Sans JP", "Noto Sans SC",
    "Noto Sans KR", "Source Han Sans", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "Droid Sans Fallback", "IPAGothic", "IPAexGothic", "TakaoGothic", "VL Gothic", "NanumGothic", "UnDotum",
    "Baekmuk Gulim", "AR PL UMing CN", "Microsoft YaHei", "SimHei", "MS Gothic", "Yu Gothic", "Meiryo", "Malgun Gothic",
    "PingFang SC", "Hiragino Sans", "Hiragino Sans GB", "Apple SD Gothic Neo", "Heiti TC", "Arial Unicode MS",
)  # fmt: skip


def lettering(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Returns the font families that show these texts, for Matplotlib's `font.family`, and the characters that none has."""
    needed = {character for text in texts for character in text if not character.isspace()}
    chosen = list(matplotlib.rcParams["font.family"])
    missing = needed - _characters(font_manager.findfont(font_manager.FontProperties(family=chosen)), needed)
    if not missing:
        return chosen, frozenset()
    for name, path in _installed():
        if shown := _characters(path, missing):
            chosen.append(name)
            missing = missing - shown
    return chosen, frozenset(missing)


def drawn(text: str, missing: frozenset[str] = frozenset()) -> str:
    """Returns a text as Matplotlib shows it literally: no mathematics, and `?` for the characters that no font has."""
    return "".join("?" if character in missing else character for character in text).replace("$", r"\$")


def style(texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings of Matplotlib with which these texts are drawn, and the texts as `drawn` returns them."""
    families, missing = lettering(texts)
    return {"font.family": families}, [drawn(text, missing) for text in texts]


def _characters(path: str, wanted: Iterable[str]) -> set[str]:
    font = font_manager.get_font(path)
    return {character for character in wanted if font.get_char_index(ord(character))}


@functools.cache
def _installed() -> list[tuple[str, str]]:
    """Returns family and file of the fonts of `_CJK` on this machine, those included that came after Matplotlib's list of fonts."""
    manager = font_manager.fontManager
    if not set(_CJK) & {entry.name for entry in manager.ttflist}:
        known = {pathlib.Path(entry.fname) for entry in manager.ttflist}
        for path in font_manager.findSystemFonts():
            if pathlib.Path(path) not in known:
                try:
                    manager.addfont(path)
                except (OSError, RuntimeError, ValueError, KeyError, NotImplementedError):  # no font that Matplotlib can use
                    continue
    found = {entry.name: entry.fname for entry in manager.ttflist}
    return [(name, found[name]) for name in _CJK if name in found]
