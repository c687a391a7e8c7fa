"""Trains a few steps under a strategy, and the same steps with plain jit on one device."""

import functools
from typing import Any

import jax
import numpy as np

from jaxdp.build.setup import Setup
from jaxdp.sharding.communication import Communication
from jaxdp.step import step
from jaxdp.step.state import TrainState

Trained = tuple[TrainState, Any]  # the state, and the metric sums of the last step


def trained(run: Setup) -> Trained:
    state, sums = run.strategy.init(run.create_state), {}
    for batch in run.batches.placed(0):
        state, sums = run.strategy.train_step(state, batch, run.constants)
    return run.strategy.gather(state), run.strategy.gather(sums)


def oracle(run: Setup) -> Trained:
    """Plain jit, without a strategy.

    Args:
        run: under the strategy `single`.
    """
    function = jax.jit(
        functools.partial(step.train_step, step_config=run.step_config, replicas=Communication())
    )
    state, sums = run.create_state(), {}
    for batch in run.batches.placed(0):
        state, sums = function(*jax.tree.map(np.asarray, (state, batch, run.constants)))
    return jax.tree.map(np.asarray, (state, sums))


def assert_same(found: tuple[Any, Any], expected: tuple[Any, Any], what: str = "") -> None:
    for wanted, leaf in zip(jax.tree.leaves(expected[0]), jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_allclose(leaf, wanted, atol=1e-5, err_msg=what)
    for name, value in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], value, rtol=1e-4, atol=1e-4, err_msg=f"{what} {name}"
        )
