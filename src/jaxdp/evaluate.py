"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, OptionalPath, ParallelConfig, validate
from jaxdp.run_directory import RunDirectory
from jaxdp.runtime import platform

DESCRIPTION = "Evaluate a checkpoint of a run on the whole test split."


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
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
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        EvaluateConfig, argv, prog="python -m jaxdp.evaluate", description=DESCRIPTION, defaults_file=False
    )
    step, figures = evaluate(
        command.run_dir, step=command.step, strategy=command.strategy, devices=command.devices, data_dir=command.data_dir,
        mesh=command.mesh, shard_params=command.shard_params,
    )  # fmt: skip
    if command.json:
        print(json.dumps({"step": step, "split": "test"} | figures))
    else:
        from jaxdp.reporting.progress import figures_text

        print(f"step {step}: test {figures_text(figures)}")
    return 0


def evaluate(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    strategy: str = "pmap",
    devices: int | None = None,
    data_dir: str | None = None,
    mesh: str | None = None,
    shard_params: bool = False,
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its test figures.

    Args:
        step: which checkpoint; None for the best, or the newest where none was evaluated.
        devices: how many; None for all.
        data_dir: where the dataset is now; None where it was in training.

    Raises:
        ConfigError: if there is no run or no such checkpoint.
    """
    platform.configure(devices)
    from jaxdp.inference.predictor import restore
    from jaxdp.step import metrics
    from jaxdp.training.setup import create_setup

    run = RunDirectory(pathlib.Path(run_dir))
    config = dataclasses.replace(run.load_config(), strategy=strategy, devices=devices, mesh=mesh, shard_params=shard_params)
    setup = create_setup(dataclasses.replace(config, data_dir=data_dir or config.data_dir), training=False)
    step, state = restore(run, setup.config, setup.dataset.describe(), step)
    return step, metrics.figures(setup.recipe.task, setup.evaluate(setup.strategy.restore(state)))


if __name__ == "__main__":
    sys.exit(main())
