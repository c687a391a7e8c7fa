"""Registers models, creates them by name, and checks their keywords."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import jax
from flax import nnx

from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import Registry, check_keywords
from jaxdp.text.parsing import is_finite

# More than any network has, and few enough that its shapes are found quickly.
MOST_CHANNELS, MOST_LAYERS = 2**16, 2000
# Parameters of a constructor that a run sets. They are not part of the model's own configuration.
_OF_THE_RUN = ("rngs", "dtype", "num_classes", "in_channels")

Model = TypeVar("Model", bound=Callable[..., Any])

_models: Registry[Callable[..., nnx.Module]] = Registry("model", "jaxdp.models")
names = _models.entries
factory = _models.__getitem__


def register(name: str) -> Callable[[Model], Model]:
    """Registers a model class, or a function that returns a model, under a name, and returns it.

    Args:
        name: the name for `--model` and `create`.

    Raises:
        ConfigError: if another model has that name.
    """
    add = _models.register(name)

    def register_model(model: Model) -> Model:
        made: Any = add(model)
        if inspect.isclass(made):
            _record_arguments(name, made)
        return model

    return register_model


def _record_arguments(name: str, model_class: type[Any]) -> None:
    """Makes a class record its name and the given keywords in the attribute `init_kwargs` of its
    instances, but not of instances of its subclasses.
    """
    initialize: Any = model_class.__init__

    @functools.wraps(initialize)
    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        keywords = {key: value for key, value in kwargs.items() if key not in _OF_THE_RUN}
        if type(self) is model_class and not args and _is_plain(list(keywords.values())):
            # A static part of the graph definition, which has to be hashable.
            self.init_kwargs = json.dumps([name, keywords])

    model_class.__init__ = recording


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, cast(list[object], value)))
    return value is None or type(value) in (bool, int, float, str)


def constructor_of(model: nnx.Module) -> tuple[str, dict[str, Any]] | None:
    """Returns the registered name of a model's class and the keywords it was constructed with, for
    `models.create`.

    Keywords that were not given are left out, and so are `rngs`, `dtype`, `num_classes` and
    `in_channels`, which a run sets.

    Args:
        model: a model as its constructor made it, or a copy of it.

    Returns:
        Name and keywords; None if the class is not registered, an argument was given without its
        keyword, or the value of a keyword is not a plain YAML value (a number, a string, true,
        false, null, or a list of these).
    """
    recorded = getattr(model, "init_kwargs", None)
    if recorded is None:
        return None
    name, keywords = json.loads(recorded)
    return name, keywords


def tasks_of(name: str) -> tuple[str, ...]:
    """Returns the tasks that a model supports, the usual task first.

    Raises:
        ConfigError: for an unknown name.
    """
    return getattr(_models[name], "tasks", ("classification",))


def create(
    name: str | Callable[..., Any],
    *,
    num_classes: int,
    in_channels: int,
    rngs: nnx.Rngs,
    **kwargs: Any,
) -> Any:
    """Creates a model that maps images (batch, height, width, in_channels) to float32 logits
    (batch, num_classes).

    A model with an output per pixel returns (batch, height, width, num_classes) instead.

    Args:
        name: a registered name, e.g. `pyramidnet`, or a class or function that makes a model.
        num_classes: number of classes, or of output channels in regression.
        in_channels: number of channels of the images.
        rngs: source of the initial weights; the stream `dropout` serves stochastic layers that are
            called without keys.
        **kwargs: keywords of the model, e.g. `depth`. All models accept `dtype`, the format of the
            computation.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that the model does not accept.
    """
    create: Any = factory(name) if isinstance(name, str) else name
    check_keywords("model_kwargs", create, kwargs, reserved=("num_classes", "in_channels", "rngs"))
    return create(num_classes=num_classes, in_channels=in_channels, rngs=rngs, **kwargs)


def parameter_count(model: nnx.Module) -> int:
    """Returns the number of trainable parameters of a model, without batch statistics.

    The model may be a result of `nnx.eval_shape`.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def require(condition: bool, keyword: str, value: object, remedy: str) -> None:
    """Raises ConfigError that names a model's keyword and its value, unless the condition holds."""
    if not condition:
        raise ConfigError("model_kwargs", {keyword: value}, remedy)


def require_count(keyword: str, value: object, maximum: int = MOST_CHANNELS) -> None:
    """Raises ConfigError unless the value is a whole number from 1 to `maximum`."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else 0
    require(number >= 1, keyword, value, "must be a whole number of at least 1")
    require(number <= maximum, keyword, value, f"must be at most {maximum}")


def require_rate(keyword: str, value: object) -> None:
    """Raises ConfigError unless the value is a probability of at least 0 and below 1."""
    require(is_finite(value) and 0 <= value < 1, keyword, value, "must be at least 0 and below 1")


def require_known(keyword: str, value: object, known: Iterable[object]) -> None:
    """Raises ConfigError that lists the known values, unless the value is one of them."""
    require(value in known, keyword, value, f"known: {', '.join(map(str, known))}")
