"""Several steps in one call to the devices are the same steps."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from jaxdp import train
from jaxdp.build.intervals import Intervals
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.rundir.read import read_lines

CNN: dict[str, Any] = {
    "model": "cnn",
    "model_kwargs": {"width": 4, "hidden": 16, "dropout": 0.2},
    "global_batch_size": 160,
}


def setup_of(steps_per_execution: int, **settings: Any) -> Setup:
    return create_setup(
        TrainConfig.of(
            **CNN, steps=5, eval_every=5, steps_per_execution=steps_per_execution, **settings
        )
    )


def train_through(setup: Setup) -> tuple[Any, list[Any]]:
    state, found = setup.strategy.init(setup.create_state), []
    for batch in setup.batches.placed(0):
        state, sums = setup.strategy.train_step(state, batch, setup.constants)
        found.append(setup.strategy.gather(sums))
    return setup.strategy.host_copy(state), found


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "single"},
        {"strategy": "pmap", "devices": 2, "augment": ("mixup:0.4",), "ema_decay": 0.9},
        pytest.param(
            {"strategy": "sharded", "devices": 2, "shard_params": True, "optimizer": "adam"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"strategy": "shard_map", "devices": 2, "precision": "float16"},
            marks=[pytest.mark.slow, pytest.mark.half_precision],
        ),
        pytest.param(
            {
                "strategy": "sharded",
                "devices": 4,
                "accumulate_steps": 2,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda settings: settings["strategy"],
)
def test_several_steps_in_one_call_are_the_same_steps(settings: dict[str, Any]) -> None:
    state, sums = train_through(setup_of(1, **settings))
    state_of_calls, sums_of_calls = train_through(setup_of(3, **settings))
    assert [len(call["loss"]) for call in sums_of_calls] == [3, 2]
    joined = {name: np.concatenate([call[name] for call in sums_of_calls]) for name in sums[0]}
    for name, values in joined.items():
        np.testing.assert_allclose(
            values, np.stack([each[name] for each in sums]), rtol=2e-5, atol=1e-6, err_msg=name
        )
    for ours, theirs in zip(jax.tree.leaves(state_of_calls), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [(0, 3), (3, 6), (6, 7), (7, 10), (10, 12), (12, 14), (14, 15)]),
        (5, [(5, 7), (7, 10), (10, 12), (12, 14), (14, 15)]),
        (15, []),
    ],
)
def test_no_call_goes_across_what_happens_between_steps(start: int, expected: list[Any]) -> None:
    every = {"log_every": 2, "eval_every": 7, "checkpoint_every": 12, "steps_per_execution": 3}
    plan = Intervals(15, 7, **every)
    assert [(call.start, call.stop) for call in plan.executions(start)] == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--data-placement host", "2: needs the dataset on the devices; see --data-placement"),
        ("--strategy central", "2: --strategy central has a step of several programs; use 1"),
        ("--steps-per-execution 0", "0: must be greater than 0"),
    ],
)
def test_what_takes_one_step_a_call(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(f"--model cnn --steps-per-execution 2 {flags}".split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--steps-per-execution {message}" in line


def test_a_call_of_several_steps_has_a_row_for_each(no_pictures: None) -> None:
    """Also the first one, whose steps share the time of compiling."""
    flags = "--model cnn --model-kwargs width=4 hidden=16 --devices 1 --global-batch-size 160"
    flags += " --steps 4 --eval-every 4 --steps-per-execution 2 --log-every 1 --run-dir run"
    assert train.main(flags.split()) == 0
    rows = read_lines(pathlib.Path("run", "metrics.jsonl"))
    first, second, *_ = times = [row["step_seconds"] for row in rows if row["split"] == "train"]
    assert len(times) == 4
    assert first == pytest.approx(second)
    assert all(seconds > 0 for seconds in times)
