"""A named mesh: rows over space, parameters over data and model. Each trains as one device does, and holds what it promises."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from jaxdp import models, train
from jaxdp.config import TrainConfig
from jaxdp.parallel import mesh, partition
from jaxdp.parallel.replicas import Replicas
from jaxdp.parallel.sharded import Sharded
from jaxdp.parallel.strategy import create_strategy
from jaxdp.registry import ConfigError
from jaxdp.training import loop, optim, step
from jaxdp.training.checkpoint import Checkpoints
from jaxdp.training.setup import Setup, create_setup
from jaxdp.training.state import TrainState, create_train_state

# Widths of 16, 18, 20 and 22, which 8 devices do not divide, and one parameter in two large enough to be cut.
PYRAMIDNET = {"model": "pyramidnet", "model_kwargs": {"depth": 8, "alpha": 6}, "augment": ("shift:1",), "ema_decay": 0.9}
UNET = {
    "model": "unet", "task": "segmentation", "model_kwargs": {"base_channels": 4, "levels": 2}, "augment": ("crop:32", "flip"),
}  # fmt: skip
MESHES = [(None, True), ("data=8", True), ("data=4,model=2", False), ("data=4,model=2", True), ("data=2,model=4", True)]
MESHES += [("data=1,model=8", True)]


def create(**settings: Any) -> Setup:
    config = TrainConfig(
        batch_norm="global", global_batch_size=16, steps=3, learning_rate=0.01, clip_norm=1.0, seed=1, strategy="sharded", devices=8
    )
    return create_setup(dataclasses.replace(config, **settings))


def trained(run: Setup) -> tuple[TrainState, Any]:
    state, sums = run.strategy.init(run.create_state), {}
    for batch in run.train_batches(0):
        state, sums = run.strategy.train_step(state, batch, run.train_data)
    return run.strategy.gather(state), run.strategy.gather(sums)


@functools.cache
def oracle(model: str, batch_norm: str = "global") -> tuple[TrainState, Any]:
    """Plain jit on one device."""
    settings = {"pyramidnet": PYRAMIDNET, "unet": UNET}[model]
    run = create(**settings, batch_norm=batch_norm, strategy="single", devices=1)
    function = jax.jit(functools.partial(step.train_step, recipe=run.recipe, replicas=Replicas()))
    state, sums = run.create_state(), {}
    for batch in run.train_batches(0):
        state, sums = function(state, jax.tree.map(np.asarray, batch), jax.tree.map(np.asarray, run.train_data))
    return jax.tree.map(np.asarray, (state, sums))


def assert_same(found: tuple[TrainState, Any], expected: tuple[TrainState, Any]) -> None:
    for wanted, leaf in zip(jax.tree.leaves(expected[0]), jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_allclose(leaf, wanted, atol=1e-5)
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("axes", "shard_params"), MESHES)
def test_parameters_in_parts_train_as_whole_ones(axes: str | None, shard_params: bool) -> None:
    found = trained(create(**PYRAMIDNET, mesh=axes, shard_params=shard_params))
    assert_same(found, oracle("pyramidnet"))


@pytest.mark.parametrize("optimizer", sorted(optim.OPTIMIZERS))
def test_no_optimizer_sees_the_padding(optimizer: str) -> None:
    """Updates of padded weights are those of the weights, and the padding stays zero."""
    rng = np.random.default_rng(0)
    weights, slopes = rng.standard_normal((2, 3, 3, 18, 22)).astype(np.float32)
    found = partition.place("params/conv/kernel", weights.shape, {"data": 8})
    assert found.stored != found.shape
    config = TrainConfig(optimizer=optimizer, clip_norm=1.0, weight_decay=0.01)
    rule = optim.create_optimizer(config, optax.constant_schedule(0.1))
    params, padded = weights, np.pad(weights, found.padding)
    state, padded_state = rule.init(params), rule.init(padded)
    for _ in range(3):
        updates, state = rule.update(slopes, state, params)
        params = optax.apply_updates(params, updates)
        updates, padded_state = rule.update(np.pad(slopes, found.padding), padded_state, padded)
        padded = optax.apply_updates(padded, updates)
    np.testing.assert_allclose(padded[:, :, :18, :22], params, atol=1e-6)
    assert np.sum(padded != 0) == weights.size


@pytest.mark.parametrize("axes", ["data=2,space=4", "data=4,space=2", "data=1,space=8"])
@pytest.mark.parametrize("data_placement", ["device", "host"])
def test_rows_over_space_train_as_whole_images(axes: str, data_placement: str) -> None:
    found = trained(create(**UNET, mesh=axes, data_placement=data_placement))
    assert_same(found, oracle("unet"))
