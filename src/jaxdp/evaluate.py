"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import json
import sys
from typing import Literal

from jaxdp.cli.command_line import command
from jaxdp.config import AveragedConfig, ShardingConfig, setting, settings_group
from jaxdp.config.values import Columns, MaskValues

DESCRIPTION = "Evaluate a checkpoint of a run on all its test data, or on other labelled data."


@settings_group
class EvaluateConfig(AveragedConfig, ShardingConfig):
    """The data and the output."""

    dataset: str | None = setting(
        None,
        """other labelled data, e.g. folder:photos; all examples count unless --split is given
        (default: the data of the run)""",
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
    mask_values: MaskValues | None = setting(
        None,
        """values of the masks of other data that are class 0, 1, ..., as for jaxdp.train (default:
        as in training)""",
        metavar="VALUE,VALUE,...|binary",
    )
    columns: Columns | None = setting(
        None,
        """columns of other data of hf:NAME, as for jaxdp.train (default: as in training)""",
        metavar="image=NAME,label=NAME|mask=NAME",
    )
    on_bad_example: Literal["error", "skip"] | None = setting(
        None,
        """what to do with an example that cannot be used: stop, or leave it out (default: as in
        training)""",
    )
    json: bool = setting(False, "print one line of JSON instead of a sentence")


@command(EvaluateConfig, "jaxdp.evaluate", DESCRIPTION, defaults_file=False)
def main(asked: EvaluateConfig) -> int:
    """Evaluates a checkpoint and prints its metrics."""
    from jaxdp.loading import load

    result = load(
        asked.run_dir,
        step=asked.step,
        plugins=asked.plugins,
        devices=asked.devices,
        deterministic=asked.deterministic,
    )
    given = asked.part(ShardingConfig).flat()
    for name in ("data_dir", "mask_values", "columns", "on_bad_example"):
        if (value := getattr(asked, name)) is not None:
            given[name] = value
    result.config = result.config.replace(**given)
    split = asked.split or (result.description.final_split if asked.dataset is None else "all")
    views = asked.test_time_augmentation
    metrics = result.evaluate(asked.dataset, split=split, test_time_augmentation=views)
    if asked.json:
        print(json.dumps({"step": result.step, "split": split} | metrics))
    else:
        from jaxdp.reporting.progress import metrics_text

        print(f"step {result.step}: {split} {metrics_text(metrics)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
