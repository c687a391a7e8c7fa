"""A step that is not finite ends a run, or is skipped, as asked.

What stays on disk is finite.
"""

import dataclasses
import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import arrays, rows, run_train, summary

import jaxdp
from jaxdp.config import TrainConfig
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess
from jaxdp.data.sources import open_dataset
from jaxdp.step import metrics, step
from jaxdp.step.state import TrainState
from jaxdp.text.flags import for_command
from jaxdp.training import loop, reader
from jaxdp.training import summary as summary_lib
from jaxdp.training.counters import Counters

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --run-dir run"
    " --log-every 1"
)
TOO_FAST = f"{FLAGS} --optimizer sgd --schedule constant --learning-rate 1e30 --steps 16"


def example_of_step(number: int) -> int:
    """An example that a run of FLAGS sees in this step, and in no other of its first 8."""
    order = pipeline.TrainingOrder(
        len(open_dataset("digits").train), 160, TrainConfig().seed, total_steps=8
    )
    return int(order[number - 1][0])


def poison(monkeypatch: pytest.MonkeyPatch, example: int) -> dict[str, bool]:
    """Makes one training example NaN; returns a switch that is read when a step is compiled."""
    clean, switch = Preprocess.__call__, {"on": True}

    def preprocess(self: Preprocess, batch: Any, keys_of: Any, *rest: Any) -> Any:
        prepared = dict(clean(self, batch, keys_of, *rest))
        if switch["on"] and keys_of is not None:
            bad = (batch["indices"] == example)[:, None, None, None]
            prepared["images"] = jnp.where(bad, jnp.nan, prepared["images"])
        return prepared

    monkeypatch.setattr(Preprocess, "__call__", preprocess)
    return switch


def newest_arrays() -> tuple[int, dict[str, np.ndarray]]:
    step = max(int(path.name) for path in pathlib.Path("run", "checkpoints").iterdir())
    return step, arrays("run", step)


def assert_finite(found: dict[str, np.ndarray]) -> None:
    assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.parametrize("rate", ["1e30", "1e38"])
@pytest.mark.fault(
    "learning rate of 1e30 or more, --on-divergence stop", "exit code 3; checkpoints finite", None
)
def test_stop_names_step_loss_and_norm_and_keeps_what_is_finite(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(f"{TOO_FAST} --learning-rate {rate} --checkpoint-every 1") == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("diverged")]
    done = summary()
    assert done["status"] == "diverged"
    assert (
        f"the loss of step {done['steps']} is " in line and "its gradient norm " in line
    ) or "the weights are not" in line
    steps = [int(path.name) for path in pathlib.Path("run", "checkpoints").iterdir()]
    assert all(number < done["steps"] for number in steps)
    assert line.endswith(
        f"the last checkpoint is of step {max(steps)}" if steps else "there is no checkpoint"
    )
    if steps:
        assert_finite(newest_arrays()[1])
    assert all(
        np.isfinite(row["loss"]) and np.isfinite(row["gradient_norm"])
        for row in rows(split="train")
    )


@pytest.mark.fault("infinite gradient, finite loss", "exit code 3", None)
def test_an_infinite_gradient_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step.optax.tree, "norm", lambda tree: jnp.asarray(jnp.inf))
    assert run_train(f"{FLAGS} --steps 8") == 3
    line = capsys.readouterr().err
    assert "its gradient norm inf" in line
    assert "is nan" not in line
    assert summary()["steps"] == 1


def test_rows_show_the_mean_gradient_norm() -> None:
    assert run_train(f"{FLAGS} --steps 4") == 0
    norms = [row["gradient_norm"] for row in rows(split="train")]
    assert len(set(norms)) == 4
    assert all(norm > 0 for norm in norms)
    assert run_train(f"{FLAGS} --steps 4 --log-every 2 --run-dir other") == 0
    fewer = rows("other", split="train")
    assert [row["gradient_norm"] for row in fewer] == pytest.approx(
        [np.mean(norms[:2]), np.mean(norms[2:])]
    )
    assert "skipped_updates" not in fewer[0]
    assert summary()["skipped_updates"] == 0


@pytest.mark.parametrize(
    ("name", "count"), [("single", 1), ("pmap", 4), ("shard_map", 4), ("sharded", 4)]
)
def test_a_skipped_update_leaves_everything_as_it_was(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setup_of(on_divergence: str) -> Any:
        settings = {
            "strategy": name, "devices": count, "global_batch_size": 16, "batch_norm": "group:2",
            "ema_decay": 0.9, "schedule": "constant", "augment": ["shift:1"], "steps": 3, "seed": 3,
            "data_placement": "host", "model_kwargs": {"width": 4, "hidden": 16},
        }  # fmt: skip
        return jaxdp.Trainer("cnn", "digits", on_divergence=on_divergence, **settings).setup

    def run(setup: Any, state: TrainState, batches: list[Any]) -> list[tuple[TrainState, Any]]:
        strategy, found = setup.strategy, []
        placed = strategy.restore(state)
        for batch in batches:
            placed, sums = strategy.train_step(placed, batch, setup.constants)
            found.append((strategy.gather(placed), strategy.gather(sums)))
        return found

    def weights(state: TrainState) -> Any:
        return (state.params, state.batch_stats, state.opt_state, state.ema)

    stopping, skipping = setup_of("stop"), setup_of("skip")
    batches = list(stopping.batches.placed(0))
    ((plain, plain_sums),) = run(stopping, stopping.create_state(), batches[:1])
    assert "skipped_updates" not in plain_sums
    poison(monkeypatch, int(np.ravel(batches[1]["indices"])[5]))
    found = run(skipping, skipping.create_state(), batches)
    assert [float(sums["skipped_updates"]) for _, sums in found] == [0, 1, 0]
    assert [float(sums["updates"]) for _, sums in found] == [1, 1, 1]
    assert [int(state.step) for state, _ in found] == [1, 2, 3]
    (first, _), (second, _), (third, _) = found
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), weights(first), weights(plain)
    )
    jax.tree.map(np.testing.assert_array_equal, weights(second), weights(first))
    # The next step is that of a run whose state never saw the bad batch, with random choices of its
    # own number.
    ((expected, _),) = run(skipping, dataclasses.replace(first, step=np.int32(2)), batches[2:])
    jax.tree.map(np.testing.assert_array_equal, weights(third), weights(expected))
    assert any(
        np.any(a != b)
        for a, b in zip(jax.tree.leaves(third.params), jax.tree.leaves(second.params), strict=True)
    )


