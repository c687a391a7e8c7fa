"""Evaluates a checkpoint of a run: for the command that does, and as a function."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdp.config import REQUIRED, ShardingConfig, setting
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.write import check_file, check_folder
from jaxdp.runtime import platform

if TYPE_CHECKING:
    from jaxdp.result import Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ShardingConfig):
    """What `python -m jaxdp.evaluate` takes."""

    run_dir: str = setting(
        REQUIRED,
        "folder of the run",
        positional=True,
    )
    step: int | None = setting(
        None,
        "step of the checkpoint (default: the best by validation data, or the last)",
    )
    dataset: str | None = setting(
        None,
        "other labelled data, e.g. folder:photos, all of which count unless --split is "
        "given (default: those of the run)",
        metavar="NAME",
    )
    split: str | None = setting(
        None,
        "train, validation, test or all (default: test, or validation where there are no "
        "test data)",
        metavar="NAME",
    )
    data_dir: str | None = setting(
        None,
        "folder of prepared TensorFlow Datasets (default: as in training)",
        metavar="PATH",
    )
    per_image: str | None = setting(
        None,
        "CSV file for the metrics of each image",
        metavar="PATH",
    )
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with: those that only its folder "
        "names are not run, since they are code of whoever made the folder",
        metavar="FILE.py|MODULE",
    )
    json: bool = setting(
        False,
        "print one line of JSON instead of a sentence",
    )


def evaluate_examples(command: EvaluateConfig) -> tuple[int, str, dict[str, float]]:
    """Returns the step, the split and its metrics, and writes the metrics of each image to the file
    of --per-image.
    """
    if command.per_image is not None:
        check_file("per_image", pathlib.Path(command.per_image), "scores.csv")
        check_folder("per_image", pathlib.Path(command.per_image).parent)
    result = _load(
        command.run_dir,
        command.step,
        command.data_dir,
        command.part(ShardingConfig),
        command.plugins,
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
    precision = RunDirectory(pathlib.Path(run_dir)).load_config().precision
    platform.configure(sharding.devices, deterministic=sharding.deterministic, precision=precision)
    platform.check_backend()
    from jaxdp.result import load

    result = load(run_dir, step=step, plugins=plugins)
    config = result.config.replace(**sharding.flat())
    result.config = config if data_dir is None else config.replace(data_dir=data_dir)
    return result
