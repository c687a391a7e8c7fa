"""Asynchronous training with parameter servers, on Ray."""

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
    kill_server,
    rows,
    trained,
    wait_for_all,
)

import jaxdp
from jaxdp.workers import asynchronous
from jaxdp.workers.actor import ServerLost

pytestmark = [pytest.mark.usefixtures("no_pictures"), pytest.mark.slow, NEEDS_RAY]
PLAN: dict[str, Any] = {"strategy": "async", "steps": 40, "eval_every": 20, "log_every": 10}


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[None]:
    """One of four workers is four times slower: they sleep, for longer than a busy core computes,
    so that the order of the updates does not depend on what else the machine does.
    """
    with cluster("0.1,0.1,0.1,0.4"):
        yield


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"ema_decay": 0.9}], ids=str)
def test_one_worker_and_three_servers_are_ordinary_training(
    one_cluster: None, settings: dict[str, Any]
) -> None:
    """Without a second worker nothing is stale: the whole state is that of one device."""
    same = {"steps": 10, "log_every": 10, **settings}
    single = trained("single", strategy="single", devices=1, **same)
    served = trained("servers", strategy="async", workers=1, servers=3, **same)
    assert difference(single, served) < 1e-6
    assert rows("servers")[-1]["staleness_max"] == 0
    assert rows("servers")[-1]["gradient_norm"] == pytest.approx(
        rows("single")[-1]["gradient_norm"], rel=1e-4
    )


@pytest.mark.parametrize("bound", [None, 1, 4])
def test_staleness_is_reported_and_bounded(one_cluster: None, bound: int | None) -> None:
    more = {"staleness": bound, "steps": 80, "learning_rate": 0.01}
    trained("run", workers=4, servers=2, callbacks=[At(1, wait_for_all)], **PLAN | more)
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
        lambda self, done: (applied.append(done.slice_id.slice), apply(self, done))[1],
    )

    def kill_worker(run: Any) -> None:
        joined = [line for line in history("run") if line["event"] == "worker joined"]
        os.kill(joined[-1]["pid"], signal.SIGKILL)

    trained("run", workers=3, callbacks=[At(15, kill_worker)], **PLAN)
    assert sorted(applied) == list(range(40))
    assert "worker lost" in events("run")


def test_a_server_that_dies_ends_the_run_which_can_go_on(one_cluster: None) -> None:
    plan = PLAN | {"checkpoint_every": 10}
    with pytest.raises(ServerLost, match="a parameter server has died"):
        trained("run", workers=2, servers=2, callbacks=[At(25, kill_server)], **plan)
    trained("run", **plan | {"strategy": "single", "devices": 1})
    assert events("run")[-1] == "done"
    resumed = next(line for line in history("run") if line["event"] == "resumed")
    assert resumed["step"] == 20
    assert resumed["changed"]["strategy"] == ["async", "single"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_async_learns_the_digits(one_cluster: None, seed: int) -> None:
    """Without momentum, as the documentation advises, with one of four workers four times
    slower.
    """
    step_config = {"optimizer": "sgd", "learning_rate": 0.3, "epochs": 100, "seed": seed}
    on_workers = {"strategy": "async", "workers": 4, "servers": 2}
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
