"""Settings of the batch size, the length of training, the optimizer, and where weights start."""

from typing import Any, Literal

from jaxdp.config.settings import Settings, setting, settings_group
from jaxdp.config.values import FRACTION, MOST_STEPS, NON_NEGATIVE, POSITIVE, at_most

DEFAULT_OPTIMIZER = "nesterov"


@settings_group
class OptimizationConfig(Settings):
    """The batch size, the length of training and the optimizer."""

    global_batch_size: int | Literal["auto"] | None = setting(
        None,
        """examples per step, over all devices; auto: as many as fit in memory (default: 128, or
        the dataset's own; for a training set of fewer than four such batches, the largest power
        of two that is at most a quarter of the set, but at least 8 with small crops
        of large images)""",
        POSITIVE,
        metavar="INT|auto",
        resume="start",
        excludes="per_device_batch_size",
        basic=True,
    )
    per_device_batch_size: int | None = setting(
        None,
        "examples per device and microbatch, instead of --global-batch-size",
        POSITIVE,
        resume="free",
        none="global_batch_size says it",
    )
    accumulate_steps: int = setting(
        1,
        """gradient accumulation, which saves memory: split the global batch into this many
        microbatches, one after another, for one update; batch norm normalizes over one
        microbatch""",
        POSITIVE,
        resume="free",
    )
    epochs: int | None = setting(
        None,
        """passes over the training set (default: 20, or the dataset's own; with small crops of
        large images, as many steps as take at least 16,000 crops)""",
        POSITIVE,
        resume="free",
        program=False,
        excludes="steps",
        basic=True,
    )
    steps: int | None = setting(
        None,
        "number of training steps, instead of --epochs",
        POSITIVE,
        at_most(MOST_STEPS),
        resume="free",
        program=False,
        basic=True,
        none="epochs say it",
    )
    optimizer: str | None = setting(
        None,
        """{jaxdp.step.optim:OPTIMIZERS}, which trains kernels, and AdamW all other parameters
        (default: the dataset's own; else nesterov, or adamw for fewer than 512 training examples
        without instance labels, unless the dataset has a learning rate or you give
        --learning-rate, --lr-scaling or --optimizer-kwargs)""",
        resume="start",
        each_fit=False,
        basic=True,
    )
    optimizer_kwargs: dict[str, Any] = setting(
        {},
        """keyword arguments of the Optax optimizer, e.g. momentum=0.95 or b1=0.9 b2=0.99 (default:
        the optimizer's own)""",
        resume="start",
        set_by="optimizer",
    )
    learning_rate: float | None = setting(
        None,
        """peak learning rate (default: the dataset's own; else 0.1 for sgd, momentum and nesterov,
        0.01 for muon, otherwise 0.001; 0.0003 if jaxdp picks adamw for a small training set of a
        classification)""",
        NON_NEGATIVE,
        resume="free",
        program=False,
        set_by="optimizer",
        basic=True,
    )
    lr_scaling: Literal["none", "linear", "sqrt"] = setting(
        "none",
        """scale the learning rate with the global batch size over 128, linearly or by its square
        root, so that a recipe carries over to larger batches; with a batch above 128, schedules
        other than onecycle then warm up for 5 epochs, at most 0.3 of the steps""",
        resume="free",
        program=False,
        set_by="optimizer learning_rate",
    )
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = setting(
        "onecycle",
        "learning-rate schedule; multistep divides by 10 after 1/2 and 3/4 of the steps",
        resume="free",
        program=False,
        set_by="optimizer learning_rate",
    )
    warmup_fraction: float | None = setting(
        None,
        """fraction of the steps spent warming up to the peak learning rate (default: 0.3 for
        onecycle, otherwise 0; with --lr-scaling and a batch above 128, 5 epochs instead of 0, at
        most 0.3 of the steps)""",
        FRACTION,
        resume="free",
        program=False,
        set_by="optimizer learning_rate",
    )
    weight_decay: float = setting(
        0.0001,
        """weight decay of all parameters: L2, added to the gradient; decoupled for adamw, lamb,
        lion and muon""",
        NON_NEGATIVE,
        resume="free",
        set_by="optimizer",
    )
    clip_norm: float | None = setting(
        None,
        "clip gradients to this global norm (default: no clipping)",
        POSITIVE,
        resume="free",
        set_by="optimizer",
        none="no clipping",
    )
    label_smoothing: float = setting(
        0.0,
        """label smoothing of a classification: fraction of each target spread evenly over all
        classes""",
        FRACTION,
        resume="free",
        set_by="task",
    )
    ema_decay: float = setting(
        0.0,
        """decay of the exponential moving average (EMA) of the weights, which jaxdp then
        evaluates, e.g. 0.999 (0: no EMA)""",
        FRACTION,
        resume="presence",
    )


@settings_group
class LearningConfig(Settings):
    """Initial weights, frozen weights and sampling of classes."""

    init_from: str | None = setting(
        None,
        """start from the weights of a run (its best or last checkpoint), of a file
        (.safetensors, .npz or, with PyTorch, .pt, with PyTorch's names or the names that convert
        export writes), or of a name on the Hugging Face hub, e.g. timm:resnet18.a1_in1k. A run or a
        name also sets --model, --model-kwargs, --normalize and --image-size. A head for another
        number of classes keeps its own initialization; everything else must match. A run that
        resumes continues from its own checkpoint""",
        metavar="RUN|FILE|timm:NAME|hf://ORG/NAME[@REVISION]",
        resume="free",
        names_run="if_set",
        basic=True,
        none="random weights",
    )
    freeze: str | None = setting(
        None,
        """freeze a parameter if this regular expression matches the start of its name, e.g.
        "stem|units/[0-3]/", or "(?!head)" for all parameters except the head; batch norms still
        update their running statistics, as in PyTorch (default: train all)""",
        metavar="PATTERN",
        resume="free",
        names_run="if_set",
        none="all are trained",
    )
