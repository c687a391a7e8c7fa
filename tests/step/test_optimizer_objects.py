"""Optimizers given as objects get the loss if they ask for it; those that need more are one line."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from example_files import refused

import jaxdp

SMALL: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 8},
    "global_batch_size": 64,
    "steps": 4,
    "log_every": 1,
    "progress": False,
}


def recorder() -> optax.GradientTransformationExtraArgs:
    """SGD that keeps the values that it is given."""

    def init(params: Any) -> Any:
        return {"values": jnp.zeros(4), "count": jnp.zeros((), jnp.int32)}

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        values = state["values"].at[state["count"]].set(extra["value"])
        return jax.tree.map(lambda grad: -0.05 * grad, updates), {
            "values": values,
            "count": state["count"] + 1,
        }

    return optax.GradientTransformationExtraArgs(init, update)


@pytest.mark.parametrize("settings", [{"devices": 1}, {"devices": 4}, {"accumulate_steps": 2}])
def test_the_value_is_the_loss_of_the_global_batch(settings: dict[str, Any]) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), recorder())
    run = jaxdp.Trainer("cnn", "digits", optimizer=optimizer, **SMALL, **settings).fit()
    losses = [row["loss"] for row in run.history if row["split"] == "train"]
    assert len(losses) == 4
    np.testing.assert_allclose(run.state.opt_state[1]["values"], losses, rtol=1e-5)


def test_reduce_on_plateau_reduces_by_the_loss() -> None:
    # No loss is as much smaller as it asks for: the scale is halved after every second step.
    plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.9)
    run = jaxdp.Trainer(
        "cnn", "digits", optimizer=optax.chain(optax.sgd(0.01), plateau), devices=2, **SMALL
    ).fit()
    assert float(run.state.opt_state[1].scale) == pytest.approx(0.5**3)


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "optimizer=lookahead: .*'fast'"),
        (optax.lbfgs(), "optimizer=chain: .*scale_by_zoom_linesearch.* 'value_fn'"),
        (
            optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True),
            "optimizer=sam: .*grad_fn must be provided",
        ),
        (optax.contrib.sophia(0.1), "optimizer=.*obj_fn must be provided"),
        (
            optax.GradientTransformation(lambda params: {}["none"], optax.identity().update),
            r"optimizer=\(an object\): .*KeyError: 'none'",
        ),
        (3, "optimizer=int: must be the name of an optimizer, or an Optax transformation"),
    ],
)
def test_what_needs_more_is_one_line(optimizer: Any, named: str) -> None:
    with refused(named):
        jaxdp.Trainer("cnn", "digits", optimizer=optimizer, devices=1, **SMALL).fit()


@pytest.mark.parametrize(
    ("optimizer", "warned"),
    [
        (optax.lbfgs(0.1, linesearch=None), ""),
        (optax.MultiSteps(optax.sgd(0.1), 2), ""),
        (optax.contrib.momo(), ""),
        (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "the optimizer SAM keeps the weights"),
        (optax.contrib.schedule_free_sgd(), "the optimizer ScheduleFree keeps the weights"),
    ],
)
def test_others_train(optimizer: Any, warned: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = jaxdp.Trainer("cnn", "digits", optimizer=optimizer, devices=1, **SMALL).fit()
    assert run.status == "done"
    lines = [line for line in capsys.readouterr().err.splitlines() if "optimizer" in line]
    assert len(lines) == bool(warned)
    assert all(line.startswith(f"warning: {warned}") for line in lines)
