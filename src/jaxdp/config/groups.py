"""Every setting of a training run: its type, its help text and its default, in the groups of the
parts they configure.

`config.optimization.learning_rate`, `--learning-rate`, the keyword `learning_rate` and
`learning_rate:` in YAML are the same thing everywhere. The groups are here rather than beside the
parts because nothing here imports JAX: `--help` and most usage errors are answered before it
starts.
"""

# Over 300 lines: a few for each setting, and all of them here.

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from jaxdp.config.settings import Settings
from jaxdp.config.values import (
    BELOW_2_31,
    FRACTION,
    MOST_CLASSES,
    MOST_DEVICES,
    MOST_STEPS,
    MOST_WORKERS,
    NON_NEGATIVE,
    POSITIVE,
    BatchSize,
    Keywords,
    NumberAsText,
    OptionalBatchNorm,
    OptionalClassWeights,
    OptionalFloat,
    OptionalInt,
    OptionalMaskValues,
    OptionalNames,
    OptionalPath,
    OptionalProfile,
    OptionalText,
    Words,
    at_most,
)
from jaxdp.registry import ConfigError

ModelKeywords = Annotated[Keywords, tyro.conf.arg(name="model_kwargs", help_behavior_hint="")]
TaskKeywords = Annotated[Keywords, tyro.conf.arg(name="task_kwargs", help_behavior_hint="")]
OptimizerKeywords = Annotated[
    Keywords, tyro.conf.arg(name="optimizer_kwargs", help_behavior_hint="")
]
Plugins = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py|MODULE", help_behavior_hint="")]
DEFAULT_WORKERS = 4
_MOST_ROLLBACKS = 20


