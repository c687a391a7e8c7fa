"""Detects the cluster that started this process as one of several, if JAX can get the other
processes from it: Slurm, Open MPI, Kubernetes or a TPU pod.
"""

import os

from jaxdp.text.flags import flag

EXPLICIT = f"give {flag('coordinator')}, {flag('num_processes')} and {flag('process_id')}"
ALTERNATIVES = f"{EXPLICIT}, or {flag('distributed', 'off')}"


def detect() -> str | None:
    """Returns the cluster that started this process as one of several, if JAX can detect the other
    processes.
    """
    environment = os.environ
    if "SLURM_STEP_NODELIST" in environment and _is_several("SLURM_NTASKS"):
        return "a Slurm step"
    if _is_several("OMPI_COMM_WORLD_SIZE"):
        return "an Open MPI job"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return "a Kubernetes indexed job"
    return "a TPU pod" if "," in environment.get("TPU_WORKER_HOSTNAMES", "") else None


def _is_several(variable: str) -> bool:
    """Returns whether an environment variable is set to a number of processes other than 1."""
    return os.environ.get(variable, "1") != "1"


def start_all(cluster: str | None) -> str:
    """Returns how to start the missing processes.

    Args:
        cluster: the result of `detect`.
    """
    if cluster == "a Slurm step":
        tasks = os.environ["SLURM_NTASKS"]
        return (
            f"this is a Slurm step of {tasks} tasks: start all by one srun --ntasks={tasks}, see"
            f" the output of each task, or give {flag('distributed', 'off')} to a process that"
            " trains alone"
        )
    if cluster:
        return f"this is {cluster}: see the output of the others, or {ALTERNATIVES}"
    return (
        f"start one for each {flag('process_id')} below {flag('num_processes')}, and see the output"
        " of each"
    )
