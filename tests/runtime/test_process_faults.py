"""What becomes of the other processes when one dies, hangs, is told to stop, or was started
differently?
"""

import json
import pathlib
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from process_group import (
    FLAGS,
    Command,
    Processes,
    arrays,
    assert_same_run,
    flip,
    free_port,
    largest,
    newest,
    slow_steps,
)

from jaxdp import train
from jaxdp.config import ProcessConfig
from jaxdp.errors import ConfigError
from jaxdp.runtime import processes

AGAIN = "; the same command continues after the last checkpoint"
RecordFault = Callable[..., None]
SLOW = dict.fromkeys((0, 1), slow_steps(0.1))


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all_at_the_same_step(record_fault: RecordFault) -> None:
    steps = ["--steps", "40", "--checkpoint-every", "100"]
    group = Processes(*steps, preludes=dict.fromkeys((0, 1), slow_steps(0.2)))
    group.wait_for("step 3/")
    group.running[1].send_signal(signal.SIGUSR1)
    group.end_with(75, 75)
    stopped = newest()
    assert 3 < stopped < 40
    assert group.error_lines(0) == [
        f"stopped by a signal after saving step {stopped}; the same command continues"
    ]
    shutil.copytree("run", "alone")
    again = Processes(*steps)
    again.end_with(0, 0)
    assert f"continuing run after step {stopped}" in again.errors(0)
    assert train.main([*FLAGS, *steps, "--run-dir", "alone", "--devices", "2"]) == 0
    Processes(*steps, "--run-dir", "whole").end_with(0, 0)
    assert_same_run("whole", "run", 40)
    expected = arrays("whole", 40)
    for name, array in arrays("alone", 40).items():  # one process with the devices of both
        np.testing.assert_allclose(array, expected[name], atol=1e-4, err_msg=name)
    record_fault("signal to one of two processes", 1, "both saved the same step; resumed bitwise")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_the_other_notices_one_that_is_gone(
    fault: signal.Signals, victim: int, record_fault: RecordFault
) -> None:
    group = Processes("--steps", "1000", "--checkpoint-every", "5", preludes=SLOW)
    group.wait_for("step 7/")
    before = newest()
    group.running[victim].send_signal(fault)
    began = time.monotonic()
    code = group.running[1 - victim].wait(timeout=100)
    assert time.monotonic() - began < 5 + 20  # the heartbeat timeout, and a slow machine
    group.running[victim].kill()
    assert group.codes()[victim] == -signal.SIGKILL
    assert_missed(group, 1 - victim, code)
    outcome = "the other says that one is lost and ends"
    if fault == signal.SIGSTOP:
        record_fault("SIGSTOP to one of two processes", 1, outcome)
        return
    again = Processes("--steps", str(newest() + 2))
    again.end_with(0, 0)
    assert int(again.errors(0).split("after step ")[1].split()[0]) >= before
    record_fault("kill -9 of one of two processes", 1, f"{outcome}; resumed")


def assert_missed(group: Processes, index: int, code: int) -> None:
    """A process that misses another one ends by itself, or JAX's runtime aborts it."""
    if code == 1:
        assert f"error: another process died or cannot be reached{AGAIN}" in group.errors(index)
    else:
        assert code == -signal.SIGABRT
        assert "most likely indicates that another task died" in group.errors(index)


@pytest.mark.slow
def test_one_that_hangs_is_found_and_named(record_fault: RecordFault) -> None:
    stuck = slow_steps("0.1 if (n := globals().get('n', 0) + 1) < 8 else 1000", "    global n\n")
    group = Processes("--steps", "1000", "--step-timeout", "4", preludes={1: stuck})
    group.end_with(1, 1)
    for index in (0, 1):
        (line,) = group.error_lines(index)
        assert re.search("no step was finished for [45] s after step", line)
        assert re.search(r"process 1 \(pid .* is behind, at step \d+ \(waiting for input\)", line)
        report = pathlib.Path("run", f"hang-{index}.txt").read_text()
        assert "most recent call first" in report
    assert "in slow" in pathlib.Path("run", "hang-1.txt").read_text()
    outcome = "both name it, write where each thread stands, leave with 1"
    record_fault("one of two processes hangs", 1, outcome)


