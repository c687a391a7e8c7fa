"""Exact training on Ray: the same bits whoever computes, as fast as the workers allow."""

import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from small_runs import NEEDS_RAY, difference, digest, history, rows, trained

import jaxdp
from jaxdp.reporting import report_runs, report_text
from jaxdp.runtime import ray_connection
from jaxdp.workers import exact
from jaxdp.workers.scheduler import SliceId, SliceScheduler
from jaxdp.workers.worker import SLOWED

pytestmark = [pytest.mark.usefixtures("no_pictures"), NEEDS_RAY]


class KillWorker:
    """Kills the process of the first worker that joined, once so many steps are done.

    An idle one is given no slice before.
    """

    def __init__(self, step: int, *, idle: bool = False) -> None:
        self.step, self.idle, self.killed = step, idle, False

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step >= self.step and not self.killed:
            first = next(line for line in history(run.folder) if line["event"] == "worker joined")
            if self.idle:
                run.setup.strategy.scheduler.leave(first["worker"])
            os.kill(first["pid"], signal.SIGKILL)
            time.sleep(2)  # for Ray to notice; else the few steps that are left may be done by then
            self.killed = True
        elif self.killed:
            time.sleep(0.2)  # a worker that was given nothing has to be asked


def test_two_workers_one_killed_and_replaced_compute_what_one_device_does() -> None:
    single = trained("single", strategy="single", devices=1)
    exact = trained("exact", strategy="exact", workers=2, slices=8, callbacks=[KillWorker(2)])
    assert difference(exact, single) < 1e-6
    assert not set(pathlib.Path("/tmp").glob(f"jaxdp-ray-{os.getpid()}-*"))  # Ray is gone
    events = [line["event"] for line in history("exact")]
    assert events[0] == "started"
    assert events[-1] == "done"
    assert events.count("worker lost") == 1
    assert events.count("worker joined") in (2, 3)  # the replacement may come too late
    found = rows("exact")
    assert [row["step"] for row in found] == list(range(1, 7))
    assert sum(sum(row["worker_slices"]) - row["dropped_slices"] for row in found) == 6 * 8
    assert all(row["worker_bytes"] > 0 and row["worker_idle_seconds"] >= 0 for row in found)
    told = [line["seconds"] for line in history("exact") if "seconds" in line]
    assert told == sorted(told)
    assert len(told) == events.count("worker joined") + 1
    assert 0 < told[0] < found[0]["elapsed_seconds"]
    assert [row["elapsed_seconds"] for row in found] == sorted(
        row["elapsed_seconds"] for row in found
    )
    assert [
        line.get("workers") for line in history("exact") if line["event"] in ("started", "done")
    ] == [2, 2]
    assert (
        report_text.work(report_runs.RunRecord(pathlib.Path("exact"), "exact"))["workers lost"]
        == "1"
    )
    assert jaxdp.load("exact").metrics["test"]["accuracy"] == pytest.approx(
        jaxdp.load("single").metrics["test"]["accuracy"]
    )


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[None]:
    """One Ray for several runs: each of them takes seconds to start one."""
    os.environ[SLOWED] = ""
    with ray_connection.connected(None, cpus=8):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bits_depend_on_no_worker(
    one_cluster: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    kinds: dict[str, Callable[[], dict[str, np.ndarray]]] = {}
    same = {"strategy": "exact", "slices": 8, "steps": 20, "seed": seed, "learning_rate": 0.1}
    for workers in (1, 2, 4, 7):
        kinds[f"even-{workers}"] = lambda workers=workers: trained(
            f"even-{workers}", workers=workers, **same
        )
    kinds["killed"] = lambda: trained("killed", workers=3, callbacks=[KillWorker(3)], **same)
    kinds["killed-idle"] = lambda: trained(
        "killed-idle", workers=3, callbacks=[KillWorker(3, idle=True)], **same
    )
    found = {name: digest(train()) for name, train in kinds.items()}
    assert len(set(found.values())) == 1, found
    for name in ("killed", "killed-idle"):
        assert "worker lost" in [line["event"] for line in history(name)]
    # The comparison can tell.
    assert digest(trained("other", workers=2, **same | {"slices": 4})) not in found.values()


class KillServer:
    """Kills a parameter server after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == self.step:
            import ray

            ray.kill(run.setup.strategy.servers._actors[1])


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"clip_norm": 0.1, "optimizer": "adam"}], ids=str)
def test_a_server_that_dies_changes_no_bit(one_cluster: None, more: dict[str, Any]) -> None:
    same = {"strategy": "exact", "slices": 8, "steps": 20, "eval_every": 8, **more}
    served = trained("served", workers=2, servers=2, **same)
    killed = trained("killed", workers=3, servers=2, callbacks=[KillServer(13)], **same)
    assert digest(killed) == digest(served)
    assert [line["to_step"] for line in history("killed") if line["event"] == "server lost"] == [8]
    # The command's process holds the state.
    assert difference(served, trained("here", workers=2, **same)) < 1e-6


@pytest.mark.slow
def test_servers_import_no_plugins(one_cluster: None) -> None:
    pathlib.Path("plugin.py").write_text(
        "from jaxdp import tasks\n"
        "from jaxdp.tasks.classification import Classification\n"
        "@tasks.register('mine')\n"
        "class Mine(Classification): pass\n"
    )
    own = {"plugins": ["plugin.py"], "task": "mine", "steps": 2}
    trained("run", strategy="exact", workers=1, servers=2, **own)
    assert history("run")[-1]["event"] == "done"


@pytest.mark.slow
def test_twenty_steps_are_those_of_one_device(one_cluster: None) -> None:
    single = trained("single", strategy="single", devices=1, steps=20)
    assert (
        difference(trained("exact", strategy="exact", workers=4, slices=8, steps=20), single) < 1e-6
    )


@pytest.mark.slow
def test_a_run_goes_from_pmap_to_exact_and_back(one_cluster: None) -> None:
    whole = trained("whole", strategy="single", devices=1, steps=9)
    trained(
        "parts",
        strategy="pmap",
        devices=4,
        steps=9,
        max_divergences=5,
        checkpoint_every=3,
        callbacks=[StopAt(3)],
    )
    trained(
        "parts", steps=9, strategy="exact", workers=2, checkpoint_every=3, callbacks=[StopAt(6)]
    )
    parts = trained("parts", strategy="pmap", devices=2, steps=9, checkpoint_every=3)
    assert [line["event"] for line in history("parts")].count("resumed") == 2
    assert difference(parts, whole) < 1e-6


class StopAt:
    """Asks the run to stop, as a user would who presses Ctrl-C."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == self.step:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_the_bits_do_not_depend_on_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"strategy": "exact", "slices": 8, "steps": 10, "learning_rate": 0.1}
    even = digest(trained("even", workers=2, **same))
    monkeypatch.setenv(SLOWED, "0.02,0.02,0.2")
    assert digest(trained("uneven", workers=3, **same)) == even
    last = rows("uneven")[-1]
    assert last["workers"] == 3
    assert last["worker_slices"][2] < min(last["worker_slices"][:2])


class EqualShares(SliceScheduler):
    """The baseline: each worker computes the same slices in every step, and none helps another."""

    def assign(self, now: float) -> list[tuple[int, SliceId]]:
        workers = sorted(self._idle | self._computing.keys())
        if len(workers) < 4:
            return []
        found = []
        for place, worker in enumerate(workers):
            mine = [number for number in self._waiting if number % 4 == place]
            if worker in self._idle and mine:
                slice_id = SliceId(self._round, min(mine))
                self._waiting.remove(slice_id.slice)
                self._idle.remove(worker)
                self._computing[worker], self._begun[worker] = slice_id, now
                self._holders[slice_id.slice] = [worker]
                found.append((worker, slice_id))
        return found


@pytest.mark.slow
def test_one_of_four_workers_four_times_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the last ten steps; workers sleep, so that two cores stand for four machines."""
    monkeypatch.setenv(SLOWED, "0.1,0.1,0.1,0.4")
    same = {
        "strategy": "exact",
        "workers": 4,
        "slices": 16,
        "batch_norm": "group:2",
        "steps": 20,
        "log_every": 10,
        "eval_every": 10,
    }
    planned = digest(trained("planned", **same))
    monkeypatch.setattr(exact, "SliceScheduler", EqualShares)
    assert digest(trained("shares", **same)) == planned
    planned_rate, equal_rate = (
        rows(folder)[-1]["examples_per_second"] for folder in ("planned", "shares")
    )
    print(
        f"equal shares {equal_rate:.1f}, planned {planned_rate:.1f} examples/s:"
        f" {planned_rate / equal_rate:.2f} times"
    )
    assert rows("shares")[-1]["worker_slices"] == [40, 40, 40, 40]
    assert planned_rate >= 2.5 * equal_rate
