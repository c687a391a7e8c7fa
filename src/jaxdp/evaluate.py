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
from jaxdp.run_directory import RunDirectory
from jaxdp.runtime import platform

DESCRIPTION = "Evaluate a checkpoint of a run on all its test data."


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
    """What `python -m jaxdp.evaluate` takes."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best by validation data, or the last)"""
    data_dir: OptionalPath = None
    """folder of prepared TensorFlow Datasets (default: as in training)"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a sentence"""
    sharding: ShardingConfig = ShardingConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.evaluate` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    prog, hidden = "python -m jaxdp.evaluate", ["grad_reduce_dtype"]
    command = command_line.parse(EvaluateConfig, argv, prog=prog, description=DESCRIPTION, defaults_file=False, hidden=hidden)
    step, metrics = evaluate(command.run_dir, step=command.step, data_dir=command.data_dir, **command.sharding.flat())
    from jaxdp.inference.predictor import read_description
    from jaxdp.reporting.progress import metrics_text

    split = read_description(RunDirectory(pathlib.Path(command.run_dir))).final_split
    if command.json:
        print(json.dumps({"step": step, "split": split} | metrics))
    else:
        print(f"step {step}: {split} {metrics_text(metrics)}")
    return 0


def evaluate(
    run_dir: str | pathlib.Path, *, step: int | None = None, data_dir: str | None = None, **sharding: Any
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its metrics on test data, or on validation data where a run has no other.

    Args:
        step: which checkpoint; None for the best by validation data, or the newest where there are none.
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
    return result.step, result.evaluate(split=result.description.final_split)


if __name__ == "__main__":
    sys.exit(main())
