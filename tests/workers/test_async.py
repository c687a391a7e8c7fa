"""Asynchronous training with a parameter server, on Ray."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_runs import (
    NEEDS_RAY,
    At,
    cluster,
    difference,
    events,
    history,
    rows,
    trained,
    wait_for_all,
)

import jaxdp
from jaxdp.workers import asynchronous

pytestmark = [pytest.mark.usefixtures("no_pictures"), pytest.mark.slow, NEEDS_RAY]
PLAN: dict[str, Any] = {"strategy": "async", "steps": 40, "eval_every": 20, "log_every": 10}


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[None]:
    """One of four workers is four times slower: they sleep, for longer than a busy core computes,
    so that the order of the updates does not depend on what else the machine does.
    """
    with cluster("0.1,0.1,0.1,0.4"):
        yield


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "adam"}, {"ema_decay": 0.9}, {"clip_norm": 0.5}, {"on_divergence": "skip"}],
    ids=str,
)
def test_one_worker_is_ordinary_training(one_cluster: None, settings: dict[str, Any]) -> None:
    """Without a second worker nothing is stale: the whole state is that of one device."""
    same = {"steps": 10, "log_every": 10, **settings}
    single = trained("single", strategy="single", devices=1, **same)
    pushed = trained("async", strategy="async", workers=1, **same)
    assert difference(single, pushed) < 1e-6
    assert rows("async")[-1]["staleness_max"] == 0
    assert rows("async")[-1]["gradient_norm"] == pytest.approx(
        rows("single")[-1]["gradient_norm"], rel=1e-4
    )


@pytest.mark.parametrize("bound", [None, 1, 4])
def test_staleness_is_reported_and_bounded(one_cluster: None, bound: int | None) -> None:
    more = {"staleness": bound, "steps": 80, "learning_rate": 0.01}
    trained("run", workers=4, callbacks=[At(1, wait_for_all)], **PLAN | more)
    largest = max(row["staleness_max"] for row in rows("run"))
    assert largest <= bound if bound is not None else largest >= 3
    done = sum(sum(row["worker_slices"]) for row in rows("run"))
    # Every batch once, and in each row those that are not yet applied.
    assert 80 <= done <= 80 + 3 * 4
    assert rows("run")[-1]["workers"] == 4


def test_a_worker_that_dies_leaves_no_batch_out(
    one_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = []
    apply = asynchronous.AsynchronousSession._apply
    monkeypatch.setattr(
        asynchronous.AsynchronousSession,
        "_apply",
        lambda self, state, done, constants: (
            applied.append(done.slice_id.slice),
            apply(self, state, done, constants),
        )[1],
    )

    def kill_worker(run: Any) -> None:
        joined = [line for line in history("run") if line["event"] == "worker joined"]
        os.kill(joined[-1]["pid"], signal.SIGKILL)

    trained("run", workers=3, callbacks=[At(15, kill_worker)], **PLAN)
    assert sorted(applied) == list(range(40))
    assert "worker lost" in events("run")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_async_learns_the_digits(one_cluster: None, seed: int) -> None:
    """Without momentum, as the documentation advises, with one of four workers four times
    slower.
    """
    step_config = {"optimizer": "sgd", "learning_rate": 0.3, "epochs": 100, "seed": seed}
    on_workers = {"strategy": "async", "workers": 4}
    callbacks = [At(1, wait_for_all)]
    trainer = jaxdp.Trainer(
        "cnn",
        "digits",
        callbacks=callbacks,
        progress=False,
        run_dir="run",
        **on_workers,
        **step_config,
    )
    accuracy = trainer.fit().metrics["test"]["accuracy"]
    mean = np.mean([row["staleness_mean"] for row in rows("run")])
    print(
        f"seed {seed}: {accuracy:.2%}, staleness {mean:.1f} on average,"
        f" {max(row['staleness_max'] for row in rows('run'))} at most"
    )
    assert round(accuracy, 3) >= 0.989  # at most four of 360 are wrong
