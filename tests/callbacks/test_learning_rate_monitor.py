"""The learning rate that only an Optax object knows, in the rows."""

from typing import Any

import optax
import pytest

import jaxdp

SMALL: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 16},
    "devices": 1,
    "global_batch_size": 160,
    "log_every": 2,
    "progress": False,
    "callbacks": ["learning_rate_monitor"],
}


def test_rows_have_the_learning_rate_of_their_last_step(no_pictures: None) -> None:
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))
    rows = jaxdp.Trainer("cnn", "digits", **SMALL, optimizer=optimizer).fit(steps=5).history
    found = {row["step"]: row["learning_rate"] for row in rows if row["split"] == "train"}
    assert found == pytest.approx({step: float(schedule(step - 1)) for step in (2, 4, 5)})


@pytest.mark.parametrize("optimizer", [{"optimizer": "sgd"}, {"optimizer": optax.sgd(0.1)}], ids=["named", "object"])
def test_an_optimizer_that_exposes_nothing_is_refused_before_the_first_step(optimizer: dict[str, Any], no_pictures: None) -> None:
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL, **optimizer, run_dir="run")
    with pytest.raises(jaxdp.ConfigError, match=r"exposes no hyperparameters; wrap it in optax\.inject_hyperparams"):
        trainer.fit(steps=2)
