"""A step that is not finite ends a run, is skipped, or is rolled back, as asked.

What stays on disk is finite.
"""

import dataclasses
import functools
import json
import pathlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdp import models, tasks, train
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.config import BatchNormMode, TrainConfig
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess, create_preprocess
from jaxdp.data.sources import open_dataset
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import read_lines
from jaxdp.sharding.strategy import Strategy, create_strategy
from jaxdp.step import metrics, step
from jaxdp.step.state import Constants, TrainState, create_train_state
from jaxdp.training import loop, reader, setup
from jaxdp.training import summary as summary_lib

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --run-dir run"
    " --log-every 1".split()
)
TOO_FAST = [*FLAGS, *"--optimizer sgd --schedule constant --learning-rate 1e30 --steps 16".split()]
CONSTANTS = Constants.create([0.1], seed=3)


def example_of_step(number: int) -> int:
    """An example that a run of FLAGS sees in this step, and in no other of its first 8."""
    order = pipeline.TrainingOrder(
        len(open_dataset("digits").train), 160, TrainConfig().seed, total_steps=8
    )
    return int(order[number - 1][0])


def poison(monkeypatch: pytest.MonkeyPatch, example: int) -> dict[str, bool]:
    """Makes one training example NaN; returns a switch that is read when a step is compiled."""
    clean, switch = Preprocess.__call__, {"on": True}

    def preprocess(self: Preprocess, batch: Any, keys_of: Any) -> Any:
        prepared = dict(clean(self, batch, keys_of))
        if switch["on"] and keys_of is not None:
            bad = (batch["indices"] == example)[:, None, None, None]
            prepared["images"] = jnp.where(bad, jnp.nan, prepared["images"])
        return prepared

    monkeypatch.setattr(Preprocess, "__call__", preprocess)
    return switch


def summary() -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(pathlib.Path("run", "summary.json").read_text(), parse_constant=refuse)


def rows(split: str = "train") -> list[dict[str, Any]]:
    return [
        row for row in read_lines(pathlib.Path("run", "metrics.jsonl")) if row["split"] == split
    ]


def arrays(run_dir: str = "run", number: int | None = None) -> tuple[int, dict[str, np.ndarray]]:
    """The newest checkpoint's, or that of a step."""
    checkpoints = SavedCheckpoints(
        pathlib.Path(run_dir, "checkpoints"), best_metric=("accuracy", True)
    )
    found = max(checkpoints.steps()) if number is None else number
    return found, checkpoints.arrays(found)


def assert_finite(found: dict[str, np.ndarray]) -> None:
    assert all(np.isfinite(array).all() for array in found.values())


@pytest.mark.parametrize("rate", ["1e30", "1e38"])
@pytest.mark.fault(
    "learning rate of 1e30 or more, --on-divergence stop", "exit code 3; checkpoints finite", None
)
def test_stop_names_step_loss_and_norm_and_keeps_what_is_finite(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*TOO_FAST, "--learning-rate", rate, "--checkpoint-every", "1"]) == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("diverged")]
    done = summary()
    assert done["status"] == "diverged"
    assert (
        f"the loss of step {done['steps']} is " in line and "its gradient norm " in line
    ) or "the weights are not" in line
    steps = [int(path.name) for path in pathlib.Path("run", "checkpoints").iterdir()]
    assert all(number < done["steps"] for number in steps)
    assert line.endswith(
        f"the last checkpoint is that of step {max(steps)}" if steps else "there is no checkpoint"
    )
    if steps:
        assert_finite(arrays()[1])
    assert all(np.isfinite(row["loss"]) and np.isfinite(row["gradient_norm"]) for row in rows())


@pytest.mark.fault("infinite gradient, finite loss", "exit code 3", None)
def test_an_infinite_gradient_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step.optax.tree, "norm", lambda tree: jnp.asarray(jnp.inf))
    assert train.main([*FLAGS, "--steps", "8"]) == 3
    line = capsys.readouterr().err
    assert "its gradient norm inf" in line
    assert "is nan" not in line
    assert summary()["steps"] == 1


def test_rows_show_the_mean_gradient_norm() -> None:
    assert train.main([*FLAGS, "--steps", "4"]) == 0
    norms = [row["gradient_norm"] for row in rows()]
    assert len(set(norms)) == 4
    assert all(norm > 0 for norm in norms)
    assert train.main([*FLAGS, "--steps", "4", "--log-every", "2", "--run-dir", "other"]) == 0
    fewer = [
        row for row in read_lines(pathlib.Path("other", "metrics.jsonl")) if row["split"] == "train"
    ]
    assert [row["gradient_norm"] for row in fewer] == pytest.approx(
        [np.mean(norms[:2]), np.mean(norms[2:])]
    )
    assert "skipped_updates" not in fewer[0]
    assert (summary()["skipped_updates"], summary()["rollbacks"]) == (0, 0)


