"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, ParallelConfig, validate
from jaxdp.parallel import platform
from jaxdp.registry import ConfigError
from jaxdp.run_directory import RunDirectory

DESCRIPTION = "Evaluate a checkpoint of a run on the whole test split."


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best one)"""
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
    step, figures = evaluate(command.run_dir, step=command.step, strategy=command.strategy, devices=command.devices)
    if command.json:
        print(json.dumps({"step": step, "split": "test"} | figures))
    else:
        from jaxdp.reporting.progress import figures_text

        print(f"step {step}: test {figures_text(figures)}")
    return 0


def evaluate(
    run_dir: str | pathlib.Path, *, step: int | None = None, strategy: str = "pmap", devices: int | None = None
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its test figures.

    Args:
        step: which checkpoint; None for the best, or the newest where none was evaluated.
        devices: how many; None for all.

    Raises:
        ConfigError: if there is no run or no such checkpoint.
    """
    platform.configure(devices)
    from jaxdp.training import metrics
    from jaxdp.training.checkpoint import Checkpoints
    from jaxdp.training.setup import create_setup

    run = RunDirectory(pathlib.Path(run_dir))
    config = dataclasses.replace(run.load_config(), strategy=strategy, devices=devices)
    if not run.checkpoints.is_dir():
        raise ConfigError("run_dir", run_dir, "holds no checkpoint")
    setup = create_setup(config, training=False)
    with contextlib.closing(Checkpoints(run.checkpoints, keep=None, best_metric=setup.recipe.task.best_metric)) as checkpoints:
        if step is None:
            best = checkpoints.best()
            step = best[0] if best else checkpoints.latest()
        if step is None:
            raise ConfigError("run_dir", run_dir, "holds no checkpoint")
        state, _ = checkpoints.restore(step, setup.create_state())
    return step, metrics.figures(setup.recipe.task, setup.evaluate(setup.strategy.restore(state)))


if __name__ == "__main__":
    sys.exit(main())
