"""What becomes of the other processes when one dies, hangs, is told to stop, or was started
differently?
"""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from process_group import FLAGS, Processes, environment, free_port

from jaxdp import train
from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.config import ProcessConfig
from jaxdp.registry import ConfigError
from jaxdp.rundir.read import read_lines
from jaxdp.runtime import native_output, processes
from jaxdp.training.reader import MEASURED

AGAIN = "; the same command continues after the last checkpoint"
RecordFault = Callable[..., None]


def arrays(run_dir: str, step: int) -> dict[str, np.ndarray]:
    return SavedCheckpoints(
        pathlib.Path(run_dir, "checkpoints"), best_metric=("accuracy", True)
    ).arrays(step)


def rows(run_dir: str) -> list[dict]:
    found = read_lines(pathlib.Path(run_dir, "metrics.jsonl"))
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in found]


def assert_same_run(one: str, other: str, step: int) -> None:
    expected, found = arrays(one, step), arrays(other, step)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert rows(one) == rows(other)


def newest() -> int:
    return max(integrity.steps(pathlib.Path("run", "checkpoints")), default=0)


def slow_steps(seconds: float) -> str:
    """A run that is still under way when the test gets to it."""
    return (
        "import time\nfrom jaxdp.data import pipeline\nbatches = pipeline.batches\n"
        "def slow(*args, **kwargs):\n    for batch in batches(*args, **kwargs):\n"
        f"        time.sleep({seconds})\n        yield batch\n"
        "pipeline.batches = slow\n"
    )


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all_at_the_same_step(record_fault: RecordFault) -> None:
    steps = ["--steps", "40", "--checkpoint-every", "100"]
    group = Processes(*steps, preludes={0: slow_steps(0.2), 1: slow_steps(0.2)})
    group.wait_for("step 3/")
    group.running[1].send_signal(signal.SIGUSR1)
    assert group.codes() == [75, 75], group.errors(0) + group.errors(1)
    stopped = newest()
    assert 3 < stopped < 40
    assert group.error_lines(0) == [
        f"stopped by a signal after saving step {stopped}; the same command continues"
    ]
    shutil.copytree("run", "alone")
    again = Processes(*steps)
    assert again.codes() == [0, 0], again.errors(0)
    assert f"continuing run after step {stopped}" in again.errors(0)
    assert train.main([*FLAGS, *steps, "--run-dir", "alone", "--devices", "2"]) == 0
    whole = Processes(*steps, "--run-dir", "whole")
    assert whole.codes() == [0, 0]
    assert_same_run("whole", "run", 40)
    expected = arrays("whole", 40)
    for name, array in arrays("alone", 40).items():  # one process with the devices of both
        np.testing.assert_allclose(array, expected[name], atol=1e-4, err_msg=name)
    record_fault(
        "signal to one of two processes", 1, "both saved the same step; resumed bitwise", 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_name_the_one_that_died(victim: int, record_fault: RecordFault) -> None:
    group = Processes(
        "--steps",
        "1000",
        "--checkpoint-every",
        "5",
        preludes={0: slow_steps(0.1), 1: slow_steps(0.1)},
    )
    group.wait_for("step 7/")
    before = newest()
    pid = group.running[victim].pid
    group.running[victim].kill()
    began = time.monotonic()
    codes = group.codes()
    assert time.monotonic() - began < 5 + 20  # the heartbeat timeout, and a slow machine
    assert sorted(codes) == [-signal.SIGKILL, 1]
    (line,) = group.error_lines(1 - victim)
    assert line.startswith(f"jaxdp.train: error: process {victim} (pid {pid} on ")
    assert line.endswith(AGAIN)
    again = Processes("--steps", str(newest() + 2))
    assert again.codes() == [0, 0], again.errors(0)
    assert int(again.errors(0).split("after step ")[1].split()[0]) >= before
    record_fault(
        "kill -9 of one of two processes", 1, "the other names it and leaves with 1; resumed", 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_name_the_one_that_is_stopped(victim: int, record_fault: RecordFault) -> None:
    group = Processes("--steps", "1000", preludes={0: slow_steps(0.1), 1: slow_steps(0.1)})
    group.wait_for("step 7/")
    group.running[victim].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert group.running[1 - victim].wait(timeout=100) == 1
    assert time.monotonic() - began < 5 + 20  # the heartbeat timeout, and a slow machine
    group.running[victim].kill()
    assert group.codes()[victim] == -signal.SIGKILL
    (line,) = group.error_lines(1 - victim)
    assert line.startswith(
        f"jaxdp.train: error: process {victim} (pid {group.running[victim].pid} on "
    )
    assert line.endswith(AGAIN)
    record_fault("SIGSTOP to one of two processes", 1, "the other names it and leaves with 1", 0)


@pytest.mark.slow
def test_one_that_hangs_is_found_and_named(record_fault: RecordFault) -> None:
    stuck = slow_steps(0.1).replace(
        "time.sleep(0.1)", "time.sleep(0.1 if (n := globals().get('n', 0) + 1) < 8 else 1000)"
    )
    stuck = stuck.replace("def slow(*args, **kwargs):", "def slow(*args, **kwargs):\n    global n")
    group = Processes("--steps", "1000", "--step-timeout", "4", preludes={1: stuck})
    assert group.codes() == [1, 1], group.errors(0)
    for index in (0, 1):
        (line,) = group.error_lines(index)
        assert (
            "no step was finished for 4 s after step" in line
            or "no step was finished for 5 s after step" in line
        )
        assert "process 1 (pid " in line
        assert "is behind, at step " in line
        assert "(waiting for input)" in line
        report = pathlib.Path("run", f"hang-{index}.txt").read_text()
        assert "most recent call first" in report
    assert "in slow" in pathlib.Path("run", "hang-1.txt").read_text()
    record_fault(
        "one of two processes hangs",
        1,
        "both name it, write where each thread stands, leave with 1",
        0,
    )


@pytest.mark.slow
def test_one_that_fails_tells_the_others(record_fault: RecordFault) -> None:
    full = (
        "from jaxdp.checkpoint.checkpoints import Checkpoints, NotSavedError\ndef save(*args,"
        " **kwargs):\n    raise NotSavedError('the checkpoint of step 3 could not be saved in run:"
        " No space left on device')\nCheckpoints.save = save\n"
    )
    group = Processes("--steps", "40", "--checkpoint-every", "3", preludes={0: full})
    assert group.codes() == [1, 1], group.errors(1)
    (line,) = group.error_lines(0)
    assert (
        line
        == "jaxdp.train: error: the checkpoint of step 3 could not be saved in run: No space left"
        f" on device{AGAIN}"
    )
    (line,) = group.error_lines(1)
    assert "process 0 (pid " in line
    assert "has left: the checkpoint of step 3 could not be saved" in line
    record_fault("full disk at one of two processes", 1, "both say so and leave with 1", 0)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)], ids=str)
