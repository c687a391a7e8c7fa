"""Asynchronous training with parameter servers, and replicas that train alone, on Ray."""

import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import NEEDS_RAY

import jaxdp
from jaxdp.exchange import asynchronous, servers
from jaxdp.exchange.worker import SLOWED
from jaxdp.runtime import ray_connection

pytestmark = [pytest.mark.usefixtures("no_pictures"), pytest.mark.slow, NEEDS_RAY]


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[None]:
    """One Ray for several runs.

    One of four workers is four times slower, as its processes find it in their environment.
    """
    os.environ[SLOWED] = "0.03,0.03,0.03,0.12"
    with ray_connection.connected(None, cpus=8):
        yield
    del os.environ[SLOWED]


def train(folder: str, **settings: Any) -> Any:
    small = {
        "model_kwargs": {"width": 4, "hidden": 16},
        "global_batch_size": 32,
        "batch_norm": "group:8",
    }
    plan = {"steps": 40, "eval_every": 20, "log_every": 10, "run_dir": folder}
    return jaxdp.Trainer("cnn", "digits", progress=False, **small | plan | settings).fit()


def lines(folder: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pathlib.Path(folder, name).read_text().splitlines()]


def rows(folder: str) -> list[dict[str, Any]]:
    return [row for row in lines(folder, "metrics.jsonl") if row["split"] == "train"]


def difference(one: Any, other: Any) -> float:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    return max(
        float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adam"}, {"clip_norm": 0.5}, {"ema_decay": 0.9}], ids=str
)
def test_one_worker_and_three_servers_are_ordinary_training(
    one_cluster: None, settings: dict[str, Any]
) -> None:
    """Without a second worker nothing is stale: parameters, optimizer state and averages are those
    of one device.
    """
    same = {"steps": 10, "learning_rate": 0.001, **settings}
    single = train("single", strategy="single", devices=1, **same)
    served = train("servers", exchange="async", workers=1, servers=3, **same)
    kept = [
        (each.state.params, each.state.batch_stats, each.state.opt_state, each.state.ema)
        for each in (single, served)
    ]
    assert difference(*kept) < 1e-6
    assert rows("servers")[-1]["staleness_max"] == 0
    assert rows("servers")[-1]["gradient_norm"] == pytest.approx(
        rows("single")[-1]["gradient_norm"], rel=1e-4
    )


@pytest.mark.parametrize("bound", [None, 1, 4])
def test_staleness_is_told_and_bounded(one_cluster: None, bound: int | None) -> None:
    train(
        "run", exchange="async", workers=4, servers=2, staleness=bound, steps=80, learning_rate=0.01
    )
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
    apply = asynchronous.Asynchronous._apply
    monkeypatch.setattr(
        asynchronous.Asynchronous,
        "_apply",
        lambda self, done: (applied.append(done.ticket.slice), apply(self, done))[1],
    )

    class Kill:
        def on_step_end(self, run: Any, event: Any) -> None:
            joined = [
                line for line in lines("run", "history.jsonl") if line["event"] == "worker joined"
            ]
            if event.step == 15:
                os.kill(joined[-1]["pid"], signal.SIGKILL)

    train("run", exchange="async", workers=3, callbacks=[Kill()])
    assert sorted(applied) == list(range(40))
    assert "worker lost" in [line["event"] for line in lines("run", "history.jsonl")]


