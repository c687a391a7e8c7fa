"""Every model trains for every task that it serves under every strategy, on 8 devices, as on one
without a strategy.
"""

from typing import Any

import pytest
from one_device import Trained, assert_same, oracle, trained

from jaxdp import models
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.sharding import strategy

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


def create(model: str, task: str, kwargs: dict[str, Any], **settings: Any) -> Setup:
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
    return create_setup(config.replace(**settings))


def without_optimizer(result: Trained) -> tuple[Any, Any]:
    state, sums = result
    return (state.params, state.batch_stats), sums


@pytest.mark.parametrize(("model", "task", "kwargs"), CASES)
def test_every_strategy_trains_as_one_device_does(
    model: str, task: str, kwargs: dict[str, Any]
) -> None:
    # Central takes no global batch norm: test_parity.py has it; tests/workers has those on workers.
    on_devices = {name for name, kind in strategy.names().items() if kind.takes_batches}
    others = on_devices - {"single", "central", "exact"}
    for batch_norm, names in {"global": others, "group:4": {"exact"}}.items():
        single = create(model, task, kwargs, strategy="single", devices=1, batch_norm=batch_norm)
        expected = without_optimizer(oracle(single))
        for name in names:
            run = create(model, task, kwargs, strategy=name, devices=8, batch_norm=batch_norm)
            assert_same(without_optimizer(trained(run)), expected, name)


def test_every_model_is_here() -> None:
    assert {*SMALL, "pyramidnet"} == set(models.names())