FULL = """
from jaxdp.checkpoint.checkpoints import Checkpoints, NotSavedError
def save(*args, **kwargs):
    raise NotSavedError("the checkpoint of step 3 could not be saved in run: No space left")
Checkpoints.save = save
"""
# Each would wait for the other inside Orbax, which reports to no process that its part has failed.
LIMITED = """
import resource, signal
from jaxdp.checkpoint.checkpoints import Checkpoints
saves = Checkpoints.save
def save(self, step, *args, **kwargs):
    if step == 6:
        self.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # rows of metrics fit
    return saves(self, step, *args, **kwargs)
Checkpoints.save = save
"""
SHARDED = (
    "--checkpoint-every 3 --model-kwargs width=16 hidden=64 --strategy sharded --shard-params"
).split()


@pytest.mark.slow
def test_one_that_fails_tells_the_others(record_fault: RecordFault) -> None:
    group = Processes("--steps", "40", "--checkpoint-every", "3", preludes={0: FULL})
    group.end_with(1, 1)
    reason = "the checkpoint of step 3 could not be saved in run: No space left"
    assert group.error_lines(0) == [f"jaxdp.train: error: {reason}{AGAIN}"]
    (line,) = group.error_lines(1)
    assert re.search(rf"process 0 \(pid .* has left: {reason}", line)
    record_fault("full disk at one of two processes", 1, "both say so and leave with 1")


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)], ids=str)
def test_a_disk_that_is_full_while_saving(
    victims: tuple[int, ...], record_fault: RecordFault
) -> None:
    began = time.monotonic()
    group = Processes("--steps", "40", *SHARDED, preludes=dict.fromkeys(victims, LIMITED))
    group.end_with(1, 1)
    assert time.monotonic() - began < 60
    lines = [
        line
        for index in (0, 1)
        for line in group.error_lines(index)
        if not line.startswith("state: ")
    ]
    assert len(lines) == 2, lines
    assert re.search("the checkpoint of step 6 could not be saved in .*File too large", str(lines))
    assert newest() == 3
    again = Processes("--steps", "7", *SHARDED)
    again.end_with(0, 0)
    assert "continuing run after step 3" in again.errors(0)
    where = "both" if len(victims) == 2 else "one"
    outcome = "both leave with 1, at least one says why; resumed"
    record_fault(f"full disk while saving at {where} of two processes", 1, outcome)


OTHER_WEIGHTS = """
from flax import nnx
from jaxdp.build import initial_state
create = initial_state.create_model
def other(config, *args, rngs, **kwargs):
    return create(config, *args, rngs=nnx.Rngs(7), **kwargs)
initial_state.create_model = other
"""
# A bad example of step 5, which one process alone sees.
BAD_EXAMPLE = """
import jax.numpy as jnp
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess
clean = Preprocess.__call__
def bad(self, batch, keys_of, moments):
    out = dict(clean(self, batch, keys_of, moments))
    if keys_of is not None:
        number = int(pipeline.TrainingOrder(1437, 32, 0, 44)[5][20])
        is_bad = (batch['indices'] == number)[:, None, None, None]
        out['images'] = jnp.where(is_bad, jnp.nan, out['images'])
    return out
Preprocess.__call__ = bad
"""


@pytest.mark.slow
def test_processes_that_differ_do_not_start(record_fault: RecordFault) -> None:
    group = Processes("--steps", "4", own_flags={1: ["--learning-rate", "0.02"]})
    group.end_with(2, 2)
    for index, (ours, theirs) in enumerate([("0.01", "0.02"), ("0.02", "0.01")]):
        (line,) = group.error_lines(index)
        assert line.startswith(
            f"jaxdp.train: error: --learning-rate {ours}: differs between processes: process"
            f" {1 - index} (pid "
        )
        assert line.endswith(f"has {theirs}; start all with the same")
    assert not pathlib.Path("run", "checkpoints", "4").exists()
    group = Processes("--steps", "4", "--run-dir", "other", preludes={1: OTHER_WEIGHTS})
    group.end_with(2, 2)
    assert "--initial-arrays " in group.errors(0)
    name = "two processes with different settings or weights"
    record_fault(name, 2, "both refuse with 2 before the first step")


@pytest.mark.slow
def test_divergence_is_the_same_on_all_processes(record_fault: RecordFault) -> None:
    flags = "--steps 12 --checkpoint-every 4 --on-divergence skip --max-divergences 2".split()
    Processes(*flags, preludes=dict.fromkeys((0, 1), BAD_EXAMPLE)).end_with(0, 0)
    done = json.loads(pathlib.Path("run", "summary.json").read_text())
    assert done["skipped_updates"] == 1
    assert all(np.isfinite(array).all() for array in arrays("run", newest()).values())
    name = "non-finite gradient at one of two processes (skip)"
    record_fault(name, 1, "the same decision in both")


