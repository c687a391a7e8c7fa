"""Evaluates a checkpoint of a run: for the command that does, and as a function."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxdp.config import OptionalInt, OptionalPath, Plugins, Settings, ShardingConfig
from jaxdp.config.values import OptionalText
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.write import check_file, check_folder
from jaxdp.runtime import platform

if TYPE_CHECKING:
    from jaxdp.result import Result


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
    """What `python -m jaxdp.evaluate` takes."""

    run_dir: Annotated[str, tyro.conf.Positional]
    """folder of the run"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best by validation data, or the last)"""
    dataset: OptionalText = None
    """other labelled data, e.g. folder:photos, all of which count unless --split is given (default:
    those of the run)"""
    split: OptionalText = None
    """train, validation, test or all (default: test, or validation where there are no test data)"""
    data_dir: OptionalPath = None
    """folder of prepared TensorFlow Datasets (default: as in training)"""
    per_image: OptionalPath = None
    """CSV file for the metrics of each image"""
    plugins: Plugins = ()
    """Python files or modules that the run was trained with: those that only its folder names are
    not run, since they are code of whoever made the folder"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of a sentence"""
    sharding: ShardingConfig = ShardingConfig()


def evaluate_examples(command: EvaluateConfig) -> tuple[int, str, dict[str, float]]:
    """Returns the step, the split and its metrics, and writes the metrics of each image to the file
    of --per-image.
    """
    if command.per_image is not None:
        check_file("per_image", pathlib.Path(command.per_image), "scores.csv")
        check_folder("per_image", pathlib.Path(command.per_image).parent)
    result = _load(
        command.run_dir, command.step, command.data_dir, command.sharding, command.plugins
    )
    split = command.split or (
        "all" if command.dataset is not None else result.description.final_split
    )
    if command.per_image is None:
        return result.step, split, result.evaluate(command.dataset, split=split)
    scores = result.evaluate_each(command.dataset, split=split)
    scores.write_csv(pathlib.Path(command.per_image))
    return result.step, split, scores.metrics()


def evaluate(
    run_dir: str | pathlib.Path,
    *,
    step: int | None = None,
    data_dir: str | None = None,
    plugins: Sequence[str] = (),
    **sharding: Any,
) -> tuple[int, dict[str, float]]:
    """Returns the step of the evaluated checkpoint and its metrics on test data, or on validation
    data where a run has no other.

    Args:
        step: which checkpoint; None for the best by validation data, or the newest where there are
            none.
        data_dir: folder of prepared TensorFlow Datasets; None for that of training.
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