def test_a_disk_that_is_full_while_saving(
    victims: tuple[int, ...], record_fault: RecordFault
) -> None:
    """Each would wait for the other inside Orbax, which tells nobody yet that its own part has
    failed.
    """
    full = (
        "import resource, signal\n"
        "from jaxdp.checkpoint.checkpoints import Checkpoints\n"
        "saves = Checkpoints.save\n"
        "def save(self, step, *args, **kwargs):\n"
        "    if step == 6:\n"
        "        self.wait()\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "    return saves(self, step, *args, **kwargs)\n"
        "Checkpoints.save = save\n"
    )
    flags = (
        "--checkpoint-every",
        "3",
        "--model-kwargs",
        "width=16",
        "hidden=64",
        "--strategy",
        "sharded",
        "--shard-params",
    )
    group = Processes("--steps", "40", *flags, preludes=dict.fromkeys(victims, full))
    began = time.monotonic()
    codes = group.codes()
    assert codes == [1, 1], group.errors(0) + group.errors(1)
    assert time.monotonic() - began < 60
    said = [
        line
        for index in (0, 1)
        for line in group.error_lines(index)
        if not line.startswith("state: ")
    ]
    assert any(
        "the checkpoint of step 6 could not be saved in " in line and "File too large" in line
        for line in said
    ), said
    assert len(said) == 2, said
    assert newest() == 3
    again = Processes("--steps", "7", *flags)
    assert again.codes() == [0, 0], again.errors(0)
    assert "continuing run after step 3" in again.errors(0)
    where = "both" if len(victims) == 2 else "one"
    record_fault(
        f"full disk while saving at {where} of two processes",
        1,
        "both leave with 1, at least one says why; resumed",
        0,
    )


