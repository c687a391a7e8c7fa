"""What a model says in bfloat16 is what it says in float32, but for rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models


@pytest.mark.half_precision
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("cnn", {}),
        ("pyramidnet", {"depth": 8, "alpha": 6}),
        ("resnet", {"depth": 8}),
        ("unet", {"base_channels": 4, "levels": 2}),
    ],
)
def test_evaluation_in_bfloat16_is_that_in_float32(name: str, kwargs: dict) -> None:
    """XLA:CPU of jaxlib 0.11 and 0.12 gives NaN without the flag that runtime/platform.py sets."""
    images = jnp.asarray(np.random.default_rng(0).standard_normal((16, 16, 16, 3), np.float32))
    outputs = []
    for dtype in (jnp.float32, jnp.bfloat16):
        model = models.create(
            name, num_classes=10, in_channels=3, rngs=nnx.Rngs(0), dtype=dtype, **kwargs
        )
        model.eval()
        graph, state = nnx.split(model)
        outputs.append(
            np.asarray(jax.jit(lambda state, graph=graph: nnx.merge(graph, state)(images))(state))
        )
    np.testing.assert_allclose(outputs[1], outputs[0], atol=0.05 * np.abs(outputs[0]).max())
