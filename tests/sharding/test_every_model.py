"""Every model trains for every task that it serves under every strategy, on 8 devices, as on one
without a strategy.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxdp import models
from jaxdp.config import TrainConfig
from jaxdp.sharding import strategy
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step
from jaxdp.training import setup

SMALL = {  # test_parity.py has pyramidnet, with every mode of batch norm
    "resnet": {"depth": 8},
    "vgg": {"depth": 11, "width": 8},
    "cnn": {},
    "unet": {"base_channels": 4, "levels": 2},
}
# Further forms of the U-Net: without batch norm, and with outputs that are smaller than the images.
FORMS = [{"padding": "valid", "levels": 1}, {"upsampling": "bilinear"}, {"upsampling": "resize"}]
CASES: list[Any] = [
    pytest.param(
        model,
        task,
        SMALL[model],
        marks=() if (model, task) == ("cnn", "classification") else pytest.mark.slow,
    )
    for model in SMALL
    for task in models.tasks_of(model)
]
CASES += [
    pytest.param("unet", task, SMALL["unet"] | form, marks=pytest.mark.slow)
    for task in models.tasks_of("unet")
    for form in FORMS
]
AUGMENT = {
    "classification": ("flip", "mixup:0.5"),
    "segmentation": ("crop:24", "flip"),
    "regression": ("flip_vertical",),
}


def create(model: str, task: str, kwargs: dict[str, Any], **settings: Any) -> setup.Setup:
    config = TrainConfig.of(
        model=model,
        task=task,
        model_kwargs=kwargs,
        augment=AUGMENT[task],
        image_size="24" if task == "regression" else None,
        batch_norm="global",
        global_batch_size=16,
        steps=2,
        learning_rate=0.01,
        seed=1,
        # A whole set of cells takes longer to draw than to train on for these steps.
        data_placement="host",
    )
    return setup.create_setup(config.replace(**settings))


def trained(run: setup.Setup) -> tuple[Any, Any]:
    state, sums = run.strategy.init(run.create_state), {}
    for batch in run.train_batches(0):
        state, sums = run.strategy.train_step(state, batch, run.constants)
    return run.strategy.gather((state.params, state.batch_stats)), run.strategy.gather(sums)


def oracle(run: setup.Setup) -> tuple[Any, Any]:
    """Plain jit."""
    function = jax.jit(functools.partial(step.train_step, recipe=run.recipe, replicas=Replicas()))
    state, sums = run.create_state(), {}
    for batch in run.train_batches(0):
        state, sums = function(
            state, jax.tree.map(np.asarray, batch), jax.tree.map(np.asarray, run.constants)
        )
    return jax.tree.map(np.asarray, ((state.params, state.batch_stats), sums))


@pytest.mark.parametrize(("model", "task", "kwargs"), CASES)
def test_every_strategy_trains_as_one_device_does(
    model: str, task: str, kwargs: dict[str, Any]
) -> None:
    (params, statistics), sums = oracle(create(model, task, kwargs, strategy="single", devices=1))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))
    # Central takes no global batch norm: test_parity.py has it; tests/workers has those on workers.
    on_devices = {name for name, kind in strategy.names().items() if kind.takes_batches}
    for name in on_devices - {"single", "central"}:
        found, found_sums = trained(create(model, task, kwargs, strategy=name, devices=8))
        for expected, leaf in zip(
            jax.tree.leaves((params, statistics)), jax.tree.leaves(found), strict=True
        ):
            np.testing.assert_allclose(leaf, expected, atol=1e-5, err_msg=name)
        for figure, value in sums.items():
            np.testing.assert_allclose(
                found_sums[figure], value, rtol=1e-4, atol=1e-4, err_msg=f"{name} {figure}"
            )


def test_every_model_is_here() -> None:
    assert {*SMALL, "pyramidnet"} == set(models.names())
