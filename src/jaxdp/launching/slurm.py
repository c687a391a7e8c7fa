"""Writes the batch script with which Slurm runs a training command, including after a requeue.

The script starts one task per GPU with srun. In each task, JAX finds the others from Slurm's
variables and uses the GPU with its own number (SLURM_LOCALID). All tasks of a node must therefore
see all GPUs of the node, without --gpus-per-task or --gpu-bind. sbatch checks times, and its own
options, such as --partition, override the script's options.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence

from jaxdp.config import NON_NEGATIVE, POSITIVE, REQUIRED, Settings, TrainConfig, setting
from jaxdp.errors import ConfigError, flag

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
    """The Slurm job of a training run."""

    nodes: int = setting(
        REQUIRED,
        "nodes of the job",
        POSITIVE,
    )
    gpus_per_node: int = setting(
        REQUIRED,
        "GPUs of each node, one task for each; 0 for a run on CPUs",
        NON_NEGATIVE,
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
        "how long before the limit, or up to a minute earlier, the run saves and ends; "
        "enough for a step and a checkpoint, and well below --time",
        POSITIVE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus_per_node and self.tasks_per_node is not None:
            remedy = f"each GPU has one task; leave it out, or use {flag('gpus_per_node', 0)}"
            raise ConfigError("tasks_per_node", self.tasks_per_node, remedy)


def launch(flags: Sequence[str], config: SlurmConfig, train: TrainConfig) -> int:
    """Prints the batch script that runs `jaxdp.train` with these flags."""
    print(_script(config, flags), end="")
    return 0


def _script(config: SlurmConfig, flags: Sequence[str]) -> str:
    directives = {
        "job-name": "jaxdp",
        "nodes": config.nodes,
        "ntasks-per-node": config.gpus_per_node or config.tasks_per_node or 1,
        "gpus-per-node": config.gpus_per_node or None,
        "cpus-per-task": config.cpus_per_task,
        "time": config.time,
        "output": "%x-%j.out",
        "open-mode": "append",  # a requeued job writes to the same file
        # Without "B:", the signal goes to the tasks instead of this shell.
        "signal": f"USR1@{config.save_seconds}",
    }
    lines = [
        f"#SBATCH --{name}={shlex.quote(str(value))}"
        for name, value in directives.items()
        if value is not None
    ]
    return _TEMPLATE.format(
        directives="\n".join([*lines, "#SBATCH --requeue"]),
        # Since Slurm 22.05, srun does not inherit this option from the job.
        srun_flags=f" --cpus-per-task={config.cpus_per_task}" if config.cpus_per_task else "",
        command=shlex.join([sys.executable, "-m", "jaxdp.train", *flags]),
    )