@pytest.mark.parametrize(
    ("name", "count"), [("single", 1), ("pmap", 4), ("shard_map", 4), ("sharded", 4)]
)
def test_a_skipped_update_leaves_everything_as_it_was(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset("digits")
    order = pipeline.TrainingOrder(len(dataset.train), 16, seed=3, total_steps=3)
    batches = [pipeline.load(dataset.train, order[number]) for number in range(3)]
    preprocess = create_preprocess(
        ["shift:1"], mean=dataset.mean, std=dataset.std, per_image=False, dense=False
    )
    task = tasks.create("classification", num_classes=10)
    recipe = step.Recipe(
        task,
        functools.partial(optax.sgd, momentum=0.9),
        preprocess,
        batch_norm=BatchNormMode.parse("group:2"),
        ema_decay=0.9,
        on_divergence="skip",
    )

    def create_state() -> TrainState:
        model = models.create(
            "cnn", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), width=4, hidden=16
        )
        return create_train_state(
            model, optax.sgd(optax.constant_schedule(0.1), 0.9), with_ema=True
        )

    def run(
        strategy: Strategy, state: TrainState, batches: list[Any]
    ) -> list[tuple[TrainState, Any]]:
        placed, found = strategy.restore(state), []
        for batch in batches:
            placed, sums = strategy.train_step(placed, strategy.shard_batch(batch), CONSTANTS)
            found.append((strategy.gather(placed), strategy.gather(sums)))
        return found

    def weights(state: TrainState) -> Any:
        return (state.params, state.batch_stats, state.opt_state, state.ema)

    stopping = create_strategy(
        name, dataclasses.replace(recipe, on_divergence="stop"), jax.devices()[:count]
    )
    ((plain, plain_sums),) = run(stopping, create_state(), batches[:1])
    assert "skipped_updates" not in plain_sums
    poison(monkeypatch, int(batches[1]["indices"][5]))
    skipping = create_strategy(name, recipe, jax.devices()[:count])
    found = run(skipping, create_state(), batches)
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
    flags = [*FLAGS, "--on-divergence", "skip", "--devices", "4", "--checkpoint-every", "4"]
    flags += ["--max-divergences", "2", "--schedule", "cosine", "--log-every", "2"]
    assert train.main([*flags, "--steps", "8"]) == 0
    assert "warning: 1 updates were skipped" in capsys.readouterr().err
    done = summary()
    assert (done["status"], done["skipped_updates"], done["rollbacks"]) == ("done", 1, 0)
    assert done["metrics"]["train"]["examples"] == 7 * 160
    assert [(row["step"], row["skipped_updates"], row["examples"]) for row in rows()] == [
        (2, 0, 320), (4, 1, 160), (6, 0, 320), (8, 0, 320),
    ]  # fmt: skip
    assert all(np.isfinite(row["loss"]) and 0 < row["gradient_norm"] < 1e3 for row in rows())
    assert_finite(arrays()[1])
    # A run continued knows what was skipped before. Its second epoch meets the example again.
    assert train.main([*flags, "--steps", "16"]) == 0
    assert summary()["skipped_updates"] in (1, 2)  # an epoch leaves some examples out
    assert summary()["skipped_updates"] == sum(row["skipped_updates"] for row in rows())


def test_a_row_waits_for_an_update_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, example_of_step(3))
    assert train.main([*FLAGS, "--on-divergence", "skip", "--steps", "5"]) == 0
    assert [(row["step"], row["skipped_updates"]) for row in rows()] == [
        (1, 0),
        (2, 0),
        (4, 1),
        (5, 0),
    ]


@pytest.mark.fault(
    "every update non-finite, --on-divergence skip", "exit code 3 after the stated number", None
)
def test_too_many_in_a_row_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        train.main(
            [
                *TOO_FAST,
                "--on-divergence",
                "skip",
                "--max-divergences",
                "3",
                "--checkpoint-every",
                "1",
            ]
        )
        == 3
    )
    assert (
        "; 3 updates in a row were skipped; the last checkpoint is that of step"
        in capsys.readouterr().err
    )
    done = summary()
    assert (done["status"], done["skipped_updates"]) == ("diverged", 3)
    assert_finite(arrays()[1])
    assert arrays()[0] < done["steps"]


