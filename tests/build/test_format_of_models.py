"""The layers of any model compute in the format of the run."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jaxtyping import Array

from jaxdp.build.inputs import Inputs
from jaxdp.build.model import create_model
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.step.state import call_model


class Network(nnx.Module):
    """A layer without a format, a norm, and a layer with its own."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 2, dtype=jnp.float32, rngs=rngs)

    def __call__(self, x: Array) -> dict[str, Array]:
        hidden = self.norm(self.first(x))
        return {"hidden": hidden, "outputs": self.last(hidden)}


def created(model: nnx.Module, dtype: Any) -> Any:
    return create_model(TrainConfig(), None, Inputs(model=model), rngs=nnx.Rngs(0), dtype=dtype)


def test_layers_without_a_format_get_that_of_the_run() -> None:
    given = Network(nnx.Rngs(0))
    model = created(given, jnp.bfloat16)
    assert (model.first.dtype, model.norm.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert model.last.dtype == jnp.float32
    assert given.first.dtype is None
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {
        jnp.dtype("float32")
    }
    model.eval()  # batch norm would change its statistics
    inner = jax.eval_shape(lambda: model(jnp.ones((3, 4))))
    assert inner["hidden"].dtype == jnp.bfloat16
    # Losses are computed in float32.
    outputs = jax.eval_shape(lambda: call_model(model, {"images": jnp.ones((3, 4))}))
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}


def test_float32_changes_nothing() -> None:
    assert created(Network(nnx.Rngs(0)), jnp.float32).first.dtype is None


def test_a_model_without_such_a_layer_is_refused() -> None:
    model = nnx.Linear(4, 2, dtype=jnp.float32, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="no layer of the model has dtype=None"):
        created(model, jnp.bfloat16)
