"""Refuses removed settings and commands, each with one line that names the replacement."""

import re
from collections.abc import Mapping
from typing import Any

from jaxdp.text.flags import flag

# Removed in version 0.3.0. A key is a setting of training, a command and its flag, or a setting and
# its value. The text names the replacement.
REMOVED = {
    "steps_per_call": f"use {flag('steps_per_execution')}",
    "measure_devices": f"use {flag('devices')}",
    "grad_reduce_dtype": "leave it out; gradients are averaged in the parameters' format",
    "exchange": f"use {flag('strategy', 'exact')}",
    "local_steps": f"leave it out; {flag('strategy', 'exact')} updates after every batch",
    "outer_learning_rate": "leave it out; no strategy averages replicas",
    "outer_momentum": "leave it out; no strategy averages replicas",
    "sampler": f"use {flag('class_weights', 'balanced')}",
    "profile": f"use {flag('plugins', 'examples/profile_steps.py')}",
    "remat full": f"use {flag('remat', 'blocks')}",
    "callbacks learning_rate_monitor": (
        "rows have the learning rate of an optimizer given by name"
    ),
    "on_divergence rollback": (
        f"use skip, or stop and resume with a smaller {flag('learning_rate')}"
    ),
    "plan quick": "set JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1.0",
    "plan output": f"use the table, or {flag('json')}",
    "devices address": "use Ray's own command, ray status",
    "devices model": "use python -m jaxdp.plan",
    "launch slurm submit": "pipe the script to sbatch",
    "launch slurm partition": "pipe the script to sbatch --partition NAME",
    "launch slurm account": "pipe the script to sbatch --account NAME",
    "launch slurm job_name": "pipe the script to sbatch --job-name NAME",
    "launch log_dir": "redirect standard error; its lines begin with [N]",
    "predict output": (
        f"use {flag('csv', 'FILE.csv')}, with a line for each image and a column for each class"
    ),
    "predict overlap": "leave it out; tiles overlap as far as the model sees",
    "predict probabilities": (
        "jaxdp.load(RUN).predict(..., probabilities=True) in Python returns them for each pixel"
    ),
    "evaluate per_image": f"predict {flag('csv')} writes a line for each image",
}
# Removed since.
REMOVED_LATER = {
    "callbacks profiler": f"use {flag('plugins', 'examples/profile_steps.py')}",
    "callbacks mlflow": f"use {flag('plugins', 'examples/log_to_mlflow.py')}",
    "strategy async": f"use {flag('strategy', 'exact')} with {flag('workers')}",
    "staleness": "leave it out; no strategy updates with old gradients",
    "servers": "leave it out; the process of the command holds the parameters",
    "mesh": (
        "spatial partitioning is gone; leave it out, and for large images use a smaller"
        f" {flag('global_batch_size')}, {flag('accumulate_steps')},"
        f" {flag('precision', 'bfloat16')} or {flag('augment', 'crop:N')}"
    ),
}

COMMANDS = {
    "sweep": "was removed after 0.3.0: use Optuna, as in examples/search.py",
    "report": "was removed after 0.3.0: use examples/compare_runs.py, or TensorBoard",
    "bench": (
        "was removed after 0.3.0: use the speed in the summary of a training run, or"
        " benchmarks/throughput.py"
    ),
    "launch ray": "was removed after 0.3.0: use Ray Train, as in examples/on_ray_train.py",
}

# Files of earlier versions may hold removed settings at these values, or at None.
LAST_DEFAULTS = {"steps_per_call": 1, "measure_devices": False, "exchange": "allreduce"}
# Defaults of removed settings that are still part of the name of a run's folder.
DEFINING_DEFAULTS = {"grad_reduce_dtype": None, "mesh": None}
# A mesh that shards nothing but the batch, over all devices; another number was refused.
_DATA_ALONE = re.compile(r"data=\d+(,space=1)?|space=1(,data=\d+)?")
# Values of `exchange` in version 0.2 that were strategies later. As in that version, the name of a
# run's folder does not depend on them.
EXCHANGES = ("exact", "async")


def removal(name: str, command: str = "") -> str | None:
    """Returns a sentence about a removed setting; None if there was no such setting.

    Args:
        name: of a setting that does not exist.
        command: the command with these flags, in addition to the settings of training, or the
            setting with this value.
    """
    for when, removed in (("in", REMOVED), ("after", REMOVED_LATER)):
        if remedy := removed.get(name) or removed.get(f"{command} {name}"):
            return f"was removed {when} 0.3.0: {remedy}"
    return None


def drop_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file without removed settings that are at their defaults, or that
    another setting has replaced.
    """
    found = strategy_of_workers(settings)
    # The devices share a batch in this way without a setting.
    if _DATA_ALONE.fullmatch(str(found.get("mesh")).replace(" ", "")):
        del found["mesh"]
    return {
        name: value
        for name, value in found.items()
        if name not in REMOVED | REMOVED_LATER or value != LAST_DEFAULTS.get(name)
    }


def strategy_of_workers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings or facts of a run in which `exchange` of version 0.2 is replaced by the
    later strategy.
    """
    found = dict(facts)
    if found.get("exchange") in EXCHANGES:
        found["strategy"] = found.pop("exchange")
    return found
