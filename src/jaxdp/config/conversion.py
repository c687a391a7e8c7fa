"""Converts values from YAML, from a program or from the command line into the type of a setting."""

import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from jaxdp import deprecation
from jaxdp.config.values import ClassWeights, number, parse_keywords
from jaxdp.parsing import is_finite
from jaxdp.registry import ConfigError, nearest

_TYPE_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}


def convert(name: str, value: Any, annotation: Any, *, numbers: tuple[type, ...] = ()) -> Any:
    """Returns a value from YAML or a program as the type of its setting.

    Args:
        numbers: types of number that become text.

    Raises:
        ConfigError: if it does not fit.
    """
    kinds = _kinds(annotation)
    parsed = next((kind for kind in kinds if hasattr(kind, "parse")), None)
    if parsed is ClassWeights and isinstance(value, list | tuple):
        value = ",".join(map(str, typing.cast(list[Any], value)))
    if isinstance(value, numbers) and not isinstance(value, bool):
        value = str(value)
    if parsed is not None and isinstance(value, str):
        return parsed.parse(value)
    value = number(value) if float in kinds else value
    _check_type(name, value, kinds)
    texts: list[Any] = list(typing.cast(Any, value)) if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, str) and "\0" in each for each in texts):
        raise ConfigError(name, typing.cast(Any, value), "must not contain a NUL character")
    if isinstance(value, int) and not isinstance(value, bool) and not is_finite(value):
        raise ConfigError(name, f"{str(value)[:20]}...", "must be a number with fewer digits")
    if isinstance(value, dict) and not all(
        isinstance(key, str) for key in typing.cast(dict[object, object], value)
    ):
        raise ConfigError(name, typing.cast(object, value), "must be a mapping of names")
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, list) and tuple in _origins(kinds):
        return tuple(typing.cast(list[Any], value))
    return typing.cast(Any, value)


def from_words(name: str, words: Sequence[str], annotation: Any, *, separator: str = "") -> Any:
    """Returns the value of a flag, which `convert` still has to check.

    Args:
        words: what follows the flag.
        separator: what separates names in one word; "" where each word is a name.
    """
    kinds = _kinds(annotation)
    if dict in _origins(kinds):
        return parse_keywords(words)
    if tuple in _origins(kinds):
        if not separator:
            return tuple(words)
        return tuple(part.strip() for word in words for part in word.split(separator))
    (word,) = words
    listed = {str(choice): choice for choice in choices(annotation)}
    if word in listed:
        return listed[word]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                pass
    return word


def takes_many(annotation: Any) -> bool:
    """Returns whether a setting holds several values."""
    return bool({dict, tuple} & {*_origins(_kinds(annotation))})


def metavar(annotation: Any) -> str:
    """Returns what stands in help for a value of a type."""
    if listed := choices(annotation):
        return "{" + ",".join(map(str, listed)) + "}"
    kinds = _origins(_kinds(annotation))
    texts = {int: "INT", float: "FLOAT", dict: "KEY=VALUE"}
    return next((text for kind, text in texts.items() if kind in kinds), "NAME")


def choices(annotation: Any) -> list[Any]:
    """Returns the values that the type of a setting lists."""
    return [
        choice
        for kind in _kinds(annotation)
        if typing.get_origin(kind) is Literal
        for choice in typing.get_args(kind)
    ]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of which the annotation allows one."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _origins(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        typing.get_origin(kind) or kind for kind in kinds if typing.get_origin(kind) is not Literal
    )


def _check_type(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ConfigError for a value of the wrong type."""
    if value is None and types.NoneType in kinds:
        return
    if tuple[str, ...] in kinds:
        is_names = isinstance(value, list | tuple) and all(
            isinstance(each, str) for each in typing.cast(list[Any], value)
        )
        if not is_names:
            raise ConfigError(name, typing.cast(object, value), "must be a list of names")
        return
    listed = choices(typing.Union[kinds])  # noqa: UP007 - of a tuple
    others = [kind for kind in _origins(kinds) if kind is not types.NoneType]
    if listed and value in listed:
        return
    if listed and not others:
        remedy = nearest(str(value), list(map(str, listed)))
        raise ConfigError(name, value, deprecation.removal(str(value), name) or remedy)
    allowed = _origins(kinds)
    accepted = (*allowed, int) if float in allowed else allowed
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(_TYPE_NAMES.get(kind, "a string") for kind in allowed)
        was = _TYPE_NAMES.get(type(value), type(value).__name__)
        raise ConfigError(name, value, f"must be {names}, not {was}")
