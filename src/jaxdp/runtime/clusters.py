"""Detects the cluster that started this process as one of several, if JAX can ask it for the
others: Slurm, Open MPI, Kubernetes or a TPU pod.
"""

import importlib.util
import os

from jaxdp.config import ProcessConfig
from jaxdp.parsing import is_count
from jaxdp.registry import ConfigError

ALTERNATIVES = "give --coordinator, --num-processes and --process-id, or --distributed off"


def detect(config: ProcessConfig) -> str | None:
    """Returns what started this process as one of several, if JAX can detect the others by itself.

    Raises:
        ConfigError: if the cluster's variables cannot be read, or JAX lacks what it needs for it.
    """
    environment = os.environ
    if "SLURM_STEP_NODELIST" in environment and _count("SLURM_NTASKS") > 1:
        return "a Slurm step"
    if _count("OMPI_COMM_WORLD_SIZE") > 1:
        return "an Open MPI job"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        if importlib.util.find_spec("kubernetes") is None:
            remedy = (
                "a Kubernetes indexed job was detected, but the package kubernetes is not"
                " installed; install it, or"
            )
            raise ConfigError("distributed", config.distributed, f"{remedy} {ALTERNATIVES}")
        return "a Kubernetes indexed job"
    return "a TPU pod" if "," in environment.get("TPU_WORKER_HOSTNAMES", "") else None


def _count(variable: str) -> int:
    """Returns the number of processes in an environment variable, 1 if it is not set."""
    text = os.environ.get(variable, "1")
    if not is_count(text):
        raise ConfigError(
            "",
            "",
            f"{variable}={text}: must be a number of processes; correct it, or give"
            " --distributed off",
        )
    return int(text)