@pytest.mark.slow
def test_damaged_checkpoints_are_set_aside_once(record_fault: RecordFault) -> None:
    Processes("--steps", "8", "--checkpoint-every", "4").end_with(0, 0)
    flip(largest(pathlib.Path("run", "checkpoints", "8")))
    group = Processes("--steps", "12", "--checkpoint-every", "4")
    group.end_with(0, 0)
    assert "continuing run after step 4" in group.errors(0)
    assert [path.name for path in pathlib.Path("run", "damaged").iterdir()] == ["8"]
    Processes("--steps", "12", "--checkpoint-every", "4", "--run-dir", "whole").end_with(0, 0)
    assert_same_run("whole", "run", 12)
    outcome = "set aside once; resumed from the one before, bitwise"
    record_fault("flipped bit, two processes", 1, outcome)


def refused(*flags: str) -> tuple[int, list[str]]:
    command = Command("jaxdp.train", *FLAGS, *flags)
    return command.code(100), command.err.splitlines()


def test_processes_that_do_not_come_are_missed() -> None:
    address = f"127.0.0.1:{free_port()}"
    who = f"--coordinator {address} --num-processes 2 --process-id".split()
    code, (line,) = refused(*who, "1", "--distributed-timeout", "1.5")
    assert code == 2
    reason = "cannot be reached within --distributed-timeout 1.5 s ("
    assert line.startswith(f"jaxdp.train: error: --coordinator {address}: {reason}")
    code, lines = refused(*who, "0", "--distributed-timeout", "3")
    assert (code, lines[0]) == (2, "waiting up to 3 s for 2 processes")
    (line,) = lines[1:]
    assert line.startswith("jaxdp.train: error: --distributed-timeout 3: not all processes have")
    assert line.endswith(
        "start one for each --process-id below --num-processes, and see the output of each"
    )


def test_two_of_three_end_with_one_line_if_the_third_never_starts() -> None:
    who = f"--coordinator 127.0.0.1:{free_port()} --num-processes 3 --distributed-timeout 20"
    words = ["jaxdp.train", *FLAGS, *who.split(), "--process-id"]
    there = [Command(*words, each, name=each) for each in "01"]
    assert [each.code(100) for each in there] == [2, 2]
    for command in there:
        line = command.err.splitlines()[-1]
        assert line.startswith("jaxdp.train: error: --distributed-timeout 20: not all processes")
        assert "Check failure" not in command.err


def test_a_slurm_step_that_misses_a_task_is_told_about_srun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    for name, value in (step | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).items():
        monkeypatch.setenv(name, value)
    code, lines = refused("--distributed-timeout", "4")
    assert code == 2
    assert lines[-1] == (
        "jaxdp.train: error: --distributed-timeout 4: not all processes have connected; this is a"
        " Slurm step of 2 tasks: start all by one srun --ntasks=2, see the output of each task, or"
        " give --distributed off to a process that trains alone"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"coordinator": "{address}", "num_processes": 2, "process_id": 0},
            "coordinator={address}: its port cannot be opened here",
        ),
        (
            {"coordinator": "{address}", "num_processes": 2, "process_id": 2},
            "process_id=2: must be below num_processes, which is 2",
        ),
        (
            {"coordinator": "{address}", "num_processes": 2},
            "process_id: is missing; give coordinator, num_processes and",
        ),
        (
            {"coordinator": "nowhere", "num_processes": 2, "process_id": 1},
            "coordinator=nowhere: must be HOST:PORT of process 0",
        ),
        (
            {"distributed": "on"},
            (
                "distributed=on: no Slurm step, Open MPI job, Kubernetes indexed job or TPU pod"
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
                "--distributed auto: a Kubernetes indexed job was detected, but JAX cannot connect"
                " its processes (ValueError: "
            ),
        ),
    ],
    ids=["slurm", "tpu", "kubernetes"],
)
def test_a_cluster_that_cannot_be_used_is_one_line_and_code_2(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, lines = refused()
    assert code == 2
    line = lines[-1]  # JAX warns of a package that is missing
    assert line.startswith(f"jaxdp.train: error: {expected}")
    assert "--distributed off" in line
