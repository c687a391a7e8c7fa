"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, OptionalPath, Plugins, Settings, ShardingConfig
from jaxdp.config.values import OptionalText
from jaxdp.run_directory import RunDirectory, check_file, check_folder
from jaxdp.runtime import large_pages, platform

if TYPE_CHECKING:
    from jaxdp.result import Result

DESCRIPTION = "Evaluate a checkpoint of a run on all its test data, or on other labelled data."


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
    """The settings of `python -m jaxdp.evaluate`."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best by validation data, or the last)"""
    dataset: OptionalText = None
    """other labelled data, e.g. folder:photos, all of which count unless --split is given (default:
    the data of the run)"""
    split: OptionalText = None
    """train, validation, test or all (default: test, or validation if there are no test data)"""
    data_dir: OptionalPath = None
    """folder of prepared TensorFlow Datasets (default: as in training)"""
    per_image: OptionalPath = None
    """CSV file for the metrics of each image"""
    plugins: Plugins = ()
    """Python files or modules that the run was trained with; names that only the run's folder
    holds are not imported, since they are code of the folder's author"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a sentence"""
    sharding: ShardingConfig = ShardingConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments or the process's own; returns the exit code."""
    large_pages.restart()
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        EvaluateConfig,
        argv,
        prog="python -m jaxdp.evaluate",
        description=DESCRIPTION,
        defaults_file=False,
    )
    file = pathlib.Path(command.per_image) if command.per_image is not None else None
    if file is not None:
        check_file("per_image", file, "scores.csv")
        check_folder("per_image", file.parent)
    result = _load(
        command.run_dir, command.step, command.data_dir, command.sharding, command.plugins
    )
    default = "all" if command.dataset is not None else result.description.final_split
    split = command.split or default
    if file is None:
        metrics = result.evaluate(command.dataset, split=split)
    else:
        scores = result.evaluate_each(command.dataset, split=split)
        scores.write_csv(file)
        metrics = scores.metrics()
    if command.json:
        print(json.dumps({"step": result.step, "split": split} | metrics))
    else:
        from jaxdp.reporting.progress import metrics_text

        print(f"step {result.step}: {split} {metrics_text(metrics)}")
    return 0


def evaluate(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    data_dir: str | None = None,
    plugins: Sequence[str] = (),
    **sharding: Any,
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its metrics on test data, or on validation
    data if the run has no test data.

    Args:
        step: which checkpoint; None for the best by validation data, or the newest if there are
            none.
        data_dir: folder of prepared TensorFlow Datasets; None for the folder of training.
        plugins: files or modules that the run was trained with.
        **sharding: strategy, devices and the other settings of `ShardingConfig`.

    Raises:
        ConfigError: if there is no run or no such checkpoint.
    """
    result = _load(run_dir, step, data_dir, ShardingConfig.of(**sharding), plugins)
    return result.step, result.evaluate(split=result.description.final_split)


def _load(
    run_dir: str | pathlib.Path,
    step: int | None,
    data_dir: str | None,
    sharding: ShardingConfig,
    plugins: Sequence[str],
) -> "Result":
    precision = RunDirectory(pathlib.Path(run_dir)).load_config().model.precision
    platform.configure(sharding.devices, deterministic=sharding.deterministic, precision=precision)
    platform.check_backend()
    from jaxdp.result import load

    result = load(run_dir, step=step, plugins=plugins)
    config = dataclasses.replace(result.config, sharding=sharding)
    result.config = config if data_dir is None else config.replace(data_dir=data_dir)
    return result


if __name__ == "__main__":
    sys.exit(main())