def test_a_server_that_dies_ends_the_run_which_can_go_on(
    one_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill:
        def on_step_end(self, run: Any, event: Any) -> None:
            if event.step == 25:
                import ray

                ray.kill(run.setup.strategy._servers._actors[0])

    with pytest.raises(servers.ServerLost, match="a parameter server has died"):
        train(
            "run", exchange="async", workers=2, servers=2, checkpoint_every=10, callbacks=[Kill()]
        )
    assert train("run", strategy="single", devices=1, checkpoint_every=10).status == "done"
    resumed = next(line for line in lines("run", "history.jsonl") if line["event"] == "resumed")
    assert resumed["step"] == 20
    assert resumed["changed"]["exchange"] == ["async", "allreduce"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_async_learns_the_digits(one_cluster: None, seed: int) -> None:
    """Without momentum, as the documentation advises, with one of four workers four times
    slower.
    """
    recipe = {"optimizer": "sgd", "learning_rate": 0.3, "epochs": 100, "seed": seed}
    trainer = jaxdp.Trainer(
        "cnn",
        "digits",
        exchange="async",
        workers=4,
        servers=2,
        progress=False,
        run_dir="run",
        **recipe,
    )
    accuracy = trainer.fit().metrics["test"]["accuracy"]
    mean = np.mean([row["staleness_mean"] for row in rows("run")])
    print(
        f"seed {seed}: {accuracy:.2%}, staleness {mean:.1f} on average,"
        f" {max(row['staleness_max'] for row in rows('run'))} at most"
    )
    assert round(accuracy, 3) >= 0.989  # at most four of 360 are wrong


def test_local_averages_what_each_replica_would_do_alone(one_cluster: None) -> None:
    """Two replicas, three steps: beside the average of two ordinary runs over the halves of the
    same batches.
    """
    trainer = jaxdp.Trainer(
        "cnn",
        "digits",
        exchange="local",
        workers=2,
        local_steps=3,
        steps=3,
        global_batch_size=32,
        batch_norm="group:8",
        model_kwargs={"width": 4, "hidden": 16},
        progress=False,
        devices=1,
        learning_rate=0.01,
    )
    found = trainer.fit()
    setup, replicas = trainer.setup, []
    from jaxdp.data import pipeline
    from jaxdp.sharding.single import Single

    for half in range(2):
        strategy = Single(setup.recipe, setup.strategy.devices)
        state = strategy.restore(setup.create_state())
        for step in range(3):
            batch = pipeline.index_batch(setup.train_order[step][half * 16 : half * 16 + 16])
            state, _ = strategy.train_step(state, strategy.shard_batch(batch), setup.constants)
        replicas.append(
            jax.tree.map(np.asarray, (state.params, state.batch_stats, state.opt_state))
        )
    mean = jax.tree.map(lambda one, other: (one + other) / 2, *replicas)
    assert (
        difference((found.state.params, found.state.batch_stats, found.state.opt_state), mean)
        < 1e-6
    )
    assert difference(replicas[0], mean) > 1e-4  # or nothing was averaged


def test_rounds_of_local_end_at_evaluations(one_cluster: None) -> None:
    even = train("even", exchange="local", workers=4, steps=45, eval_every=20)
    again = train("again", exchange="local", workers=2, slices=4, steps=45, eval_every=20)
    assert difference(even.state.params, again.state.params) == 0  # whoever trained which replica
    assert [line["step"] for line in lines("even", "metrics.jsonl") if line["split"] == "test"] == [
        20,
        40,
        45,
    ]
    outer = train(
        "outer",
        exchange="local",
        workers=2,
        steps=45,
        eval_every=20,
        outer_momentum=0.5,
        outer_learning_rate=0.7,
    )
    assert difference(outer.state.params, again.state.params) > 1e-3


@pytest.mark.parametrize(
    "settings", [{}, {"outer_momentum": 0.5, "outer_learning_rate": 0.7, "ema_decay": 0.9}], ids=str
)
def test_servers_average_the_same_bits_and_one_may_die(
    one_cluster: None, settings: dict[str, Any]
) -> None:
    class Kill:
        def on_step_end(self, run: Any, event: Any) -> None:
            if event.step >= 30 and not killed:
                import ray

                killed.append(event.step)
                ray.kill(run.setup.strategy._servers._actors[1])

    killed: list[int] = []
    plan = {"exchange": "local", "workers": 2, "steps": 45, "local_steps": 5}
    here = train("here", **plan, **settings).state
    served = train("served", servers=2, **plan, **settings).state
    assert difference(served, here) == 0
    without = train("kill", servers=2, callbacks=[Kill()], **plan, **settings)
    assert without.status == "done"
    if not settings:  # a momentum of the average begins anew, as it does where a run resumes
        assert difference(without.state, here) == 0
    assert [
        line["to_step"] for line in lines("kill", "history.jsonl") if line["event"] == "server lost"
    ] == [20]


def test_local_learns_the_digits(one_cluster: None) -> None:
    """The recipe of the command's default, twenty epochs, with four replicas of 32 examples a step
    that meet every ten steps.
    """
    trainer = jaxdp.Trainer(
        "cnn", "digits", exchange="local", workers=4, eval_every=20, progress=False, run_dir="run"
    )
    accuracy = trainer.fit().metrics["test"]["accuracy"]
    print(f"local: {accuracy:.2%}")
    assert accuracy >= 0.98
