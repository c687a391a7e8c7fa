"""Writes the batch script with which Slurm runs a training command, and runs it again after a
requeue; submits it.

The script starts one task per GPU with srun; in each, JAX finds the others from Slurm's variables
and takes the GPU of its own number (SLURM_LOCALID), so the tasks of a node must all see all its
GPUs: no --gpus-per-task, no --gpu-bind.
"""

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from jaxdp.config import POSITIVE, REQUIRED, Settings, setting
from jaxdp.registry import ConfigError

_FORMATS = "MINUTES, HH:MM:SS or DAYS-HH:MM:SS, e.g. 04:00:00"
# As in sbatch's manual: minutes, minutes:seconds, hours:minutes:seconds,
# days-hours[:minutes[:seconds]].
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::(?P<ds>\d+))?"
    r"|(?:(?P<h>\d+):(?=\d+:))?(?P<m>\d+)(?::(?P<s>\d+))?)"
)
# Slurm looks at its clock so seldom that the signal can come this much earlier than asked for.
_SIGNAL_SLACK_SECONDS = 60

_TEMPLATE = """\
#!/bin/bash
{directives}

# The same command starts the run and, after a requeue, continues it from its last checkpoint.
# When one task ends with an error, the other tasks run on: they notice, report why, and save
# what they can; --wait ends those that hang. --kill-on-bad-exit=1 would cut off tasks that are
# leaving with 75, and replace the code.
srun --kill-on-bad-exit=0 --wait=60{srun_flags} {command}
code=$?

# 75: a signal stopped the run after it had saved, most often because the time was nearly up.
# When Slurm itself ends the job (preemption, requeue, scancel), this shell ends with it, so that
# a cancelled job stays cancelled.
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmConfig(Settings):
    """Flags that describe the Slurm job of a training run."""

    nodes: int = setting(
        REQUIRED,
        "nodes of the job",
        POSITIVE,
    )
    gpus_per_node: int = setting(
        REQUIRED,
        "GPUs of each node, one task for each; 0 for a run on CPUs",
    )
    tasks_per_node: int | None = setting(
        None,
        "with --gpus-per-node 0: tasks of each node (default: 1)",
        POSITIVE,
    )
    cpus_per_task: int | None = setting(
        None,
        "cores of each task, for reading examples and, without GPUs, for everything "
        "(default: as the cluster decides)",
        POSITIVE,
    )
    time: str | None = setting(
        None,
        "limit of one stretch, MINUTES, HH:MM:SS or DAYS-HH:MM:SS; the run goes on in the "
        "next one (default: the partition's)",
        metavar="TIME",
    )
    save_seconds: int = setting(
        120,
        "how long before the limit the run is told to save and make room; enough for a step "
        "and a checkpoint",
        POSITIVE,
    )
    partition: str | None = setting(
        None,
        "partition to run in (default: the cluster's)",
        metavar="NAME",
    )
    account: str | None = setting(
        None,
        "account to charge (default: your own)",
        metavar="NAME",
    )
    job_name: str = setting(
        "jaxdp",
        "name of the job and of its log, NAME-JOBID.out",
    )
    submit: bool = setting(
        False,
        "hand the script to sbatch instead of printing it",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tasks()
        self._check_words()

    def _check_tasks(self) -> None:
        if self.gpus_per_node < 0:
            raise ConfigError(
                "gpus_per_node", self.gpus_per_node, "must not be negative; 0 for a run on CPUs"
            )
        if self.gpus_per_node and self.tasks_per_node is not None:
            raise ConfigError(
                "tasks_per_node",
                self.tasks_per_node,
                "each GPU has one task; leave it out, or use --gpus-per-node 0",
            )

    def _check_words(self) -> None:
        for name in ("partition", "account", "job_name"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.,+@:=][\w.,+@:=-]*", value, re.ASCII):
                raise ConfigError(
                    name, value, "must be a name of letters, digits and -_.,+@:= without spaces"
                )
        if (
            self.time is not None
            and _seconds(self.time) <= self.save_seconds + _SIGNAL_SLACK_SECONDS
        ):
            remedy = (
                f"must be longer than --save-seconds and the {_SIGNAL_SLACK_SECONDS} s that Slurm"
                " may be early"
            )
            raise ConfigError(
                "time",
                self.time,
                f"{remedy}: more than {self.save_seconds + _SIGNAL_SLACK_SECONDS} s",
            )


def script(config: SlurmConfig, flags: Sequence[str]) -> str:
    """Returns the batch script that trains with `flags`."""
    directives = {
        "job-name": config.job_name,
        "nodes": config.nodes,
        "ntasks-per-node": config.gpus_per_node or config.tasks_per_node or 1,
        "gpus-per-node": config.gpus_per_node or None,
        "cpus-per-task": config.cpus_per_task,
        "time": config.time,
        "partition": config.partition,
        "account": config.account,
        "output": "%x-%j.out",
        "open-mode": "append",  # a requeued job writes to the same file
        # Without "B:" it goes to the tasks, not to this shell.
        "signal": f"USR1@{config.save_seconds}",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value is not None]
    return _TEMPLATE.format(
        directives="\n".join([*lines, "#SBATCH --requeue"]),
        # Since Slurm 22.05 srun does not take this over from the job.
        srun_flags=f" --cpus-per-task={config.cpus_per_task}" if config.cpus_per_task else "",
        command=shlex.join([sys.executable, "-m", "jaxdp.train", *flags]),
    )


def submit(text: str) -> str:
    """Hands a script to sbatch and returns its answer.

    Raises:
        ConfigError: if there is no sbatch, or it refuses.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "submit",
            "",
            "there is no sbatch here; leave --submit out, and run sbatch on what is printed where"
            " there is",
        )
    answer = subprocess.run(["sbatch"], input=text, capture_output=True, text=True)
    if answer.returncode:
        reason = (
            "; ".join(answer.stderr.split("\n")).strip("; ") or f"exit code {answer.returncode}"
        )
        raise ConfigError("submit", "", f"sbatch refuses: {reason}")
    return answer.stdout


def _seconds(time: str) -> int:
    """Raises ConfigError for what is not one of Slurm's formats, or not a limit."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise ConfigError("time", time, f"must be {_FORMATS}")
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    hours, minutes, seconds = (
        part["dh"] + part["h"],
        part["dm"] + part["m"],
        part["ds"] + part["s"],
    )
    if (match["h"] or match["days"]) and (minutes > 59 or seconds > 59):
        raise ConfigError("time", time, f"must be {_FORMATS}")
    return ((part["days"] * 24 + hours) * 60 + minutes) * 60 + seconds
