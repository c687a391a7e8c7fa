"""Formats names and values for messages, in one line that has no effect on a terminal."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

# Control characters, reversals, characters outside UTF-8, and marks that no text has.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef]"
)


_BREAKS = "\t\n\v\f\r\x85\u2028\u2029"


def printable(text: str) -> str:
    """Returns a text in one line that has no effect on a terminal. Control characters, and
    characters outside UTF-8, become escapes.
    """
    if text.isprintable():  # true for nearly every text, and fast
        return text
    return _UNPRINTABLE.sub(
        lambda match: " " if match[0] in _BREAKS else ascii(match[0])[1:-1], text
    )


def one_line(value: object) -> str:
    """Returns a value as text in which each run of spaces and line breaks is one space."""
    return " ".join(str(value).split())


def composed(name: str) -> str:
    """Returns the Unicode normalization of a name, which all its spellings share."""
    return unicodedata.normalize("NFC", name)


def some(names: Iterable[object], most: int = 5) -> str:
    """Returns the first of these names, and the number of further names."""
    texts = [*map(str, names)]
    more = f" and {len(texts) - most} more" * (len(texts) > most)
    return ", ".join(texts[:most]) + more


def valid_text(name: str) -> str:
    """Returns the name of a file as text that UTF-8 can hold, with escapes for bytes that are not
    UTF-8.
    """
    return name.encode(errors="backslashreplace").decode()


_MOST_SHOWN = 500  # characters of a value in a message


# Names that other programs have for settings.
_SHORT = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "global_batch_size",
    "accum": "accumulate_steps",
}


def shown(value: object) -> str:
    """Returns the value of a setting as on the command line."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "(none)"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def brief(value: object) -> str:
    """Returns the value of a setting for a message, in which a long value is shortened."""
    text = shown(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """Returns the intended or the most similar candidate; None if no candidate is similar."""
    if (meant := _SHORT.get(name)) in candidates:
        return meant
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)), None)


def nearest(name: str, candidates: Collection[str]) -> str:
    """Returns a remedy with the closest candidate, if one is similar, and a list of the first
    candidates.
    """
    close = closest(name, list(candidates))
    known = some(sorted(candidates), 16) or "none"
    return f"did you mean {close}? known: {known}" if close else f"known: {known}"
