"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, OptionalPath, ParallelConfig, validate
from jaxdp.runtime import platform

_CHANGES = ("strategy", "devices", "mesh", "shard_params", "data_dir")
DESCRIPTION = "Evaluate a checkpoint of a run on the whole test split."


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Flags that choose the checkpoint, its data and the form of the output."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best one)"""
    data_dir: OptionalPath = None
    """folder of prepared TensorFlow Datasets (default: as in training)"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a sentence"""


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(ParallelConfig, CheckpointConfig):
    """What `python -m jaxdp.evaluate` takes."""

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.evaluate` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    prog = "python -m jaxdp.evaluate"
    command = command_line.parse(EvaluateConfig, argv, prog=prog, description=DESCRIPTION, defaults_file=False)
    step, metrics = evaluate(command.run_dir, step=command.step, **{name: getattr(command, name) for name in _CHANGES})
    if command.json:
        print(json.dumps({"step": step, "split": "test"} | metrics))
    else:
        from jaxdp.reporting.progress import metrics_text

        print(f"step {step}: test {metrics_text(metrics)}")
    return 0


def evaluate(run_dir: str | pathlib.Path, *, step: int | None = None, **changes: Any) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its metrics.

    Args:
        step: which checkpoint; None for the best, or the newest where none was evaluated.
        **changes: settings in place of those of training: strategy, devices, mesh, shard_params, data_dir.

    Raises:
        ConfigError: if there is no run or no such checkpoint.
    """
    changes = {"strategy": "pmap", "devices": None, "mesh": None, "shard_params": False} | changes
    platform.configure(changes["devices"])
    from jaxdp.result import load

    result = load(run_dir, step=step)
    if changes.get("data_dir") is None:
        changes.pop("data_dir", None)  # where it was in training
    result.config = dataclasses.replace(result.config, **changes)
    return result.step, result.evaluate()


if __name__ == "__main__":
    sys.exit(main())