@dataclasses.dataclass(frozen=True)
class ModelConfig(Settings):
    """Flags that choose the model and how it computes."""

    name: Annotated[str, tyro.conf.arg(name="model")] = "pyramidnet"
    """model to train: pyramidnet, resnet, vgg, cnn or unet"""
    kwargs: ModelKeywords = dataclasses.field(default_factory=dict[str, Any])
    """keyword arguments of the model, e.g. depth=110 alpha=48 shake_drop=0.5 (default: the model's
    own)"""
    batch_norm: OptionalBatchNorm = None
    """examples that share batch-norm statistics: every N consecutive of the global batch (ghost
    batch norm), all of it (SyncBN) or those of one replica, as in DistributedDataParallel. Only
    with replica does the result depend on the number of devices (default: group:32, or the nearest
    number that divides the batch)"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """floating-point format of the computation; parameters and batch statistics stay float32.
    float16 uses dynamic loss scaling"""
    remat: Literal["none", "blocks", "full"] = "none"
    """rematerialization, which saves memory: the backward pass recomputes nothing, the inside of
    each block, or whole runs of blocks"""


@dataclasses.dataclass(frozen=True)
class DataConfig(Settings):
    """Flags that choose the dataset and how its examples are prepared."""

    dataset: OptionalText = None
    """dataset to train on: digits, digits-denoise, cells (all built in), cifar10, cifar100, mnist,
    fashion_mnist, oxford_iiit_pet, tfds:NAME (TensorFlow Datasets), folder:PATH or npz:PATH
    (default: cells for unet, otherwise digits)"""
    data_dir: OptionalPath = None
    """directory of prepared TensorFlow Datasets (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)
    """
    train_split: Annotated[str | None, tyro.conf.arg(metavar="SPLIT", help_behavior_hint="")] = None
    """examples to train on, e.g. train[:90%] (default: the dataset's own)"""
    test_split: Annotated[str | None, tyro.conf.arg(metavar="SPLIT", help_behavior_hint="")] = None
    """test examples, which choose nothing, e.g. train[90%:] (default: the dataset's own)"""
    validation: Annotated[
        str | None,
        tyro.conf.arg(metavar="SHARE|SPLIT|none", help_behavior_hint=""),
        NumberAsText((int, float)),
    ] = None
    """examples that choose the best checkpoint: a share of the training set, e.g. 0.1, drawn from
    each class by the seed; a split; or none, which makes the last state the result (default: the
    dataset's own validation split, if it has one)"""
    image_size: Annotated[
        str | None,
        tyro.conf.arg(metavar="N|HxW|resize_crop:N|letterbox:N", help_behavior_hint=""),
        NumberAsText((int,)),
    ] = None
    """resize images to N x N or H x W pixels; for classification resize_crop:N (shorter side to N,
    middle of the longer one) or letterbox:N (longer side to N, black bars) keep their proportions
    (default: no resizing; for folders of photos that differ in size, resize_crop:224 or less)"""
    channels: Annotated[Literal[1, 3, 4] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """channels that the images of a folder are converted to: 1 (grey), 3 (RGB) or 4 (RGB and
    opacity) (default: 3 if any is in colour, else 1; of TIFF files as many as they have)"""
    tiff: Annotated[Literal["pages", "channels"] | None, tyro.conf.arg(help_behavior_hint="")] = (
        None
    )
    """what the planes of a TIFF file in a folder are: examples (pages) or channels of one example
    (default: channels where the metadata of ImageJ or OME say so, otherwise pages)"""
    num_classes: Annotated[OptionalInt, POSITIVE, at_most(MOST_CLASSES)] = None
    """number of classes of the labels or masks (default: inferred from the dataset)"""
    mask_values: OptionalMaskValues = None
    """stored values of masks that are class 0, 1, ...: numbers, e.g. 0,128,255; colours, e.g.
    000000,ff0000; or binary: 0 is class 0, everything else class 1. 255 is ignored unless it is
    among the numbers (default: the numbers themselves)"""
    instances: tyro.conf.FlagCreatePairsOff[bool] = False
    """tell objects apart: masks are numbers of objects, of 8 or 16 bits with 0 for background.
    Trains background, cell and border with the border weights of the U-Net paper, and predicts
    objects by watershed; needs pip install 'jaxdp[instances]'"""
    class_names: OptionalNames = None
    """names of the classes, in the order of their numbers, e.g. background,cell (default: the
    dataset's own)"""
    augment: Words = None
    """random augmentations of training images, in this order, e.g. pad_crop:4 flip; none for none
    (default: the dataset's own): pad_crop crop random_resized_crop shift flip flip_vertical
    rotate90 rotate affine elastic brightness contrast cutout mixup cutmix"""
    normalize: Literal["channel", "image", "imagenet"] = "channel"
    """subtract the mean and divide by the standard deviation, of each channel over the training
    set, of each image, or of each channel over ImageNet, as the weights of torchvision's models
    expect it"""
    data_placement: Annotated[
        Literal["device", "host"] | None, tyro.conf.arg(help_behavior_hint="")
    ] = None
    """device: keep the dataset in device memory; host: stream it from host threads (default: device
    if the dataset takes at most a quarter of that memory)"""
    data_workers: Annotated[OptionalInt, POSITIVE, at_most(MOST_WORKERS)] = None
    """threads of each process that read and decode examples, or processes where a source asks for
    them (default: one for each core, at least 2 and at most 8)"""
    on_bad_example: Literal["error", "skip"] = "error"
    """what to do with an example that cannot be read: stop, or leave it out and report it"""
    seed: Annotated[int, NON_NEGATIVE, BELOW_2_31] = 0
    """random seed of the initial weights, the order of examples, augmentation and dropout"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mask_values", "num_classes", "class_names") if self.instances else ():
            if (value := getattr(self, name)) is not None:
                why = (
                    "with --instances masks are numbers of objects, and the classes background,"
                    " cell and border"
                )
                raise ConfigError(
                    name,
                    ",".join(value) if name == "class_names" else value,
                    f"{why}; leave one of them out",
                )


@dataclasses.dataclass(frozen=True)
class TaskConfig(Settings):
    """Flags that choose the task and its loss."""

    name: Annotated[
        str | None, tyro.conf.arg(name="task", metavar="NAME", help_behavior_hint="")
    ] = None
    """classification, segmentation, regression or a plugin's task (default: the one that both model
    and dataset support)"""
    loss: OptionalText = None
    """segmentation: cross_entropy, dice or cross_entropy+dice; regression: l2, l1 or huber
    (default: the first)"""
    kwargs: TaskKeywords = dataclasses.field(default_factory=dict[str, Any])
    """further keyword arguments of the task, e.g. class_weights=[1,5] ignore_label=255 or delta=0.1
    (default: the task's own)"""
    class_weights: OptionalClassWeights = None
    """classification and segmentation: weight of each class in the training loss, which is divided
    by the sum of the weights, as in PyTorch; balanced weighs a class by N / (classes * its count),
    over examples or pixels of the training set, e.g. balanced or 1,2.5,1 (default: all alike; with
    --instances balanced)"""


@dataclasses.dataclass(frozen=True)
class ShardingConfig(Settings):
    """Flags that choose the strategy, the devices, and how a training step is laid out on them."""

    strategy: str = "pmap"
    """how devices share the work: pmap, single, shard_map, sharded or central; or on workers, with
    pip install 'jaxdp[ray]': exact, whose workers take slices of the batch as they become free, and
    whose result is the same bit for bit on any number of them, or async, whose workers push
    gradients to parameter servers at their own pace"""
    devices: Annotated[OptionalInt, POSITIVE, at_most(MOST_DEVICES)] = None
    """use the first N devices (default: all of them); on a CPU, simulate N. On a CPU, these are
    added to XLA_FLAGS unless you set them yourself: --xla_force_host_platform_device_count=N and,
    for speed, --xla_cpu_experimental_ynn_fusion_type=-individual_convolution (with JAX 0.11 and
    later also ,-reduce, for correct results) and --xla_disable_hlo_passes=cse_barrier_expander"""
    mesh: Annotated[str | None, tyro.conf.arg(metavar="AXIS=N,...", help_behavior_hint="")] = None
    """with --strategy sharded, the device mesh, e.g. data=4,model=2 or data=2,space=4 (default:
    data only). The batch is sharded over data, images over space (spatial partitioning of their
    height) and, with --shard-params, output channels over model"""
    shard_params: tyro.conf.FlagCreatePairsOff[bool] = False
    """with --strategy sharded, shard parameters, optimizer state and EMA over data and model, for
    models that do not fit on one device"""
    deterministic: bool = False
    """on GPUs, use only kernels that are bitwise reproducible, which is slower; CPU kernels always
    are"""


@dataclasses.dataclass(frozen=True)
class OptimizationConfig(Settings):
    """Flags that choose the batch size, the length of training and the optimizer."""

    global_batch_size: Annotated[BatchSize, POSITIVE] = None
    """examples per step, over all devices; auto: as many as fit in memory (default: 128, or the
    dataset's own; of a training set with less than four such batches the largest power of two that
    is at most a quarter)"""
    per_device_batch_size: Annotated[OptionalInt, POSITIVE] = None
    """examples per device and microbatch, instead of --global-batch-size"""
    accumulate_steps: Annotated[int, POSITIVE] = 1
    """gradient accumulation, which saves memory: split the global batch into this many
    microbatches, one after another, for one update; batch norm sees one microbatch"""
    epochs: Annotated[OptionalInt, POSITIVE] = None
    """passes over the training set (default: 20, or the dataset's own)"""
    steps: Annotated[OptionalInt, POSITIVE, at_most(MOST_STEPS)] = None
    """number of training steps, instead of --epochs"""
    optimizer: str = "nesterov"
    """sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lamb or lion"""
    optimizer_kwargs: OptimizerKeywords = dataclasses.field(default_factory=dict[str, Any])
    """keyword arguments of the Optax optimizer, e.g. momentum=0.95 or b1=0.9 b2=0.99 (default: the
    optimizer's own)"""
    learning_rate: Annotated[OptionalFloat, NON_NEGATIVE] = None
    """peak learning rate (default: 0.1 for sgd, momentum and nesterov, otherwise 0.001)"""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """scale the learning rate with the global batch size over 128, linearly or by its square root,
    so that a recipe carries over to larger batches; schedules other than onecycle then warm up for
    5 epochs"""
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "onecycle"
    """learning-rate schedule; multistep divides by 10 after 1/2 and 3/4 of the steps"""
    warmup_fraction: Annotated[OptionalFloat, FRACTION] = None
    """fraction of the steps spent warming up to the peak learning rate (default: 0.3 for onecycle,
    otherwise 0)"""
    weight_decay: Annotated[float, NON_NEGATIVE] = 1e-4
    """weight decay of all parameters: L2, added to the gradient; decoupled for adamw, lamb and lion
    """
    clip_norm: Annotated[OptionalFloat, POSITIVE] = None
    """clip gradients to this global norm (default: no clipping)"""
    label_smoothing: Annotated[float, FRACTION] = 0.0
    """label smoothing of a classification: fraction of each target spread evenly over all classes
    """
    ema_decay: Annotated[float, FRACTION] = 0.0
    """decay of the exponential moving average (EMA) of the weights, which is what is then
    evaluated, e.g. 0.999 (0: no EMA)"""


@dataclasses.dataclass(frozen=True)
class LearningConfig(Settings):
    """Flags that choose which weights training starts from, which ones it changes, and how often it
    sees each class.
    """

    init_from: Annotated[str | None, tyro.conf.arg(metavar="RUN|FILE", help_behavior_hint="")] = (
        None
    )
    """start from the weights of a run (its best or last checkpoint) or of a file: .safetensors,
    .npz or, with PyTorch, .pt, with the names that convert export writes or those of PyTorch. A
    head for another number of classes keeps its own initialization; everything else must fit. A run
    that resumes goes on from its own checkpoint"""
    freeze: Annotated[str | None, tyro.conf.arg(metavar="PATTERN", help_behavior_hint="")] = None
    """keep the parameters whose name begins with a match of this regular expression as they are,
    e.g. "stem|units/[0-3]/", or "(?!head)" for all but the head; batch norms keep updating their
    running statistics, as in PyTorch (default: train all)"""
    sampler: Annotated[Literal["balanced"] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """balanced: draw all classes of a classification equally often, those of rare ones repeatedly
    (default: every example once an epoch)"""


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
    """Flags that choose the folder of a run, and when it logs and saves."""

    run_dir: OptionalPath = None
    """directory of this run (default: runs/MODEL-DATASET-HASH, the same for the same settings)"""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: resume the run in its directory if there is one; never: start a new one; must: fail if
    there is none. A run that is stopped by a signal saves its last step and exits with code 75"""
    eval_every: Annotated[OptionalInt, POSITIVE] = None
    """steps between evaluations (default: every epoch)"""
    checkpoint_every: Annotated[OptionalInt, POSITIVE] = None
    """steps between checkpoints (default: whole epochs, at least 100 steps); the last step is
    always saved"""
    keep: Annotated[int, POSITIVE] = 3
    """number of newest checkpoints to keep; with validation data the best one by them is kept as
    well"""
    log_every: Annotated[int, POSITIVE] = 10
    """steps between rows of metrics.jsonl"""
    steps_per_execution: Annotated[int, POSITIVE] = 1
    """run this many steps in one program, where the dataset is in device memory: for steps of a few
    milliseconds on accelerators. Evaluations and checkpoints stay where they are; a shorter
    execution before one of them compiles a second program"""
    on_divergence: Literal["stop", "skip", "rollback"] = "stop"
    """when the loss or the gradients are no longer finite: stop (exit code 3), skip the update, or
    roll back to the last checkpoint and continue from there with half the learning rate"""
    max_divergences: Annotated[int, POSITIVE] = 5
    """stop nevertheless after this many skipped updates in a row, or this many rollbacks"""
    early_stop: Annotated[OptionalInt, POSITIVE] = None
    """end the run after this many evaluations in a row that did not improve the task's metric
    (accuracy, iou, mse) on the validation data; for another metric use --callbacks
    early_stopping:patience=N,metric=NAME (default: train to the end)"""
    callbacks: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="NAME[:KEY=VALUE,...]", help_behavior_hint="")
    ] = ()
    """further callbacks, e.g. early_stopping:patience=5,metric=accuracy or wandb:project=mine;
    plugins may register more: early_stopping, profiler, wandb, mlflow"""
    profile: OptionalProfile = None
    """profile steps START to STOP, counted from 1; the trace is written to the run's directory, for
    XProf or TensorBoard"""
    step_timeout: Annotated[
        float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint=""), POSITIVE
    ] = None
    """abort, with a stack trace of each thread, if no step finishes within this time (default: 30
    times the median step, at least 300 s; compiling and saving do not count)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_divergence == "rollback" and self.max_divergences > _MOST_ROLLBACKS:
            remedy = (
                f"each rollback halves the learning rate, after {_MOST_ROLLBACKS} nothing would be"
                " learned; give at most that"
            )
            raise ConfigError("max_divergences", self.max_divergences, remedy)


@dataclasses.dataclass(frozen=True)
class ProcessConfig(Settings):
    """Flags that connect the processes of a run."""

    distributed: Literal["auto", "on", "off"] = "auto"
    """whether this is one process of several: detected (from the flags below, Slurm, Open MPI, a
    Kubernetes indexed job or a TPU pod), yes, or no. `python -m jaxdp.launch -n N -- train ...`
    starts several on one machine"""
    coordinator: Annotated[
        str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")
    ] = None
    """address at which process 0 listens, e.g. 10.0.0.1:1234 (default: detected on a cluster)"""
    num_processes: Annotated[OptionalInt, POSITIVE] = None
    """number of processes (default: detected on a cluster)"""
    process_id: Annotated[OptionalInt, NON_NEGATIVE] = None
    """index of this process, from 0 (default: detected on a cluster)"""
    distributed_timeout: Annotated[float, POSITIVE] = 60.0
    """seconds to wait for the other processes at startup"""
    heartbeat_timeout: Annotated[float, POSITIVE] = 30.0
    """seconds without a heartbeat after which a process counts as dead"""


@dataclasses.dataclass(frozen=True)
class WorkersConfig(Settings):
    """Flags of --strategy exact and async: workers of different speed that come and go (Ray)."""

    workers: Annotated[OptionalInt, POSITIVE, at_most(MOST_WORKERS)] = None
    """processes that compute, each on one CPU core (default: 4)"""
    slices: Annotated[OptionalInt, POSITIVE, at_most(MOST_WORKERS)] = None
    """exact: equal slices of each batch, whole groups of batch norm (default: as many as possible,
    at most 16)"""
    servers: Annotated[OptionalInt, POSITIVE, at_most(MOST_WORKERS)] = None
    """parameter servers, which divide the model's arrays by size, on the machines that have workers
    (default: 1 for async; for exact none, the command's own process holds them)"""
    staleness: Annotated[OptionalInt, NON_NEGATIVE] = None
    """async: largest number of updates between the pull of parameters and the push of their
    gradient; with it, all workers wait for the slowest one (default: no bound)"""
    ray_address: Annotated[
        str | None, tyro.conf.arg(metavar="auto|HOST:PORT", help_behavior_hint="")
    ] = None
    """Ray cluster whose machines the workers run on; only in networks that you trust, since Ray
    executes what it is sent (default: a cluster of this machine alone, for this run)"""

    @property
    def count(self) -> int:
        """Number of workers."""
        return self.workers or DEFAULT_WORKERS


@dataclasses.dataclass(frozen=True)
class PartsConfig(Settings):
    """What is trained, on which data and for which task: what commands about training have in
    common.
    """

    plugins: Plugins = ()
    """your own Python files or modules, imported first to register models, datasets, tasks or
    strategies"""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    task: TaskConfig = TaskConfig()


@dataclasses.dataclass(frozen=True)
class TrainConfig(PartsConfig):
    """Everything that defines a training run.

    `config.yaml` in its folder holds exactly these settings.
    """

    sharding: ShardingConfig = ShardingConfig()
    optimization: OptimizationConfig = OptimizationConfig()
    learning: LearningConfig = LearningConfig()
    workers: WorkersConfig = WorkersConfig()
    run: RunConfig = RunConfig()
    processes: ProcessConfig = ProcessConfig()
