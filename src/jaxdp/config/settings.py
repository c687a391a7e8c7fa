"""The base of all settings: groups of them, each setting under the one name that its flag, keyword
and line of YAML have.
"""

import dataclasses
import functools
import types
import typing
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from jaxdp import deprecation
from jaxdp.config.values import ClassWeights, NumberAsText, Range, number
from jaxdp.parsing import is_finite
from jaxdp.registry import ConfigError, nearest, shown

OBJECT = "(object)"  # stands for the name of what a program gave as an object
# At most one of each pair may be set.
EXCLUSIVE = (("global_batch_size", "per_device_batch_size"), ("epochs", "steps"))
_TYPE_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}

Some = TypeVar("Some", bound="Settings")
Mark = TypeVar("Mark")


def displaced_by(names: Collection[str]) -> set[str]:
    """Returns the settings that exclude one of these: the partner of each that is in a pair."""
    return {partner for pair in EXCLUSIVE for name, partner in (pair, pair[::-1]) if name in names}


class Place(NamedTuple):
    """Where a setting is: the group that holds it, None for none, and its field there."""

    group: str | None
    field: "dataclasses.Field[Any]"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Frozen settings, some of them in groups that are `Settings` of their own.

    Whatever its group, a setting has one name: that of its field; of `name` and `kwargs` those of
    the group, e.g. `model` and `model_kwargs`. Where two groups have a name in common, it is that
    of the last one.
    """

    def __post_init__(self) -> None:
        for name, (group, field) in self.places().items():
            if group is None:
                _check_range(name, getattr(self, field.name), field.type)
        for first, second in EXCLUSIVE:
            if getattr(self, first, None) is not None and getattr(self, second, None) is not None:
                remedy = f"cannot be combined with --{first.replace('_', '-')}; give one of them"
                raise ConfigError(second, getattr(self, second), remedy)

    @classmethod
    @functools.cache
    def groups(cls) -> "Mapping[str, type[Settings]]":
        """Returns the type of each group, by the name of its field."""
        types_of: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(cls)}
        return {
            name: kind
            for name, kind in types_of.items()
            if isinstance(kind, type) and issubclass(kind, Settings)
        }

    @classmethod
    @functools.cache
    def places(cls) -> Mapping[str, Place]:
        """Returns where each setting is, by its name."""
        found: dict[str, Place] = {}
        for field in dataclasses.fields(cls):
            if field.name not in cls.groups():
                found[field.name] = Place(None, field)
                continue
            for inner in dataclasses.fields(cls.groups()[field.name]):
                of_group = {"name": field.name, "kwargs": f"{field.name}_kwargs"}
                found[of_group.get(inner.name, inner.name)] = Place(field.name, inner)
        return found

    @classmethod
    def of(cls: type[Some], **settings: Any) -> Some:
        """Creates settings from values by name, as a file or a program has them.

        The others get their defaults.

        Raises:
            ConfigError: for an unknown name, a value of the wrong type, and one that is out of
                range.
        """
        groups: dict[str | None, dict[str, Any]] = defaultdict(dict)
        for name, value in settings.items():
            group, field = cls._place(name, value)
            groups[group][field.name] = convert(name, value, field.type)
        own = groups.pop(None, {})
        made: Any = {name: cls.groups()[str(name)](**values) for name, values in groups.items()}
        return cls(**own, **made)

    def replace(self: Some, **settings: Any) -> Some:
        """Returns these settings with some changed; what is given displaces what it excludes.

        Raises:
            ConfigError: as for `of`.
        """
        displaced = displaced_by([name for name, value in settings.items() if value is not None])
        settings |= dict.fromkeys(displaced - settings.keys())
        changed: dict[str | None, dict[str, Any]] = defaultdict(dict)
        for name, value in settings.items():
            group, field = self._place(name, value)
            changed[group][field.name] = convert(name, value, field.type)
        own: Any = changed.pop(None, {})
        made: Any = {
            str(name): dataclasses.replace(getattr(self, str(name)), **values)
            for name, values in changed.items()
        }
        return dataclasses.replace(self, **own, **made)

    def flat(self) -> dict[str, Any]:
        """Returns the value of each setting by its name."""
        return {
            name: getattr(self if group is None else getattr(self, group), field.name)
            for name, (group, field) in self.places().items()
        }

    def plain(self) -> dict[str, Any]:
        """Returns each setting by its name, in the types that YAML and JSON have.

        `of` reads them.
        """
        return {name: _plain(value) for name, value in self.flat().items()}

    @classmethod
    def _place(cls, name: str, value: object) -> Place:
        if name not in cls.places():
            remedy = f"unknown setting; {nearest(name, list(cls.places()))}"
            raise ConfigError(name, shown(value), deprecation.removal(name) or remedy)
        return cls.places()[name]


def _plain(value: Any) -> Any:
    if hasattr(value, "parse"):
        return str(value)
    return [*value] if isinstance(value, tuple) else value


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Returns a value from YAML or a program as the type of its field.

    Raises:
        ConfigError: if it does not fit.
    """
    kinds = _kinds(annotation)
    parsed = next((kind for kind in kinds if hasattr(kind, "parse")), None)
    if parsed is ClassWeights and isinstance(value, list | tuple):
        value = ",".join(map(str, typing.cast(list[Any], value)))
    if any(
        isinstance(value, mark.kinds) for mark in _marks(annotation, NumberAsText)
    ) and not isinstance(value, bool):
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


def _marks(annotation: Any, kind: type[Mark]) -> list[Mark]:
    """Returns what of this kind stands beside the type in an annotation."""
    return [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, kind)]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of which the annotation allows one."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _origins(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        typing.get_origin(kind) or kind for kind in kinds if typing.get_origin(kind) is not Literal
    )


def _check_type(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ConfigError for a value of the wrong type; the command line has only right ones."""
    if tuple[str, ...] in kinds:
        is_names = isinstance(value, list | tuple) and all(
            isinstance(each, str) for each in typing.cast(list[Any], value)
        )
        if not is_names and not (value is None and types.NoneType in kinds):
            raise ConfigError(name, typing.cast(object, value), "must be a list of names")
        return
    choices = [
        choice
        for kind in kinds
        if typing.get_origin(kind) is Literal
        for choice in typing.get_args(kind)
    ]
    others = [
        kind
        for kind in kinds
        if typing.get_origin(kind) is not Literal and kind is not types.NoneType
    ]
    if choices and value in choices:
        return
    if choices and not others:
        if not (value is None and types.NoneType in kinds):
            raise ConfigError(name, value, nearest(str(value), list(map(str, choices))))
        return
    allowed = _origins(kinds)
    accepted = (*allowed, int) if float in allowed else allowed
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(_TYPE_NAMES.get(kind, "a string") for kind in allowed)
        raise ConfigError(
            name,
            value,
            f"must be {names}, not {_TYPE_NAMES.get(type(value), type(value).__name__)}",
        )


def _check_range(name: str, value: object, annotation: Any) -> None:
    """Raises ConfigError for a number that is not finite, or out of the range that its annotation
    names.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if not is_finite(value):
        raise ConfigError(name, value, "must be a finite number")
    for each in _marks(annotation, Range):
        each.check(name, value)
