"""Parses untrusted YAML and JSON. Problems raise a ValueError of one line, and no text has an
effect on a terminal.
"""

import json
import os
import pathlib
import sys
from typing import Any, TypeGuard

import yaml

from jaxdp.text.messages import one_line, printable

MOST_CHARACTERS = 2**20  # of YAML, which holds only settings
_MOST_VALUES = 100_000
_DEEPEST = 50
_LONGEST_NUMBER = 1000  # characters, because Python neither reads nor prints more than 4,300 digits
_TEXT, _NUMBERS = "tag:yaml.org,2002:str", ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _all_printable(value: Any) -> Any:
    """Returns a JSON value in which each text is printable, including the names in objects."""
    if isinstance(value, dict):
        return {printable(name): _all_printable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_all_printable(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def is_finite(value: object) -> TypeGuard[int | float]:
    """Returns whether a value is a number that a float can hold, because integers in untrusted text
    can have hundreds of digits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(abs(value) <= sys.float_info.max)


def resolved(path: str | pathlib.Path) -> pathlib.Path:
    """Returns an absolute path without links.

    A link that leads to itself, for which `Path.resolve` raises an error, is kept.
    """
    return pathlib.Path(os.path.realpath(path))


def is_count(word: str) -> bool:
    """Returns whether a text is a number without a sign, of a reasonable length. Python converts no
    number of 4,300 digits.
    """
    return word.isascii() and word.isdecimal() and len(word) < 19


def parse_json(text: str) -> Any:
    """Returns the content of a JSON text, with printable texts. NaN and Infinity count as numbers.

    Raises:
        ValueError: if it is not JSON, or is nested too deeply.
    """
    try:
        return _all_printable(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.1 without its numbers to base 60, so that `1:30` is text.

    It refuses text that would take too much time or memory: too many or too deeply nested values,
    and aliases, which repeat values without limit.
    """

    as_text = False  # whether each value stays as written

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._composed += 1
        self._depth += 1
        if self._composed > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")
        if self._depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"it has the alias *{self.peek_event().anchor}; repeat the value")
        node = super().compose_node(parent, index)
        number = node.value if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS else ""
        if len(number) > _LONGEST_NUMBER:
            raise ValueError(f"a number in it has more than {_LONGEST_NUMBER:,} characters")
        self._depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if self.as_text and kind is yaml.ScalarNode:
            return _TEXT
        tag = super().resolve(kind, value, implicit)
        return _TEXT if tag in _NUMBERS and ":" in value else tag


class _TextLoader(_Loader):
    as_text = True


def parse_yaml(text: str, *, as_text: bool = False) -> Any:
    """Returns the content of a YAML text; None for an empty text.

    Args:
        as_text: whether each value is the text as written, e.g. `no` instead of false.

    Raises:
        ValueError: if it is not YAML, has an alias or a tag that makes objects, is nested too
            deeply, is too long, or has a number that is too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, _TextLoader if as_text else _Loader)
    except Exception as error:  # the constructors of tags raise almost anything
        raise ValueError(one_line(error) or type(error).__name__) from error
