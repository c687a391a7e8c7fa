"""Settings of the model and the task."""

from typing import Any, Literal

from jaxdp.config.settings import Settings, setting, settings_group
from jaxdp.config.values import BatchNormMode, ClassWeights


@settings_group
class ModelConfig(Settings):
    """The model and how it computes."""

    model: str = setting(
        "pyramidnet",
        "model to train: {jaxdp.models}",
        each_fit=False,
        basic=True,
    )
    model_kwargs: dict[str, Any] = setting(
        {},
        """keyword arguments of the model, e.g. depth=110 alpha=48 shake_drop=0.5 (default: the
        model's own)""",
        set_by="model",
        basic=True,
    )
    batch_norm: BatchNormMode | None = setting(
        None,
        """examples that share batch-norm statistics: every N consecutive examples of the global
        batch (ghost batch norm), the whole global batch (SyncBN) or the examples of one replica,
        as in DistributedDataParallel. A step depends on the number of devices only with replica
        (default: group:32, or the nearest number that divides the batch)""",
        metavar="{replica,global,group:N}",
        resume="start",
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32",
        """floating-point format of the computation; parameters and batch statistics stay float32.
        float16 uses dynamic loss scaling""",
        resume="free",
        basic=True,
    )
    remat: Literal["none", "blocks"] = setting(
        "none",
        """rematerialization, which saves memory: the backward pass recomputes nothing, or the
        inside of each block""",
        resume="free",
    )


@settings_group
class TaskConfig(Settings):
    """The task and its loss."""

    task: str | None = setting(
        None,
        "{jaxdp.tasks} (default: the task that both model and dataset support)",
        metavar="NAME",
        each_fit=False,
        basic=True,
    )
    loss: str | None = setting(
        None,
        """segmentation: {jaxdp.tasks.segmentation:LOSSES}; regression and scalar_regression:
        {jaxdp.tasks.regression:LOSSES} (default: the first)""",
        metavar="NAME",
        resume="free",
        set_by="task",
        none="the task's only one, or the one among task_kwargs",
    )
    task_kwargs: dict[str, Any] = setting(
        {},
        """further keyword arguments of the task, e.g. class_weights=[1,5] ignore_label=255 or
        delta=0.1 (default: the task's own)""",
        resume="free",
        set_by="task",
    )
    class_weights: ClassWeights | None = setting(
        None,
        """classification and segmentation: weight of each class in the training loss, which is
        divided by the sum of the weights, as in PyTorch; balanced weights a class by N /
        (classes * its count), over examples or pixels of the training set, e.g. balanced or
        1,2.5,1 (default: equal weights)""",
        metavar="balanced|W,W,...",
        resume="free",
        names_run="if_set",
        set_by="task",
        none="all alike",
    )
