"""Converts values from YAML, from a program or from the command line into the type of a setting."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from jaxdp.config import deprecation
from jaxdp.config.facts import Facts
from jaxdp.config.values import ClassWeights, Columns, number, parse_keywords
from jaxdp.errors import ConfigError
from jaxdp.text.messages import nearest
from jaxdp.text.parsing import is_finite

_TYPE_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}


def convert(facts: Facts, value: Any) -> Any:
    """Returns a value from YAML or a program as the type of its setting.

    Raises:
        ConfigError: if it does not fit the type.
    """
    name, kinds = facts.name, _kinds(facts.annotation)
    parsed = next((kind for kind in kinds if hasattr(kind, "parse")), None)
    if parsed is ClassWeights and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if parsed is Columns and isinstance(value, dict):
        value = ",".join(f"{role}={column}" for role, column in value.items())
    if isinstance(value, facts.numbers) and not isinstance(value, bool):
        value = str(value)
    if parsed is not None and isinstance(value, str):
        return parsed.parse(value)
    if float in kinds:
        value = number(value)
    _check_type(name, value, kinds)
    texts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):
        raise ConfigError(name, value, "must not contain a NUL character")
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise ConfigError(name, value, "must be a mapping of names")
    if isinstance(value, int) and not isinstance(value, bool):
        if not is_finite(value):
            raise ConfigError(name, f"{str(value)[:20]}...", "must be a number with fewer digits")
        return float(value) if float in kinds else value
    return tuple(value) if isinstance(value, list) else value


def from_words(facts: Facts, words: Sequence[str]) -> Any:
    """Returns the value of a setting from the words after its flag, which `convert` must still
    check.
    """
    kinds, separator = _kinds(facts.annotation), facts.separator
    if dict in _origins(kinds):
        return parse_keywords(words)
    if tuple in _origins(kinds):
        if separator:
            return tuple(name.strip() for word in words for name in word.split(separator))
        return tuple(words)
    (word,) = words
    listed = {str(choice): choice for choice in choices(facts.annotation)}
    if word in listed:
        return listed[word]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                pass
    return word


def as_written(facts: Facts, value: Any, text: Any) -> Any:
    """Returns the YAML value of a setting as its flag with the same text would give it.

    YAML 1.1 reads `no` and `on` as false and true, `1e-6` as text, `010` as 8 and `000000` as 0.

    Args:
        text: the value with each scalar as written.
    """
    origins = _origins(_kinds(facts.annotation))
    if isinstance(value, dict):
        return {name: number(each) for name, each in value.items()}
    if tuple in origins and value is not None:
        if isinstance(text, str) and (facts.separator or not text.split()[1:]):
            return from_words(facts, [text])
        return text if isinstance(text, list) else value
    if value is None or isinstance(value, str | float) or not isinstance(text, str):
        return value
    if bool in origins:
        return value
    word = from_words(facts, [text])
    is_number = int in origins and not isinstance(value, bool)  # e.g. 0x10
    return value if is_number and isinstance(word, str) else word


def takes_many(annotation: Any) -> bool:
    """Returns whether a setting holds several values."""
    return bool({dict, tuple} & {*_origins(_kinds(annotation))})


def metavar(annotation: Any) -> str:
    """Returns the placeholder in help for a value of a type."""
    if listed := choices(annotation):
        return "{" + ",".join(map(str, listed)) + "}"
    kinds = _origins(_kinds(annotation))
    texts = {int: "INT", float: "FLOAT", dict: "KEY=VALUE"}
    return next((text for kind, text in texts.items() if kind in kinds), "NAME")


def choices(annotation: Any) -> list[Any]:
    """Returns the values that the type of a setting lists."""
    kinds = [kind for kind in _kinds(annotation) if typing.get_origin(kind) is Literal]
    return [choice for kind in kinds for choice in typing.get_args(kind)]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Returns the types that an annotation allows."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _origins(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    origins = (typing.get_origin(kind) or kind for kind in kinds)
    return tuple(origin for origin in origins if origin is not Literal)


def _check_type(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ConfigError for a value of the wrong type."""
    listed = [choice for kind in kinds for choice in choices(kind)]
    if (value is None and types.NoneType in kinds) or value in listed:
        return
    allowed = _origins(kinds)
    if tuple in allowed:
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise ConfigError(name, value, "must be a list of names")
        return
    if listed and not {*allowed} - {types.NoneType}:
        remedy = deprecation.removal(str(value), name) or nearest(str(value), [*map(str, listed)])
        raise ConfigError(name, value, remedy)
    accepted = (*allowed, int) if float in allowed else allowed
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(_TYPE_NAMES.get(kind, "a string") for kind in allowed)
        was = _TYPE_NAMES.get(type(value), type(value).__name__)
        raise ConfigError(name, value, f"must be {names}, not {was}")
