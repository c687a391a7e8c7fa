"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxdp.command_line import command
from jaxdp.config import REQUIRED, ShardingConfig, setting

if TYPE_CHECKING:
    from jaxdp.result import Result

DESCRIPTION = "Evaluate a checkpoint of a run on all its test data, or on other labelled data."


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ShardingConfig):
    """The run, the data and the output."""

    run_dir: str = setting(REQUIRED, "folder of the run", positional=True)
    step: int | None = setting(
        None, "step of the checkpoint (default: the best by validation data, or the last)"
    )
    dataset: str | None = setting(
        None,
        "other labelled data, e.g. folder:photos, all of which count unless --split is given "
        "(default: the data of the run)",
        metavar="NAME",
    )
    split: str | None = setting(
        None,
        "train, validation, test or all (default: test, or validation if there are no test data)",
        metavar="NAME",
    )
    data_dir: str | None = setting(
        None, "folder of prepared TensorFlow Datasets (default: as in training)", metavar="PATH"
    )
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with; names that only the run's folder "
        "holds are not imported, since they are code of the folder's author",
        metavar="FILE.py|MODULE",
    )
    json: bool = setting(False, "print one line of JSON instead of a sentence")


@command(EvaluateConfig, "jaxdp.evaluate", DESCRIPTION, defaults_file=False)
def main(asked: EvaluateConfig) -> int:
    """Evaluates a checkpoint and prints its metrics."""
    sharding = asked.part(ShardingConfig)
    result = _load(asked.run_dir, asked.step, asked.data_dir, asked.plugins, sharding)
    split = asked.split or (result.description.final_split if asked.dataset is None else "all")
    metrics = result.evaluate(asked.dataset, split=split)
    if asked.json:
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
    result = _load(run_dir, step, data_dir, plugins, ShardingConfig.of(**sharding))
    return result.step, result.evaluate(split=result.description.final_split)


def _load(
    run_dir: str | pathlib.Path,
    step: int | None,
    data_dir: str | None,
    plugins: Sequence[str],
    sharding: ShardingConfig,
) -> "Result":
    from jaxdp.loading import load

    platform = {"devices": sharding.devices, "deterministic": sharding.deterministic}
    result = load(run_dir, step=step, plugins=plugins, **platform)
    given = sharding.flat() | ({"data_dir": data_dir} if data_dir is not None else {})
    result.config = result.config.replace(**given)
    return result


if __name__ == "__main__":
    sys.exit(main())
