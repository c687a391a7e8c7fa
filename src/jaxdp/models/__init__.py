"""Which networks are there? One file per family; each registers what `create` calls.

model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20, alpha=24)
logits = model(images)
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx

from jaxdp.registry import ConfigError, Registry, check_keywords

_models: Registry[Callable[..., nnx.Module]] = Registry("model", "jaxdp.models")
register = _models.register
names = _models.entries


def tasks_of(name: str) -> tuple[str, ...]:
    """Returns the tasks that a network serves, the usual one first."""
    return getattr(_models[name], "tasks", ("classification",))


def create(name: str, *, num_classes: int, in_channels: int, rngs: nnx.Rngs, **kwargs: Any) -> Any:
    """Creates a network that maps images (batch, height, width, in_channels) to float32 logits (batch, num_classes).

    One that answers for every pixel gives (batch, height, width, num_classes) instead.

    Args:
        name: a registered name, e.g. `pyramidnet`.
        rngs: source of the initial weights; the stream `dropout` serves stochastic layers that are called without keys.
        **kwargs: keywords of that network, e.g. `depth`; all take `dtype`, the format of the computation.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that the network does not have.
    """
    factory = _models[name]
    check_keywords("model_kwargs", factory, kwargs, reserved=("num_classes", "in_channels", "rngs"))
    return factory(num_classes=num_classes, in_channels=in_channels, rngs=rngs, **kwargs)


def parameter_count(model: nnx.Module) -> int:
    """Returns how many trainable numbers a model has, without its batch statistics; also of an `nnx.eval_shape` result."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def require(condition: bool, keyword: str, value: object, remedy: str) -> None:
    """Raises ConfigError that names a model's keyword and its value, unless the condition holds."""
    if not condition:
        raise ConfigError("model_kwargs", {keyword: value}, remedy)


def require_count(keyword: str, value: object, minimum: int = 1) -> None:
    """Raises ConfigError unless the value is a whole number of at least `minimum`."""
    counts = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
    require(counts, keyword, value, f"must be a whole number of at least {minimum}")


def require_rate(keyword: str, value: object) -> None:
    """Raises ConfigError unless the value is a probability that is not certainty."""
    is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    require(is_rate, keyword, value, "must be at least 0 and below 1")


def require_known(keyword: str, value: object, known: Iterable[object]) -> None:
    """Raises ConfigError that lists what is known, unless the value is."""
    require(value in known, keyword, value, f"known: {', '.join(map(str, known))}")
