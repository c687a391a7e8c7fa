"""The average of replicas, beside Optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp.exchange.average import Average


def replicas(seed: int) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [
        [rng.normal(size=(3, 2)).astype(np.float32), None, np.array(seed, np.int32)]
        for _ in range(4)
    ]


@pytest.mark.parametrize(("learning_rate", "momentum"), [(1.0, 0.0), (0.7, 0.0), (0.7, 0.9)])
def test_it_steps_as_optax_does(learning_rate: float, momentum: float) -> None:
    average = Average(learning_rate, momentum)
    begin = [np.ones((3, 2), np.float32), None, np.array(0, np.int32)]
    average.install(begin, [True, False, False])
    optimizer = optax.sgd(learning_rate, momentum or None, nesterov=momentum > 0)
    params: Any = jnp.asarray(begin[0])
    state = optimizer.init(params)
    for seed in range(3):
        for replica in replicas(seed):
            average.add(replica)
        average.apply(4)
        mean = np.mean(
            [replica[0].astype(np.float64) for replica in replicas(seed)], axis=0
        ).astype(np.float32)
        updates, state = optimizer.update(params - mean, state, params)
        params = optax.apply_updates(params, updates)
        found = average.pull()
        np.testing.assert_allclose(found[0], params, rtol=0, atol=1e-6)
        assert found[1] is None  # another server's
        assert found[2] == seed  # no parameter: the mean itself
        assert [leaf.dtype for leaf in jax.tree.leaves(found)] == [np.float32, np.int32]