@pytest.mark.slow
@pytest.mark.fault(
    "NaN image, --on-divergence rollback",
    "back at half the rate; as a run at that rate from there",
    0,
)
def test_rollback_goes_back_at_half_the_learning_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        *FLAGS,
        *"--optimizer sgd --schedule constant --learning-rate 0.02 --checkpoint-every 4"
        " --devices 2".split(),
    ]
    expected = [*flags, "--run-dir", "expected"]
    assert train.main([*expected, "--steps", "4"]) == 0
    assert train.main([*expected, "--steps", "8", "--learning-rate", "0.01"]) == 0

    flags += ["--on-divergence", "rollback"]
    with monkeypatch.context() as patch:
        switch = poison(patch, example_of_step(6))
        slowed = setup.Setup.with_learning_rates_times

        def cured(self: setup.Setup, factor: float) -> setup.Setup:
            switch["on"] = False
            jax.clear_caches()  # else the step that is compiled, and poisoned, goes on
            return slowed(self, factor)

        patch.setattr(setup.Setup, "with_learning_rates_times", cured)
        assert train.main([*flags, "--steps", "8"]) == 0
    shown = capsys.readouterr().err
    # A compiled ReLU may turn NaN into 0: then the gradient tells.
    assert "the loss of step 6 is " in shown
    assert "its gradient norm nan: back to step 4" in shown
    assert "at 0.5 times the learning rate (rollback 1 of at most 5)" in shown
    assert (summary()["status"], summary()["rollbacks"]) == ("done", 1)
    assert [row["step"] for row in rows()] == list(range(1, 9))
    assert [row["learning_rate"] for row in rows()] == pytest.approx([0.02] * 4 + [0.01] * 4)
    for name, array in arrays()[1].items():
        np.testing.assert_allclose(array, arrays("expected")[1][name], atol=1e-6, err_msg=name)
    # The rate stays halved in whatever continues the run.
    assert train.main([*flags, "--steps", "10", "--on-divergence", "stop"]) == 0
    assert summary()["rollbacks"] == 1
    assert [row["learning_rate"] for row in rows()][8:] == pytest.approx([0.01] * 2)


@pytest.mark.fault(
    "NaN image that comes again, --on-divergence rollback",
    "exit code 3 after the stated number",
    None,
)
def test_rollbacks_that_do_not_help_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is a checkpoint, back is the beginning."""
    poison(monkeypatch, example_of_step(2))
    assert (
        train.main(
            [*FLAGS, "--steps", "8", "--on-divergence", "rollback", "--max-divergences", "2"]
        )
        == 3
    )
    shown = capsys.readouterr().err
    assert shown.count("back to step 0") == 2
    assert "at 0.25 times the learning rate (rollback 2 of at most 2)" in shown
    assert "diverged: the loss of step 2 is " in shown
    assert (summary()["status"], summary()["rollbacks"], summary()["steps"]) == ("diverged", 2, 2)
    assert [row["step"] for row in rows()] == [1]
    history = read_lines(pathlib.Path("run", "history.jsonl"))
    assert [(event["event"], event["step"]) for event in history] == [
        ("started", 0), ("rollback", 2), ("rollback", 2), ("diverged", 2),
    ]  # fmt: skip
    assert history[1]["to_step"] == 0
    assert all("the loss of step 2 is " in event["reason"] for event in history[1:])


def test_a_rollback_is_remembered_without_a_save_after_it() -> None:
    """Killed between going back and the next checkpoint: the rate stays halved."""
    flags = [*FLAGS, *"--optimizer sgd --schedule constant --learning-rate 0.02".split()]
    assert train.main([*flags, "--steps", "2"]) == 0
    RunDirectory(pathlib.Path("run")).write("rollbacks.json", {"rollbacks": 1})
    assert train.main([*flags, "--steps", "4"]) == 0
    assert summary()["rollbacks"] == 1
    assert [row["learning_rate"] for row in rows()] == pytest.approx([0.02] * 2 + [0.01] * 2)


def test_an_evaluation_that_is_not_finite_is_no_row() -> None:
    with pytest.raises(reader.Diverged, match="after the update of step 7 the test loss is inf"):
        loop.check_finite(7, True, {"loss": float("inf")})
    loop.check_finite(7, True, {"loss": 0.5, "iou/rare": float("nan")})  # a class that is nowhere


@pytest.mark.fault("evaluation that is not finite, finite loss", "exit code 3, names it", None)
def test_an_evaluation_that_is_not_finite_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compute(*args: Any) -> dict[str, float]:
        wrong = {"loss": float("nan"), "top5_accuracy": float("inf")}
        return metrics.compute(*args) | wrong

    monkeypatch.setattr(loop, "metrics", types.SimpleNamespace(compute=compute))
    assert train.main([*FLAGS, "--steps", "2", "--validation", "0.2"]) == 3
    expected = (
        "after the update of step 2 the validation loss is nan (also top5_accuracy), though the"
        " training loss is finite"
    )
    assert f"diverged: {expected}; " in capsys.readouterr().err
    with pytest.raises(reader.Diverged, match="; bfloat16 may be why: try --precision float32"):
        loop.check_finite(7, True, {"loss": float("inf")}, "validation", "bfloat16")


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
    assert train.main([*FLAGS, "--steps", "1"]) == 0
    assert "warning: the test loss of the result is nan\n" in capsys.readouterr().err
