"""Settings of the folder of a run, and of when it logs, evaluates and saves."""

from typing import Literal

from jaxdp.config.settings import REQUIRED, Settings, setting, settings_group
from jaxdp.config.values import LOCAL, POSITIVE, Duration


@settings_group
class RunConfig(Settings):
    """The folder of a run, and when it logs and saves."""

    run_dir: str | None = setting(
        None,
        "directory of this run (default: runs/MODEL-DATASET-HASH, the same for the same settings)",
        LOCAL,
        metavar="PATH",
        saved=False,
        basic=True,
        none="named by the settings",
    )
    resume: Literal["auto", "never", "must"] = setting(
        "auto",
        """auto: resume the run if its directory has one; never: start a new run; must: fail if
        there is no run. A run that is stopped by a signal saves its last step and exits with
        code 75""",
        saved=False,
        basic=True,
    )
    eval_every: int | None = setting(
        None,
        """steps between evaluations (default: every epoch; with small crops of large images, a
        tenth of the run)""",
        POSITIVE,
        resume="free",
        program=False,
    )
    checkpoint_every: int | None = setting(
        None,
        """steps between checkpoints (default: whole epochs, at least 100 steps); the last step is
        always saved""",
        POSITIVE,
        resume="free",
        program=False,
    )
    keep: int = setting(
        3,
        """number of newest checkpoints to keep; with validation data, the best checkpoint is
        kept as well""",
        POSITIVE,
        program=False,
        names_run="never",
    )
    log_every: int = setting(
        10,
        "steps between rows of metrics.jsonl",
        POSITIVE,
        program=False,
        names_run="never",
    )
    steps_per_execution: int = setting(
        1,
        """run this many steps in one program if the dataset is in device memory, for steps of a
        few milliseconds on accelerators. Evaluations and checkpoints keep their steps; a shorter
        execution before an evaluation or a checkpoint compiles a second program""",
        POSITIVE,
        names_run="never",
    )
    on_divergence: Literal["stop", "skip"] = setting(
        "stop",
        """when the loss or the gradients are no longer finite: stop (exit code 3), or skip the
        update""",
        names_run="never",
    )
    max_divergences: int = setting(
        5,
        "stop after this many skipped updates in a row",
        POSITIVE,
        program=False,
        names_run="never",
    )
    early_stop: int | None = setting(
        None,
        """end the run after this many evaluations in a row that did not improve the task's metric
        (accuracy, iou, mse) on the validation data; for another metric use --callbacks
        early_stopping:patience=N,metric=NAME (default: train to the end)""",
        POSITIVE,
        program=False,
        names_run="never",
        none="train to the end",
    )
    max_time: Duration | None = setting(
        None,
        """end the run, as done, once it has trained for this time, e.g. 90m, 8h or 2d; a run that
        resumes counts the time before (default: train to the end)""",
        metavar="TIME",
        program=False,
        names_run="never",
        none="train to the end",
    )
    callbacks: tuple[str, ...] = setting(
        (),
        """further callbacks: {jaxdp.callbacks}, e.g. early_stopping:patience=5,metric=accuracy or
        wandb:project=mine""",
        metavar="NAME[:KEY=VALUE,...]",
        program=False,
        names_run="never",
        each_fit=False,
        basic=True,
    )
    step_timeout: float | None = setting(
        None,
        """abort, with a stack trace of each thread, if no step finishes within this time (default:
        30 times the median step, at least 300 s; compiling and saving do not count)""",
        POSITIVE,
        metavar="SECONDS",
        saved=False,
        none="by the median step",
    )


@settings_group
class SavedRunConfig(Settings):
    """The run."""

    run_dir: str = setting(REQUIRED, "folder of the run", LOCAL, metavar="RUN_DIR", positional=True)
    step: int | None = setting(
        None, "step of the checkpoint (default: the best by validation data, or the last)"
    )
    plugins: tuple[str, ...] = setting(
        (),
        """Python files or modules that the run was trained with; jaxdp does not import names
        that only the run folder has, because they are code of the folder's author""",
        metavar="FILE.py|MODULE",
    )


@settings_group
class AveragedConfig(SavedRunConfig):
    """The run, and the views of an image whose outputs are averaged."""

    test_time_augmentation: Literal["none", "flip", "dihedral"] | None = setting(
        None,
        """average the outputs over views of each image, as for jaxdp.train; none: the image alone
        (default: as in training)""",
    )
