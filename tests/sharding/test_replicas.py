"""Values of replicas are combined alike in the forms for a CPU and for accelerators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.sharding.replicas import Replicas


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("count", [3, 4])
def test_the_mean_is_that_of_all_replicas(count: int, flat: bool) -> None:
    rng = np.random.default_rng(0)
    values = {
        "a": rng.normal(size=(count, 5)).astype(np.float32),
        "b": rng.normal(size=(count, 2, 3)).astype(np.float32),
    }
    found = jax.vmap(Replicas(axis="data", flat=flat).mean, axis_name="data")(values)
    for name, value in values.items():
        np.testing.assert_allclose(
            found[name], np.broadcast_to(value.mean(0), value.shape), rtol=1e-5, atol=1e-7
        )
    narrow = jax.vmap(Replicas(axis="data", flat=flat).mean, axis_name="data")(
        jnp.ones((count, 2), jnp.bfloat16)
    )
    assert narrow.dtype == jnp.bfloat16  # gradients may move in fewer bytes