@pytest.mark.slow
def test_processes_that_differ_do_not_start(record_fault: RecordFault) -> None:
    group = Processes("--steps", "4", own_flags={1: ["--learning-rate", "0.02"]})
    assert group.codes() == [2, 2], group.errors(0)
    for index, (ours, theirs) in enumerate([("0.01", "0.02"), ("0.02", "0.01")]):
        (line,) = group.error_lines(index)
        assert line.startswith(
            f"jaxdp.train: error: --learning-rate {ours}: differs between processes: process"
            f" {1 - index} (pid "
        )
        assert line.endswith(f"has {theirs}; start all with the same")
    assert not pathlib.Path("run", "checkpoints", "4").exists()
    weights = "from jaxdp.training import setup\n"
    weights += (
        "create = setup.create_model\ndef other(config, *a, rngs, **k):\n    from flax import nnx\n"
    )
    weights += "    return create(config, *a, rngs=nnx.Rngs(7), **k)\nsetup.create_model = other\n"
    group = Processes("--steps", "4", "--run-dir", "other", preludes={1: weights})
    assert group.codes() == [2, 2], group.errors(0)
    assert "--initial-arrays " in group.errors(0)
    record_fault(
        "two processes with different settings or weights",
        2,
        "both refuse with 2 before the first step",
        0,
    )


@pytest.mark.slow
def test_divergence_is_the_same_on_all_processes(record_fault: RecordFault) -> None:
    """One process alone sees a bad example; both must take the same decision."""
    poison = (
        "import jax.numpy as jnp\nfrom jaxdp.data.augment import Preprocess\nclean ="
        " Preprocess.__call__\ndef bad(self, batch, keys_of):\n    out = dict(clean(self, batch,"
        " keys_of))\n    if keys_of is None:\n        return out\n    import jax\n    from"
        " jaxdp.data import pipeline\n    order = pipeline.TrainingOrder(1437, 32, 0, 44)\n   "
        " number = int(order[5][20])\n    out['images'] = jnp.where((batch['indices'] == number)[:,"
        " None, None, None], jnp.nan, out['images'])\n    return out\nPreprocess.__call__ = bad\n"
    )
    flags = [
        "--steps",
        "12",
        "--checkpoint-every",
        "4",
        "--on-divergence",
        "skip",
        "--max-divergences",
        "2",
    ]
    group = Processes(*flags, preludes={0: poison, 1: poison})
    assert group.codes() == [0, 0], group.errors(0) + group.errors(1)
    done = json.loads(pathlib.Path("run", "summary.json").read_text())
    assert done["skipped_updates"] == 1
    assert all(np.isfinite(array).all() for array in arrays("run", newest()).values())
    record_fault(
        "non-finite gradient at one of two processes (skip)", 1, "the same decision in both", 0
    )


@pytest.mark.slow
def test_damaged_checkpoints_are_set_aside_once(record_fault: RecordFault) -> None:
    assert Processes("--steps", "8", "--checkpoint-every", "4").codes() == [0, 0]
    largest = max(
        pathlib.Path("run", "checkpoints", "8").rglob("*"),
        key=lambda path: path.stat().st_size if path.is_file() else -1,
    )
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    group = Processes("--steps", "12", "--checkpoint-every", "4")
    assert group.codes() == [0, 0], group.errors(0) + group.errors(1)
    assert "continuing run after step 4" in group.errors(0)
    assert [path.name for path in pathlib.Path("run", "damaged").iterdir()] == ["8"]
    whole = Processes("--steps", "12", "--checkpoint-every", "4", "--run-dir", "whole")
    assert whole.codes() == [0, 0]
    assert_same_run("whole", "run", 12)
    record_fault(
        "flipped bit, two processes", 1, "set aside once; resumed from the one before, bitwise", 0
    )


def refused(*flags: str) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-m", "jaxdp.train", *FLAGS, *flags],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=100,
    )
    return ended.returncode, ended.stderr.splitlines()


