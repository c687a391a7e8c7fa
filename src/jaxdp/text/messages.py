"""Text of messages: names and values in one line that does nothing to a terminal."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

# Controls, reversals, what is no UTF-8, and marks that no text has.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef]"
)


_BREAKS = "\t\n\v\f\r\x85\u2028\u2029"


def printable(text: str) -> str:
    """Returns a text in one line that does nothing to a terminal: its controls, and what is no
    UTF-8, are shown as escapes.
    """
    if text.isprintable():  # nearly every text is, and this test is fast
        return text
    return _UNPRINTABLE.sub(
        lambda match: " " if match[0] in _BREAKS else ascii(match[0])[1:-1], text
    )


def one_line(value: object) -> str:
    """Returns a value as text in which each run of spaces and line breaks is one space."""
    return " ".join(str(value).split())


def composed(name: str) -> str:
    """Returns the spelling of a name that its other spellings in Unicode have in common."""
    return unicodedata.normalize("NFC", name)


def some(names: Iterable[object], most: int = 5) -> str:
    """Returns the first of some names, and how many more there are."""
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
    """Returns a setting's value as it is written on the command line."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "(none)"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def brief(value: object) -> str:
    """Returns a setting's value for a message, in which a long value is cut."""
    text = shown(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """Returns the candidate that is meant, or the most similar one; None if none is similar."""
    if (meant := _SHORT.get(name)) in candidates:
        return meant
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)), None)


def nearest(name: str, candidates: Collection[str]) -> str:
    """Returns a remedy: the closest candidate, if one is similar, and the list of the first."""
    close = closest(name, list(candidates))
    known = some(sorted(candidates), 16) or "none"
    return f"did you mean {close}? known: {known}" if close else f"known: {known}"
