"""Marks the settings that a message names. A command then renders them as flags, and a program as
keywords.

A part is a setting between two characters that Unicode reserves for internal use, for example
`<FDD0>validation=0.1<FDD1>`. `flag` removes these characters from names and values, which may come
from files.
"""

import re

from jaxdp.text.messages import printable, shown

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_QUOTE = "\ufdd2"  # around a string, which only Python quotes
_INNER = f"[^{_OPEN}{_CLOSE}]"
_PART = re.compile(f"{_OPEN}([^={_OPEN}{_CLOSE}]+)(?:=({_INNER}*))?{_CLOSE}")
_NO_MARKS = dict.fromkeys(map(ord, (_OPEN, _CLOSE, _QUOTE)))


class Sentence(str):
    """A sentence with settings as keywords, for a program. It keeps its parts, for a command.

    Attributes:
        template: the sentence with its parts; to be put into another sentence.
    """

    template: str

    def __new__(cls, text: object) -> "Sentence":
        sentence = super().__new__(cls, _PART.sub(_as_keyword, template_of(text)))
        sentence.template = template_of(text)
        return sentence


def flag(name: str, value: object = "", *, quote: str = _QUOTE) -> str:
    """Returns the part that names a setting, perhaps with a value. The part becomes a flag on the
    command line, and a keyword in Python.

    Args:
        quote: mark around a value that is a string. Empty if the text is not a literal value, such
            as `pmap or single`.
    """
    text = shown(value).translate(_NO_MARKS)
    if isinstance(value, str) and text:
        text = f"{quote}{text}{quote}"
    name = name.translate(_NO_MARKS)
    return f"{_OPEN}{name}={text}{_CLOSE}" if text else f"{_OPEN}{name}{_CLOSE}"


def template_of(text: object) -> str:
    """Returns the template of a sentence or of an error; any other text stays as it is."""
    return getattr(text, "template", None) or str(text)


def names(text: object) -> set[str]:
    """Returns the settings that a sentence, or an error, names."""
    return {part[1] for part in _PART.finditer(template_of(text))}


def for_command(text: object) -> str:
    """Returns a sentence, or an error, in one line with settings as flags: `--validation 0.1`."""
    return printable(_PART.sub(_as_flag, template_of(text)))


def for_python(text: object) -> str:
    """Returns a sentence, or an error, in one line with settings as keywords: `strategy="pmap"`."""
    return printable(_PART.sub(_as_keyword, template_of(text)))


def _as_keyword(part: re.Match[str]) -> str:
    return part[0][1:-1].replace(_QUOTE, '"')


def _as_flag(part: re.Match[str]) -> str:
    return f"--{part[1].replace('_', '-')} {(part[2] or '').replace(_QUOTE, '')}".rstrip()