@pytest.mark.slow
@pytest.mark.fault("NaN image, --on-divergence skip", "skipped once, counted once, done", 0)
def test_a_run_skips_one_bad_batch_and_counts_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(monkeypatch, example_of_step(3))
    skip = "--on-divergence skip --max-divergences 2 --schedule cosine"
    flags = f"{FLAGS} {skip} --devices 4 --checkpoint-every 4 --log-every 2"
    assert run_train(f"{flags} --steps 8") == 0
    assert "warning: 1 updates were skipped" in capsys.readouterr().err
    done = summary()
    assert (done["status"], done["skipped_updates"]) == ("done", 1)
    assert done["metrics"]["train"]["examples"] == 7 * 160
    assert [(row["step"], row["skipped_updates"], row["examples"]) for row in rows(split="train")] == [
        (2, 0, 320), (4, 1, 160), (6, 0, 320), (8, 0, 320),
    ]  # fmt: skip
    assert all(
        np.isfinite(row["loss"]) and 0 < row["gradient_norm"] < 1e3 for row in rows(split="train")
    )
    assert_finite(newest_arrays()[1])
    # A run continued knows what was skipped before. Its second epoch meets the example again.
    assert run_train(f"{flags} --steps 16") == 0
    assert summary()["skipped_updates"] in (1, 2)  # an epoch leaves some examples out
    assert summary()["skipped_updates"] == sum(
        row["skipped_updates"] for row in rows(split="train")
    )


def test_a_row_waits_for_an_update_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, example_of_step(3))
    assert run_train(f"{FLAGS} --on-divergence skip --steps 5") == 0
    assert [(row["step"], row["skipped_updates"]) for row in rows(split="train")] == [
        (1, 0),
        (2, 0),
        (4, 1),
        (5, 0),
    ]


@pytest.mark.fault(
    "every update non-finite, --on-divergence skip", "exit code 3 after the stated number", None
)
def test_too_many_in_a_row_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--on-divergence skip --max-divergences 3 --checkpoint-every 1"
    assert run_train(f"{TOO_FAST} {flags}") == 3
    assert (
        "; 3 updates in a row were skipped; the last checkpoint is of step"
        in capsys.readouterr().err
    )
    done = summary()
    assert (done["status"], done["skipped_updates"]) == ("diverged", 3)
    assert_finite(newest_arrays()[1])
    assert newest_arrays()[0] < done["steps"]


def test_a_run_of_version_0_2_that_went_back_says_that_its_rate_is_whole_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        position = Counters.position
        patch.setattr(Counters, "position", lambda self: position(self) | {"rollbacks": 2})
        assert run_train(f"{FLAGS} --steps 1") == 0
    assert run_train(f"{FLAGS} --steps 2") == 0
    said = capsys.readouterr().err
    assert "warning: it went back 2 times, and each time halved its learning rate" in said


def test_an_evaluation_that_is_not_finite_is_no_row() -> None:
    with pytest.raises(reader.Diverged, match="after the update of step 7 the test loss is inf"):
        loop.check_evaluation(7, "test", {"loss": float("inf")})
    loop.check_evaluation(
        7, "test", {"loss": 0.5, "iou/rare": float("nan")}
    )  # a class that is nowhere


@pytest.mark.fault("evaluation that is not finite, finite loss", "exit code 3, names it", None)
def test_an_evaluation_that_is_not_finite_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compute(*args: Any) -> dict[str, float]:
        wrong = {"loss": float("nan"), "top5_accuracy": float("inf")}
        return metrics.compute(*args) | wrong

    monkeypatch.setattr(loop, "metrics", types.SimpleNamespace(compute=compute))
    assert run_train(f"{FLAGS} --steps 2 --validation 0.2") == 3
    expected = (
        "after the update of step 2 the validation loss is nan (also top5_accuracy), though the"
        " training loss is finite"
    )
    assert f"diverged: {expected}; " in capsys.readouterr().err
    with pytest.raises(
        reader.Diverged, match='bfloat16 may be why: try precision="float32"'
    ) as caught:
        loop.check_evaluation(7, "validation", {"loss": float("inf")}, "bfloat16")
    reason = for_command(caught.value.reason)
    assert "; bfloat16 may be why: try --precision float32" in reason


def test_a_result_that_is_not_finite_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test data of the result are evaluated after the last check."""
    monkeypatch.setattr(
        summary_lib,
        "metrics",
        types.SimpleNamespace(
            compute=lambda *args: metrics.compute(*args) | {"loss": float("nan")}
        ),
    )
    assert run_train(f"{FLAGS} --steps 1") == 0
    assert "warning: the test loss of the result is nan\n" in capsys.readouterr().err