def test_a_coordinator_that_cannot_be_reached_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    who = [
        "--coordinator",
        address,
        "--num-processes",
        "2",
        "--process-id",
        "1",
        "--distributed-timeout",
        "1.5",
    ]
    code, (line,) = refused(*who)
    assert code == 2
    assert line.startswith(
        f"jaxdp.train: error: --coordinator {address}: cannot be reached within"
        " --distributed-timeout 1.5 s ("
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"coordinator": "{address}", "num_processes": 2, "process_id": 0},
            "--coordinator {address}: its port cannot be opened here",
        ),
        (
            {"coordinator": "{address}", "num_processes": 2, "process_id": 2},
            "--process-id 2: must be below --num-processes, which is 2",
        ),
        (
            {"coordinator": "{address}", "num_processes": 2},
            "--process-id: is missing; give --coordinator, --num-processes and",
        ),
        (
            {"coordinator": "nowhere", "num_processes": 2, "process_id": 1},
            "--coordinator nowhere: must be HOST:PORT of process 0",
        ),
        (
            {"distributed": "on"},
            (
                "--distributed on: no Slurm step, Open MPI job, Kubernetes indexed job or TPU pod"
                " was detected; give"
            ),
        ),
    ],
)
def test_what_cannot_connect_is_refused(settings: dict[str, Any], message: str) -> None:
    with socket.create_server(("", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = {
            name: value.format(address=address) if isinstance(value, str) else value
            for name, value in settings.items()
        }
        with pytest.raises(ConfigError) as raised:
            processes.start(ProcessConfig(**given))
    assert str(raised.value).startswith(message.format(address=address))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "x"},
            "SLURM_NTASKS=x: must be a number of processes; correct it, or give --distributed off",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "-2"},
            (
                "OMPI_COMM_WORLD_SIZE=-2: must be a number of processes; correct it, or give"
                " --distributed off"
            ),
        ),
        (
            {"SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "2"},
            (
                "--distributed auto: a Slurm step was detected, but JAX cannot connect its"
                " processes (ValueError: "
            ),
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b"},
            (
                "--distributed auto: a TPU pod was detected, but JAX cannot connect its processes"
                " (ValueError: "
            ),
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"},
            (
                "--distributed auto: a Kubernetes indexed job was detected, but the package"
                " kubernetes is not installed;"
            ),
        ),
    ],
    ids=["slurm", "open-mpi", "slurm-incomplete", "tpu", "kubernetes"],
)
def test_a_cluster_that_cannot_be_used_is_one_line_and_code_2(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, (line,) = refused()
    assert code == 2
    assert line.startswith(f"jaxdp.train: error: {expected}")
    assert "--distributed off" in line


@pytest.mark.slow
def test_processes_that_do_not_come_are_missed() -> None:
    address = f"127.0.0.1:{free_port()}"
    who = [
        "--coordinator",
        address,
        "--num-processes",
        "2",
        "--process-id",
        "0",
        "--distributed-timeout",
        "3",
    ]
    code, (line,) = refused(*who)
    assert code == 1
    text = (
        "timed out after 3 s waiting for all processes; start all of them, each with its own"
        " --process-id"
    )
    assert line == f"jaxdp.train: error: {text}"


def test_the_runtimes_last_words_become_one_line() -> None:
    native_output.name_processes(("process 0 (pid 1 on a)", "process 1 (pid 2 on b)"))
    try:
        dead = (
            "E1121 16:07:02 x.cc:1549] UNAVAILABLE: The following tasks are unhealthy (stopped"
            " sending heartbeats):\n1\nThe tasks have crashed. Check the task logs\nF1121 16:07:02"
            " 7234 client.h:80] Terminating process\n*** Check failure"
        )
        assert (
            native_output.explain(dead)
            == f"process 1 (pid 2 on b) died or stopped responding{AGAIN}"
        )
        leader = (
            "F1121 1 client.h:80] Terminating process: Failed to send RPC to coordination service."
            " Either the leader task"
        )
        assert native_output.explain(leader).startswith(
            "process 0 (pid 1 on a), the coordinator, died or cannot be reached"
        )
        silent = (
            "F1122 22:07:41.653394 25812 client.h:80] Terminating process because the JAX"
            " distributed service detected fatal errors. This most likely indicates that another"
            " task died; see the other task logs for more details. Disable Python buffering, i.e."
            " `python -u`, to be sure to see all the previous output. absl::Status:"
            " DEADLINE_EXCEEDED: Deadline Exceeded"
        )
        assert (
            native_output.explain(silent)
            == f"process 0 (pid 1 on a), the coordinator, died or cannot be reached{AGAIN}"
        )
        assert (
            native_output.explain("F1121 16:07 1 hlo.cc:1] Check failed:  x\n*** stack")
            == "F1121 16:07 1 hlo.cc:1] Check failed: x"
        )
    finally:
        native_output.name_processes(())
