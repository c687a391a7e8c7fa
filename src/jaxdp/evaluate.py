"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, OptionalPath, Settings, ShardingConfig
from jaxdp.runtime import platform

DESCRIPTION = "Evaluate a checkpoint of a run on the whole test split."


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
    """What `python -m jaxdp.evaluate` takes."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best one)"""
    data_dir: OptionalPath = None
    """folder of prepared TensorFlow Datasets (default: as in training)"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a sentence"""
    sharding: ShardingConfig = ShardingConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.evaluate` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    prog = "python -m jaxdp.evaluate"
    command = command_line.parse(
        EvaluateConfig, argv, prog=prog, description=DESCRIPTION, defaults_file=False, hidden=["grad_reduce_dtype"]
    )
    step, metrics = evaluate(command.run_dir, step=command.step, data_dir=command.data_dir, **command.sharding.flat())
    if command.json:
        print(json.dumps({"step": step, "split": "test"} | metrics))
    else:
        from jaxdp.reporting.progress import metrics_text

        print(f"step {step}: test {metrics_text(metrics)}")
    return 0


def evaluate(
    run_dir: str | pathlib.Path, *, step: int | None = None, data_dir: str | None = None, **sharding: Any
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its metrics.

    Args:
        step: which checkpoint; None for the best, or the newest where none was evaluated.
        data_dir: folder of prepared TensorFlow Datasets; None for that of training.
        **sharding: strategy, devices and the other settings of `ShardingConfig`.

    Raises:
        ConfigError: if there is no run or no such checkpoint.
    """
    chosen = ShardingConfig.of(**sharding)
    platform.configure(chosen.devices, deterministic=chosen.deterministic)
    from jaxdp.result import load

    result = load(run_dir, step=step)
    config = dataclasses.replace(result.config, sharding=chosen)
    result.config = config if data_dir is None else config.replace(data_dir=data_dir)
    return result.step, result.evaluate()


if __name__ == "__main__":
    sys.exit(main())
