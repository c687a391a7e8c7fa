"""Settings that are gone: each is refused with one line that says what to use instead."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Removed:
    """A setting that is gone.

    Attributes:
        name: of the setting.
        remedy: what to use instead, or why nothing is needed.
        default: its last default value. A file of an earlier version may hold it.
        names_run: whether the setting is part of the hash that names a run's folder.
        command: the command that had it, or the setting with this value, such as `callbacks`;
            empty for a setting of training.
    """

    name: str
    remedy: str
    default: Any = None
    names_run: bool = False
    command: str = ""


# All were removed in version 0.3.0.
REMOVED = (
    Removed("steps_per_call", "use --steps-per-execution", default=1),
    Removed("measure_devices", "use --devices", default=False),
    Removed(
        "grad_reduce_dtype",
        "leave it out; gradients are averaged in the parameters' format",
        names_run=True,
    ),
    Removed("exchange", "use --strategy exact or --strategy async", default="allreduce"),
    Removed("local_steps", "leave it out; --strategy exact and async update after every batch"),
    Removed("outer_learning_rate", "leave it out; no strategy averages replicas"),
    Removed("outer_momentum", "leave it out; no strategy averages replicas"),
    Removed("sampler", "use --class-weights balanced"),
    Removed("full", "use --remat blocks", command="remat"),
    Removed("profile", "use --callbacks profiler:first=START,last=STOP"),
    Removed(
        "learning_rate_monitor",
        "rows have the learning rate of an optimizer given by name",
        command="callbacks",
    ),
    Removed(
        "rollback",
        "use skip, or stop and resume with a smaller --learning-rate",
        command="on_divergence",
    ),
    Removed("target", "use python -m jaxdp.plan --target", command="bench"),
    Removed("quick", "use python -m jaxdp.plan --target", command="bench"),
    Removed("quick", "set JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1.0", command="plan"),
    Removed("output", "use the table, or --json", command="plan"),
    Removed("on", "use Ray Tune, or an array job of Slurm", command="sweep"),
    Removed("address", "use Ray Tune, or an array job of Slurm", command="sweep"),
    Removed("address", "use Ray's own command, ray status", command="devices"),
    Removed("model", "use python -m jaxdp.plan", command="devices"),
    Removed("submit", "pipe the script to sbatch", command="launch slurm"),
    Removed("partition", "pipe the script to sbatch --partition NAME", command="launch slurm"),
    Removed("account", "pipe the script to sbatch --account NAME", command="launch slurm"),
    Removed("job_name", "pipe the script to sbatch --job-name NAME", command="launch slurm"),
    Removed("log_dir", "redirect standard error, whose lines begin with [N]", command="launch"),
    Removed(
        "compare",
        "use the tables, or the lines of both bench.jsonl",
        command="bench",
    ),
    Removed(
        "output",
        "use --csv FILE.csv, with a line for each image and a column for each class",
        command="predict",
    ),
    Removed("overlap", "leave it out; tiles overlap as far as the model sees", command="predict"),
    Removed("per_image", "predict --csv writes a line for each image", command="evaluate"),
    Removed(
        "probabilities",
        "jaxdp.load(RUN).predict(..., probabilities=True) in Python returns those of each pixel",
        command="predict",
    ),
)


def removal(name: str, command: str = "") -> str | None:
    """Returns a sentence about a removed setting; None if there was no such setting.

    Args:
        name: of a setting that does not exist.
        command: the command with these flags, in addition to the settings of training; or the
            setting with this value.
    """
    for each in REMOVED:
        if each.name == name and each.command in ("", command):
            return f"was removed in 0.3.0: {each.remedy}"
    return None


def defining_defaults() -> dict[str, Any]:
    """Returns the defaults of removed settings that still name a run's folder."""
    return {each.name: each.default for each in REMOVED if each.names_run}


def drop_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file without the removed ones that are at their defaults, or that
    another setting has taken over.
    """
    defaults = {each.name: each.default for each in REMOVED if not each.command}
    found = strategy_of_workers(settings)
    if "exchange" in settings and found.get("instances"):  # version 0.2 balanced by itself
        found["class_weights"] = found.get("class_weights") or "balanced"
    return {
        name: value
        for name, value in found.items()
        if name not in defaults or value != defaults[name]
    }


def strategy_of_workers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings or facts of a run in which `exchange: exact` of version 0.2 is the strategy
    that it is now.
    """
    found = dict(facts)
    if found.get("exchange") in ("exact", "async"):
        found["strategy"] = found.pop("exchange")
    return found
