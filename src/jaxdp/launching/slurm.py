"""Writes the batch script with which Slurm runs a training command, including after a requeue.

The script starts one task per GPU with srun. In each task, JAX finds the others from Slurm's
variables and uses the GPU with its own number (SLURM_LOCALID). All tasks of a node must therefore
see all GPUs of the node, without --gpus-per-task or --gpu-bind. sbatch checks times, and its own
options, such as --partition, override the script's options.
"""

import shlex
import sys
from collections.abc import Sequence

import jinja2

from jaxdp.config import (
    NON_NEGATIVE,
    POSITIVE,
    REQUIRED,
    Settings,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError, flag


@settings_group
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
        """cores of each task, for reading examples and, without GPUs, for everything (default: as
        the cluster decides)""",
        POSITIVE,
    )
    time: str | None = setting(
        None,
        """limit of one stretch, MINUTES, HH:MM:SS or DAYS-HH:MM:SS; the run goes on in the next one
        (default: the partition's)""",
        metavar="TIME",
    )
    save_seconds: int = setting(
        120,
        """how long before the limit, or up to a minute earlier, the run saves and ends; enough for
        a step and a checkpoint, and well below --time""",
        POSITIVE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus_per_node and self.tasks_per_node is not None:
            remedy = f"each GPU has one task; leave it out, or use {flag('gpus_per_node', 0)}"
            raise ConfigError("tasks_per_node", self.tasks_per_node, remedy)


def launch(flags: Sequence[str], config: SlurmConfig, train: TrainConfig) -> int:
    """Prints the batch script that runs `jaxdp.train` with these flags."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdp.launching"), trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    command = shlex.join([sys.executable, "-m", "jaxdp.train", *flags])
    template = environment.get_template("slurm.sh.jinja")
    print(template.render(config.flat(), command=command), end="")
    return 0
