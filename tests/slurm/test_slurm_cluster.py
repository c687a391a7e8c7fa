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
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not pytest's own folder: the name of a socket has at most 107 characters.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
    host = socket.gethostname().partition(".")[0]
    # JAX derives the coordinator's port from the number of the job: two of these clusters at a time
    # must not meet there.
    numbers = {
        "controller_port": ports[0],
        "node_port": ports[1],
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
            wait(lambda: "idle" in found.run("sinfo", "--noheader", "--format=%T"), 60, found.logs)
            yield found
        finally:
            if len(daemons) == 3:  # jobs outlive the daemons
                subprocess.run(["scancel", "--user=root"], capture_output=True)
                with contextlib.suppress(AssertionError):
                    wait(
                        lambda: not Cluster(folder).run("squeue", "--noheader"),
                        90,
                        lambda: "jobs are left",
                    )
            for daemon in daemons[::-1]:
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    daemon.kill()
            shutil.rmtree(folder, ignore_errors=True)


def wait(condition: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.5)


def submit(*flags: str, limits: Sequence[str] = ()) -> str:
    job = [*"--nodes 1 --gpus-per-node 0 --tasks-per-node 2".split(), *limits]
    words = ["slurm", *job, "--submit", "--", "train", *TRAIN, *flags]
    done = subprocess.run(
        [sys.executable, "-m", "jaxdp.launch", *words], capture_output=True, text=True
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

    def explain() -> str:
        return f"{cluster.job(job)}\n{log(job)}{cluster.logs()}"

    wait(lambda: len(rows()) >= 5, 300, explain)
    assert rows()[-1] < steps / 2, "the run is too fast to be interrupted"
    # As a preemption: Slurm sends SIGTERM to all, and starts the script again.
    cluster.run("scontrol", "requeue", job)
    wait(lambda: "stopped by a signal after saving step" in log(job), 120, explain)
    wait(lambda: cluster.job(job)["JobState"] in ("PENDING", "RUNNING"), 120, explain)
    cluster.start_soon(job)
    wait(lambda: "continuing run after step " in log(job), 300, explain)
    reached = rows()[-1]
    wait(lambda: rows()[-1] >= reached + 5, 300, explain)
    # As shortly before the time limit: SIGUSR1 to the tasks only; the script asks for the requeue.
    cluster.run("scancel", "--signal=USR1", job)
    wait(lambda: int(cluster.job(job)["Restarts"]) >= 2, 120, explain)
    wait(lambda: cluster.job(job)["JobState"] in ("PENDING", "RUNNING"), 120, explain)
    cluster.start_soon(job)
    wait(
        lambda: cluster.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
        600,
        explain,
    )
    assert cluster.job(job)["JobState"] == "COMPLETED", explain()
    assert log(job).count("continuing run after step ") == 2
    # Both tasks say so.
    assert log(job).count("stopped by a signal after saving step") == 2 * 2, explain()
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

    def explain() -> str:
        return f"{cluster.job(job)}\n{log(job)}{cluster.logs()}"

    wait(lambda: len(rows()) >= 5, 300, explain)
    cluster.run("scancel", job)
    wait(lambda: "stopped by a signal after saving step" in log(job), 120, explain)
    wait(
        lambda: (
            cluster.run(
                "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"
            ).strip()
            == "CANCELLED"
        ),
        120,
        explain,
    )
    time.sleep(5)
    found = cluster.job(job)
    assert (found["JobState"], found["Restarts"]) == ("CANCELLED", "0"), explain()


def test_a_job_whose_time_is_up_saves_and_is_queued_again(cluster: Cluster) -> None:
    job = submit("--steps", "100000", limits=["--time", "5", "--save-seconds", "120"])

    def explain() -> str:
        return f"{cluster.job(job)}\n{log(job)}{cluster.logs()}"

    wait(lambda: len(rows()) >= 5, 110, explain)  # before the signal
    wait(lambda: cluster.job(job)["Restarts"] == "1", 240, explain)
    assert log(job).count("stopped by a signal after saving step") == 2, explain()
    assert "Exited with exit code 75" in log(job)
    assert "TIME LIMIT" not in log(job)
    cluster.run("scancel", job)


def test_the_code_of_a_task_that_leaves_first_is_kept(cluster: Cluster) -> None:
    """Why the script says --kill-on-bad-exit=0: with 1 the task that leaves later is killed, and 75
    becomes 143.
    """
    task = "[ $SLURM_PROCID = 0 ] || sleep 5; exit 75"
    codes = []
    for kill in ("0", "1"):
        words = [
            "srun",
            "--ntasks=2",
            f"--kill-on-bad-exit={kill}",
            "--wait=60",
            "bash",
            "-c",
            task,
        ]
        codes.append(subprocess.run(words, capture_output=True).returncode)
    assert codes[0] == 75
    assert codes[1] != 75


def test_devices_of_all_tasks(cluster: Cluster) -> None:
    command = [
        sys.executable,
        "-m",
        "jaxdp.devices",
        "--json",
        *TRAIN[:3],
        "--strategy",
        "shard_map",
        "--data-placement",
        "host",
    ]
    (line,) = cluster.run("srun", "--ntasks=2", *command).splitlines()
    found = json.loads(line)
    assert [process["process"] for process in found["processes"]] == [0, 1]
    held = [process["devices"][0]["holds"] for process in found["processes"]]
    assert held[0] == held[1]
