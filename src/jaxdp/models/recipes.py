"""Remembers by which name and keywords a registered model was constructed, so that a run can
construct it again.
"""

import copy
import functools
import inspect
import weakref
from collections.abc import Mapping
from typing import Any

from flax import nnx

# Keywords that a run decides, not the model's own configuration.
_OF_THE_RUN = ("rngs", "dtype", "num_classes", "in_channels")

# By the identity of a model, outside of it: an attribute would become part of its graph definition.
# None where a keyword has no form in YAML. A finalizer removes the entry with the model.
_recipes: dict[int, tuple[str, dict[str, Any]] | None] = {}


def remember(name: str, model_class: type[Any]) -> None:
    """Makes a class note `name` and the given keywords of each instance.

    Instances of its subclasses are left out.

    Args:
        name: the name under which the class is registered.
        model_class: the class; its `__init__` is wrapped in place.
    """
    initialize = model_class.__init__
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        if type(self) is model_class:
            if id(self) not in _recipes:
                weakref.finalize(self, _recipes.pop, id(self), None).atexit = False
            keywords = _keywords(signature, signature.bind(self, *args, **kwargs).arguments)
            _recipes[id(self)] = (name, keywords) if _is_plain(list(keywords.values())) else None

    model_class.__init__ = remembering


def recipe_of(model: nnx.Module) -> tuple[str, dict[str, Any]] | None:
    """Returns the registered name of a model's class and the keywords it was constructed with, for
    `models.create`.

    Keywords that were left to their defaults are left out, and so are `rngs`, `dtype`,
    `num_classes` and `in_channels`, which a run decides.

    Args:
        model: a model as its constructor made it; Flax's copies of it (`nnx.clone`, `nnx.merge`)
            have no recipe.

    Returns:
        Name and keywords; None if the class is not registered, or a keyword is no plain YAML value:
        a number, a string, true, false, null, or a list of these.
    """
    return copy.deepcopy(_recipes.get(id(model)))


def _keywords(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for position, (name, value) in enumerate(arguments.items()):
        if position == 0 or name in _OF_THE_RUN:  # the first one is the instance
            continue
        found |= (
            value
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            else {name: value}
        )
    return {name: value for name, value in found.items() if name not in _OF_THE_RUN}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)
