"""Settings that leave the compiled step as it is, and setups that share it."""

from typing import Any

import jax
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.build import setup as setup_lib
from jaxdp.config import ProcessConfig, TrainConfig, fields, settings_with
from jaxdp.models.layers import BatchNorm

SETTINGS: dict[str, Any] = {
    "model": "tiny", "dataset": "digits", "global_batch_size": 32, "steps": 3, "augment": ("none",)
}  # fmt: skip


class Tiny(nnx.Module):
    def __init__(self, num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64 * in_channels, 8, dtype=dtype, rngs=rngs)
        self.norm = BatchNorm(8, dtype=dtype)
        self.head = nnx.Linear(8, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.norm(self.hidden(images.reshape(len(images), -1)))))


def create_tiny(num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs) -> Tiny:
    return Tiny(num_classes, in_channels, dtype, rngs)


@pytest.fixture(autouse=True)
def _tiny(registries: None) -> None:
    models.register("tiny")(create_tiny)


def create(**settings: Any) -> setup_lib.Setup:
    return setup_lib.create_setup(TrainConfig.of(**SETTINGS | settings))


def lowered(**settings: Any) -> str:
    setup = create(**settings)
    state = setup.strategy.restore(setup.create_state())
    batch = next(setup.batches.placed(0))
    return setup.strategy.train_step.lower(state, batch, setup.constants).as_text()


def test_settings_that_are_not_in_the_program_do_not_change_it() -> None:
    others = {
        "learning_rate": 0.3, "lr_scaling": "sqrt", "schedule": "cosine", "warmup_fraction": 0.1,
        "epochs": 7, "seed": 5, "log_every": 3, "eval_every": 2, "checkpoint_every": 9, "keep": 1,
        "run_dir": "elsewhere", "resume": "never", "max_divergences": 2, "max_time": "3h",
        "step_timeout": 5.0, "callbacks": ("json_lines",), "data_workers": 3,
    }  # fmt: skip
    # Steps exclude epochs; processes connect once.
    free = {*settings_with(TrainConfig, program=False)} - fields(ProcessConfig).keys()
    assert others.keys() | {"steps", "early_stop"} == free
    early = {"early_stop": 2, "validation": "0.5"}  # which need validation data; so has the other
    assert lowered(**others, **early, steps=None) == lowered(validation="0.5")


def test_other_settings_need_a_setup_of_their_own() -> None:
    setup = create()
    for changed in ({"optimizer": "adamw"}, {"precision": "bfloat16"}, {"plugins": ("os",)}):
        assert setup.reconfigured(setup.config.replace(**changed)) is None


def test_runs_that_share_a_strategy_share_its_steps() -> None:
    setup = create()
    other = setup.reconfigured(setup.config.replace(learning_rate=0.02))
    assert other is not None
    assert other.strategy is setup.strategy


def test_another_fit_keeps_what_was_filled_in() -> None:
    small = {"base_channels": 2, "levels": 1}
    setup = create(model="unet", dataset="cells", model_kwargs=small)
    assert "loss" in setup.config.filled
    again = setup.reconfigured(setup.config.as_given().replace(steps=5))
    assert again is not None
    program = {*settings_with(TrainConfig, program=True)}
    for name in setup.config.filled & program:
        assert getattr(again.config, name) == getattr(setup.config, name), name
