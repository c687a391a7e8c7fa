"""The launcher shares out GPUs, refuses what cannot work, starts again after a failure, and passes
signals on.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from process_group import Command, environment, newest

from jaxdp import launch, train
from jaxdp.cli.exit_codes import EXIT_LOCKED, SUPERVISED
from jaxdp.config import TrainConfig
from jaxdp.launching import launcher as launcher_lib
from jaxdp.launching import supervisor
from jaxdp.launching.launcher import LaunchConfig, device_shares
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime import processes

FLAGS = (
    "--model-kwargs depth=8 alpha=6 --global-batch-size 32 --steps 150 --checkpoint-every 5"
    " --log-every 1 --run-dir run --heartbeat-timeout 5"
).split()


START = "write what to start after the flags: -- train --model pyramidnet ..."
SLURM = "slurm --nodes 3 --gpus-per-node 4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-n 2", START),
        ("-n 2 -- evaluate run", START),
        ("-n 0 -- train", "--num-processes 0: must be greater than 0"),
        ("-n 2 -- train --process-id=1", "--process-id: is set by the launcher; leave it out"),
        ("-- train", "num-processes"),
        ("-n 2 -- train --step 3", "--step: unknown flag"),
        ("slurm --nodes 0 --gpus-per-node 4 -- train", "--nodes 0: must be greater than 0"),
        ("slurm --nodes 1 --gpus-per-node -1 -- train", "--gpus-per-node -1: must not be negative"),
        ("slurm --gpus-per-node 4 -- train", "nodes"),
        (f"{SLURM} --tasks-per-node 2 -- train", "--tasks-per-node 2: each GPU has one task"),
        (f"{SLURM} --cpus-per-task 0 -- train", "--cpus-per-task 0: must be greater than 0"),
        (f"{SLURM} --node 1 -- train", "--node: unknown flag"),
        (f"{SLURM} --submit -- train", "--submit: was removed in 0.3.0: pipe the script"),
        ("-n 2 --log-dir logs -- train", "--log-dir: was removed in 0.3.0: redirect"),
        (SLURM, START),
        (f"{SLURM} -- evaluate", START),
        (f"{SLURM} -- train --coordinator a:1", "--coordinator: is set by the launcher"),
        (f"{SLURM} -- train --modell cnn", "--modell: unknown flag; did you mean --model?"),
        (
            "ray --workers 2 -- train",
            "ray: was removed after 0.3.0: use Ray Train, as in examples/on_ray_train.py",
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch.main(words.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert line.startswith("jaxdp.launch: error: ")
    assert message in line


def test_gpus_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "CUDA_VISIBLE_DEVICES"
    monkeypatch.setenv(name, "3,5,6,7")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert device_shares(2) == [{name: "3,5"}, {name: "6,7"}]
    assert device_shares(2, 1) == [{name: "3"}, {name: "5"}]
    for words, message in (
        ("-n 3", "3 processes do not divide 4 GPUs"),
        (
            "-n 3 --devices-per-process 2",
            "--devices-per-process 2: 3 processes need 6 GPUs; there are 4",
        ),
    ):
        assert launch.main([*words.split(), "--", "train"]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert device_shares(3) == [{}, {}, {}]


def start(*flags: str) -> Command:
    return Command("jaxdp.launch", "-n", "2", *flags, "--", "train", *FLAGS)


def children(command: Command) -> list[int]:
    pid = command.process.pid
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


SCRIPT = """
import sys, jaxdp
from flax import nnx

