"""Which networks are there? One file per family; each registers what `create` calls.

model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20, alpha=24)
logits = model(images)
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jaxdp.registry import Registry, check_keywords

_models: Registry[Callable[..., nnx.Module]] = Registry("model", "jaxdp.models")
register = _models.register
names = _models.entries


def create(name: str, *, num_classes: int, in_channels: int, rngs: nnx.Rngs, **kwargs: Any) -> Any:
    """Creates a network that maps images (batch, height, width, in_channels) to float32 logits (batch, num_classes).

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
