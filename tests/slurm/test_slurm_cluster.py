"""What a real Slurm does with the script of `jaxdp.launch slurm`: `nox -s slurm` installs one, of
this machine alone.

Signals, exit codes and requeues are Slurm's own here; what one node cannot show is the network
between nodes.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from process_group import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MISSING = [
    name for name in NEEDED if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; run by `nox -s slurm`"),
    pytest.mark.skipif(
        os.getuid() != 0,
        reason="Slurm's daemons start jobs, which takes root; run by `nox -s slurm`",
    ),
]
TRAIN = (
    "--model-kwargs depth=8 alpha=6 --global-batch-size 32 --checkpoint-every 50 --log-every 1"
    " --eval-every 200 --run-dir run --heartbeat-timeout 10 --distributed-timeout 120"
).split()
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
JobRequeue=1
FirstJobId={first_job}
KillWait=60
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclasses.dataclass
class Cluster:
    """One node. Its commands find it by SLURM_CONF."""

    folder: pathlib.Path

    def run(self, *words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def start_soon(self, number: str) -> None:
        """Slurm lets a requeued job wait for two minutes: its node takes no credential of the
        second in which it was killed.
        """
        time.sleep(5)
        with contextlib.suppress(AssertionError):  # it may have started by itself
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def logs(self) -> str:
        return "".join(
            f"\n{path.name}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log")
        )

    def wait(self, condition: Callable[[], bool], seconds: float, job: str) -> None:
        """Waits until something is true of a job."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{self.job(job)}\n{log(job)}{self.logs()}"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not pytest's own folder: the name of a socket has at most 107 characters.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    # JAX derives the coordinator's port from the number of the job: two of these clusters at a time
    # must not meet there.
    numbers = {
        "controller_port": free_port(),
        "node_port": free_port(),
        "first_job": 1 + secrets.randbelow(4000),
    }
    settings = SLURM_CONF.format(host=host, folder=folder, **numbers)
    (folder / "slurm.conf").write_text(settings)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
    environment = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": os.environ["PATH"] + ":/usr/sbin",
        "JAX_PLATFORMS": "cpu",
        # Not the 8 devices that the tests themselves simulate.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        daemons = []
        try:
            for words in (
                ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files],
                ["slurmctld", "-D", "-i"],
                ["slurmd", "-D"],
            ):
                with (folder / f"{words[0]}.out.log").open("w") as output:
                    daemons.append(
                        subprocess.Popen(words, stdout=output, stderr=output, cwd=folder)
                    )
                time.sleep(1)
            found = Cluster(folder)
            deadline = time.monotonic() + 60
            while "idle" not in found.run("sinfo", "--noheader", "--format=%T"):
                assert time.monotonic() < deadline, found.logs()
                time.sleep(0.5)
            yield found
        finally:
            if len(daemons) == 3:  # jobs outlive the daemons
                subprocess.run(["scancel", "--user=root"], capture_output=True)
                time.sleep(10)
            for daemon in daemons[::-1]:
                daemon.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(timeout=30)
                daemon.kill()
            shutil.rmtree(folder, ignore_errors=True)


def submit(*flags: str, limits: Sequence[str] = ()) -> str:
    job = [*"--nodes 1 --gpus-per-node 0 --tasks-per-node 2".split(), *limits]
    words = [sys.executable, "-m", "jaxdp.launch", "slurm", *job, "--", "train", *TRAIN, *flags]
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{shlex.join(words)} | sbatch"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert match is not None, done.stdout
    return match[1]


def rows() -> list[int]:
    path = pathlib.Path("run", "metrics.jsonl")
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["step"] for row in found if row["split"] == "train"]


def log(job: str) -> str:
    path = pathlib.Path(f"jaxdp-{job}.out")
    return path.read_text() if path.exists() else ""


def test_a_job_that_slurm_requeues_and_one_that_requeues_itself(cluster: Cluster) -> None:
    steps = 500
    job = submit("--steps", str(steps))

    cluster.wait(lambda: len(rows()) >= 5, 300, job)
    assert rows()[-1] < steps / 2, "the run is too fast to be interrupted"
    # As a preemption: Slurm sends SIGTERM to all, and starts the script again.
    cluster.run("scontrol", "requeue", job)
    cluster.wait(lambda: "stopped by a signal after saving step" in log(job), 120, job)
    cluster.wait(lambda: cluster.job(job)["JobState"] in ("PENDING", "RUNNING"), 120, job)
    cluster.start_soon(job)
    cluster.wait(lambda: "continuing run after step " in log(job), 300, job)
    reached = rows()[-1]
    cluster.wait(lambda: rows()[-1] >= reached + 5, 300, job)
    # As shortly before the time limit: SIGUSR1 to the tasks only; the script asks for the requeue.
    cluster.run("scancel", "--signal=USR1", job)
    cluster.wait(lambda: int(cluster.job(job)["Restarts"]) >= 2, 120, job)
    cluster.wait(lambda: cluster.job(job)["JobState"] in ("PENDING", "RUNNING"), 120, job)
    cluster.start_soon(job)
    cluster.wait(
        lambda: cluster.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
        600,
        job,
    )
    assert cluster.job(job)["JobState"] == "COMPLETED"
    assert log(job).count("continuing run after step ") == 2
    # Both tasks say so.
    assert log(job).count("stopped by a signal after saving step") == 2 * 2
    assert rows() == list(range(1, steps + 1))
    summary = json.loads(pathlib.Path("run", "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["processes"], summary["devices"]) == (
        "done",
        steps,
        2,
        2,
    )


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(cluster: Cluster) -> None:
    job = submit("--steps", "100000")

    cluster.wait(lambda: len(rows()) >= 5, 300, job)
    cluster.run("scancel", job)
    cluster.wait(lambda: "stopped by a signal after saving step" in log(job), 120, job)
    cluster.wait(
        lambda: (
            cluster.run(
                "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"
            ).strip()
            == "CANCELLED"
        ),
        120,
        job,
    )
    time.sleep(5)
    found = cluster.job(job)
    assert (found["JobState"], found["Restarts"]) == ("CANCELLED", "0")


def test_a_job_whose_time_is_up_saves_and_is_queued_again(cluster: Cluster) -> None:
    job = submit("--steps", "100000", limits=["--time", "5", "--save-seconds", "120"])

    cluster.wait(lambda: len(rows()) >= 5, 110, job)  # before the signal
    cluster.wait(lambda: cluster.job(job)["Restarts"] == "1", 240, job)
    assert log(job).count("stopped by a signal after saving step") == 2
    assert "Exited with exit code 75" in log(job)
    assert "TIME LIMIT" not in log(job)
    cluster.run("scancel", job)
