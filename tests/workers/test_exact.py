"""Exact training on Ray: the same bits whoever computes."""

import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from runs import assert_same_run
from small_runs import (
    NEEDS_RAY,
    At,
    cluster,
    difference,
    digest,
    events,
    history,
    rows,
    trained,
)

import jaxdp
from jaxdp.training.reader import MEASURED

# Fields of rows that only runs on workers have.
OF_WORKERS = (
    "elapsed_seconds",
    "workers",
    "worker_slices",
    "recomputed_slices",
    "dropped_slices",
    "worker_bytes",
    "worker_idle_seconds",
)
pytestmark = [pytest.mark.usefixtures("no_pictures"), NEEDS_RAY]


def kill_worker(run: Any) -> None:
    """Kills the process of the first worker that joined."""
    first = next(line for line in history(run.folder) if line["event"] == "worker joined")
    os.kill(first["pid"], signal.SIGKILL)
    # A worker whose first slice seemed slow may get none until the end, and its death stays
    # unnoticed: all count as not measured again.
    pace = run.setup.strategy.session.scheduler._pace
    pace[np.isfinite(pace)] = np.nan
    time.sleep(2)  # for Ray to notice


def wait_for_loss(run: Any) -> None:
    """Gives Ray more time on a busy machine: the steps that are left may be done before it
    notices.
    """
    if not any(line["event"] == "worker lost" for line in history(run.folder)):
        time.sleep(5)


def test_two_workers_one_killed_and_replaced_compute_what_one_device_does() -> None:
    single = trained("single", strategy="single", devices=1)
    disturbances = [At(2, kill_worker), *(At(step, wait_for_loss) for step in (3, 4, 5))]
    exact = trained("exact", strategy="exact", workers=2, slices=8, callbacks=disturbances)
    assert difference(exact, single) < 1e-6
    here = trained("here", strategy="exact", devices=3, slices=8)
    assert digest(exact) == digest(here)
    assert_same_run("here", "exact", 6, without=(*MEASURED, *OF_WORKERS))
    assert not set(pathlib.Path("/tmp").glob(f"jaxdp-ray-{os.getpid()}-*"))  # Ray is gone
    happened = events("exact")
    assert (happened[0], happened[-1]) == ("started", "done")
    assert happened.count("worker lost") == 1
    assert happened.count("worker joined") in (2, 3)  # the replacement may come too late
    found = rows("exact")
    assert [row["step"] for row in found] == list(range(1, 7))
    assert sum(sum(row["worker_slices"]) - row["dropped_slices"] for row in found) == 6 * 8
    assert all(row["worker_bytes"] > 0 and row["worker_idle_seconds"] >= 0 for row in found)
    told = [line["seconds"] for line in history("exact") if "seconds" in line]
    assert told == sorted(told)
    assert len(told) == happened.count("worker joined") + 1
    assert 0 < told[0] < found[0]["elapsed_seconds"]
    assert [row["elapsed_seconds"] for row in found] == sorted(
        row["elapsed_seconds"] for row in found
    )
    assert [
        line.get("workers") for line in history("exact") if line["event"] in ("started", "done")
    ] == [2, 2]
    assert jaxdp.load("exact").metrics["test"]["accuracy"] == pytest.approx(
        jaxdp.load("single").metrics["test"]["accuracy"]
    )


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[None]:
    with cluster():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bits_depend_on_no_worker(one_cluster: None, seed: int) -> None:
    same = {"strategy": "exact", "slices": 8, "steps": 20, "seed": seed, "learning_rate": 0.1}
    found = {
        workers: digest(trained(f"even-{workers}", workers=workers, **same))
        for workers in (1, 2, 4, 7)
    }
    killed = trained("killed", workers=3, callbacks=[At(3, kill_worker)], **same)
    found["killed"] = digest(killed)
    assert len(set(found.values())) == 1, found
    assert "worker lost" in events("killed")
    # The comparison can tell.
    assert digest(trained("other", workers=2, **same | {"slices": 4})) not in found.values()


@pytest.mark.slow
def test_twenty_steps_are_those_of_one_device(one_cluster: None) -> None:
    single = trained("single", strategy="single", devices=1, steps=20)
    assert (
        difference(trained("exact", strategy="exact", workers=4, slices=8, steps=20), single) < 1e-6
    )


@pytest.mark.slow
def test_a_run_goes_from_pmap_to_exact_and_back(one_cluster: None) -> None:
    def press_ctrl_c(run: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    whole = trained("whole", strategy="single", devices=1, steps=9)
    trained(
        "parts",
        strategy="pmap",
        devices=4,
        steps=9,
        max_divergences=5,
        checkpoint_every=3,
        callbacks=[At(3, press_ctrl_c)],
    )
    trained(
        "parts",
        steps=9,
        strategy="exact",
        workers=2,
        checkpoint_every=3,
        callbacks=[At(6, press_ctrl_c)],
    )
    parts = trained("parts", strategy="pmap", devices=2, steps=9, checkpoint_every=3)
    assert events("parts").count("resumed") == 2
    assert difference(parts, whole) < 1e-6