layer = nnx.Linear(64, 10, rngs=nnx.Rngs(0))  # uses JAX
model = nnx.Sequential(lambda images: images.reshape(len(images), -1), layer)
result = jaxdp.Trainer(
    model, "digits", steps=3, global_batch_size=32, run_dir=sys.argv[1], progress=False,
).fit()
print(result.metrics["test"]["loss"])
"""


def test_a_script_trains_in_several_processes_like_in_one() -> None:
    pathlib.Path("own.py").write_text(SCRIPT)
    launched = Command(
        "jaxdp.launch", "-n", "2", "--devices-per-process", "2", "--", "own.py", "several"
    )
    assert launched.code(300) == 0, launched.err
    alone = subprocess.run(
        [sys.executable, "own.py", "alone"], capture_output=True, text=True, env=environment()
    )
    assert alone.returncode == 0, alone.stderr
    assert float(launched.out.splitlines()[-1]) == pytest.approx(float(alone.stdout), rel=1e-5)
    devices = [
        json.loads(pathlib.Path(folder, "summary.json").read_text())["devices"]
        for folder in ("several", "alone")
    ]
    assert devices == [4, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-n 2 -- lost.py", "lost.py: there is no such script"),
        (f"{SLURM} -- own.py", "write what to start after the flags: -- train"),
    ],
)
def test_scripts_that_cannot_be_started(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pathlib.Path("own.py").write_text("")
    assert launch.main(words.split()) == 2
    assert message in capsys.readouterr().err


def test_a_script_does_not_pass_on_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "JAXDP_COORDINATOR": "127.0.0.1:9",
        "JAXDP_NUM_PROCESSES": "2",
        "JAXDP_PROCESS_ID": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = processes._take_place()
    assert (config.coordinator, config.num_processes, config.process_id) == ("127.0.0.1:9", 2, 1)
    assert not {*os.environ} & {*variables}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes in /proc")
def test_a_killed_process_is_started_again_with_all_others(
    record_fault: Callable[..., None],
) -> None:
    launcher = start("--max-restarts", "1")
    launcher.wait_for("[0] step 12/")
    os.kill(children(launcher)[1], signal.SIGKILL)
    assert launcher.code(300) == 0
    shown = launcher.err
    assert "jaxdp.launch: a process ended with 137; starting all again (1 of at most 1)" in shown
    assert int(shown.split("continuing run after step ")[1].split()[0]) >= 10
    assert newest() == 150
    name = "kill -9 of a launched process, --max-restarts 1"
    record_fault(name, 1, "all started again; complete")


# Instead of jaxdp.train: how its processes may end.
STAND_IN = """
import os, signal, sys, time

def main():
    which = sys.argv[sys.argv.index("--process-id") + 1]
    what = dict(word.split("=") for word in os.environ["OUTCOMES"].split())[which]
    print("step 3/10 loss 0.1", file=sys.stderr, flush=True)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stuck":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
    time.sleep(0.8)  # more than the grace alone
    if what == "1":
        print("jaxdp.train: error: process 0 died", file=sys.stderr)
    sys.exit(int(what))

main()
"""


# A launcher is a process of its own, in which JAX has not started.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize(
    ("outcomes", "code", "expected"),
    [
        ("0=0 1=0", 0, []),
        ("0=75 1=75", 75, []),
        ("0=2 1=2", 2, []),
        ("0=1 1=73", 2, []),  # a locked folder: process 1 has said so
        (
            "0=killed 1=1 2=75",
            137,
            [
                "process 0 was the first to fail: it was killed by SIGKILL",
            ],
        ),
        (
            "0=stuck 1=1",
            1,
            [
                "killing process 0, which did not end",
                "process 1 was the first to fail: it ended with exit code 1",
            ],
        ),
    ],
    ids=["done", "stopped", "refused", "locked", "killed", "stuck"],
)
def test_the_launcher_says_who_ended_and_why(
    outcomes: str,
    code: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OUTCOMES", outcomes)
    monkeypatch.setattr(launcher_lib, "TRAIN", ["-c", STAND_IN])
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.5)
    config = LaunchConfig(num_processes=len(outcomes.split()))
    assert launcher_lib.launch([], config, TrainConfig.of(heartbeat_timeout=2.0)) == code
    prefix = "jaxdp.launch: "
    shown = capsys.readouterr().err.splitlines()
    lines = [line.removeprefix(prefix) for line in shown if line.startswith(prefix)]
    assert all(f" on {socket.gethostname()})" in line for line in lines)
    assert [re.sub(r" \(pid \d+ on [^)]+\)", "", line) for line in lines] == expected


def test_a_supervised_process_has_a_code_for_a_locked_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launchers do not read its message; a command of its own exits with 2."""
    run = RunDirectory(pathlib.Path("run"))
    run.path.mkdir()
    flags = "--model cnn --image-size 16 --global-batch-size 32 --steps 1 --run-dir run".split()
    with run.exclusive():
        for supervised, code in (("1", EXIT_LOCKED), (None, 2)):
            if supervised:
                monkeypatch.setenv(SUPERVISED, supervised)
            else:
                monkeypatch.delenv(SUPERVISED)
            assert train.main(flags) == code
            assert "--run-dir run: is being written by" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes in /proc")
def test_signals_are_passed_on(record_fault: Callable[..., None]) -> None:
    launcher = start()
    launcher.wait_for("[0] step 3/")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.code(100) == 75
    assert "[0] stopped by a signal after saving step" in launcher.err
    launcher = start()
    launcher.wait_for("[0] step ")
    processes = children(launcher)
    stopped = newest()
    launcher.process.kill()  # the processes get a SIGTERM, and save, although their output is not read
    launcher.process.wait()
    deadline = time.monotonic() + 60
    while any(pathlib.Path("/proc", str(number)).exists() for number in processes):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    summary = json.loads(pathlib.Path("run", "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("stopped", newest())
    assert summary["steps"] > stopped
    name = "SIGINT to the launcher, kill -9 of the launcher"
    record_fault(name, 2, "both processes saved the same step")
