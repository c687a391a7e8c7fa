"""Every setting: its type, its help text and its default.

Frozen dataclasses, one per group of flags; a command's configuration inherits the groups it needs, so that
`config.learning_rate` and `--learning-rate` and `learning_rate:` in YAML are the same thing everywhere.
Nothing here imports JAX: `--help` and most usage errors are answered before it starts.
"""
# Longer than 300 lines because every flag of a training run, with its help text, is in one place.

import dataclasses
import hashlib
import math
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tyro
import yaml

from jaxdp import deprecation
from jaxdp.registry import ConfigError, nearest

Keywords = Annotated[
    dict[str, Any],
    tyro.conf.arg(help_behavior_hint=""),
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE",
        instance_from_str=lambda words: parse_keywords(words),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{key}={item}" for key, item in value.items()],
    ),
]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]  # the help text says what None means
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Words = Annotated[
    tuple[str, ...] | None,
    tyro.conf.arg(help_behavior_hint=""),
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME[:NUMBER]",
        instance_from_str=lambda words: tuple(words),
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda value: list(value or ()),
    ),
]
BatchSize = Annotated[
    int | Literal["auto"] | None,
    tyro.conf.arg(help_behavior_hint=""),
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT|auto",
        instance_from_str=lambda words: parse_batch_size(words[0]),
        is_instance=lambda value: value is None or value == "auto" or isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
OptionalPath = Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]


@dataclasses.dataclass(frozen=True)
class PluginsConfig:
    """Flags that name plugins."""

    plugins: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE.py|MODULE", help_behavior_hint="")] = ()
    """your own Python files or modules, imported first to register models, datasets, tasks or strategies"""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Flags that choose the model and how it computes."""

    model: str = "pyramidnet"
    """model to train: pyramidnet, resnet, vgg, cnn or unet"""
    model_kwargs: Keywords = dataclasses.field(default_factory=dict)
    """keyword arguments of the model, e.g. depth=110 alpha=48 shake_drop=0.5 (default: the model's own)"""
    batch_norm: Annotated[str, tyro.conf.arg(metavar="{replica,global,group:N}")] = "replica"
    """examples that share batch-norm statistics: those of one replica, of the global batch (SyncBN), or of N examples (ghost batch
    norm). With global and group:N the result does not depend on the number of devices"""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """floating-point format of the computation; parameters and batch statistics stay float32. float16 uses dynamic loss scaling"""
    remat: Literal["none", "blocks", "full"] = "none"
    """rematerialization, which saves memory: the backward pass recomputes nothing, the inside of each block, or whole runs of
    blocks"""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Flags that choose the dataset and how its examples are prepared."""

    dataset: OptionalText = None
    """dataset to train on: digits, digits-denoise, cells (all built in), cifar10, cifar100, mnist, fashion_mnist, oxford_iiit_pet,
    tfds:NAME (TensorFlow Datasets), folder:PATH or npz:PATH (default: cells for unet, otherwise digits)"""
    data_dir: OptionalPath = None
    """directory of prepared TensorFlow Datasets (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)"""
    train_split: Annotated[str | None, tyro.conf.arg(metavar="SPLIT", help_behavior_hint="")] = None
    """examples to train on, e.g. train[:90%] (default: the dataset's own)"""
    test_split: Annotated[str | None, tyro.conf.arg(metavar="SPLIT", help_behavior_hint="")] = None
    """examples to evaluate on, e.g. train[90%:] (default: the dataset's own)"""
    image_size: Annotated[str | None, tyro.conf.arg(metavar="N|HxW", help_behavior_hint="")] = None
    """resize images to N x N or H x W pixels (default: no resizing)"""
    num_classes: OptionalInt = None
    """number of classes of the labels or masks (default: inferred from the dataset)"""
    augment: Words = None
    """random augmentations of training images, in this order, e.g. pad_crop:4 flip; none for none (default: the dataset's own):
    pad_crop crop shift flip flip_vertical rotate90 rotate affine elastic brightness contrast cutout mixup cutmix"""
    normalize: Literal["channel", "image"] = "channel"
    """subtract the mean and divide by the standard deviation, of each channel over the training set or of each image"""
    data_placement: Annotated[Literal["device", "host"] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """device: keep the dataset in device memory; host: stream it from host threads (default: device if the dataset takes at most a
    quarter of that memory)"""
    on_bad_example: Literal["error", "skip"] = "error"
    """what to do with an example that cannot be read: stop, or leave it out and report it"""
    seed: int = 0
    """random seed of the initial weights, the order of examples, augmentation and dropout"""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Flags that choose the task and its loss."""

    task: OptionalText = None
    """classification, segmentation, regression or a plugin's task (default: the one that both model and dataset support)"""
    loss: OptionalText = None
    """segmentation: cross_entropy, dice or cross_entropy+dice; regression: l2, l1 or huber (default: the first)"""
    task_kwargs: Keywords = dataclasses.field(default_factory=dict)
    """further keyword arguments of the task, e.g. class_weights=[1,5] ignore_label=255 or delta=0.1 (default: the task's own)"""


@dataclasses.dataclass(frozen=True)
class LayoutConfig:
    """Flags that choose how a training step is laid out on the devices."""

    mesh: Annotated[str | None, tyro.conf.arg(metavar="AXIS=N,...", help_behavior_hint="")] = None
    """with --strategy sharded, the device mesh, e.g. data=4,model=2 or data=2,space=4 (default: data only). The batch is sharded
    over data, images over space (spatial partitioning of their height) and, with --shard-params, output channels over model"""
    shard_params: tyro.conf.FlagCreatePairsOff[bool] = False
    """with --strategy sharded, shard parameters, optimizer state and EMA over data and model, for models that do not fit on one
    device"""
    grad_reduce_dtype: Annotated[Literal["bfloat16", "float16"] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """all-reduce gradients in this format, which halves the communication (default: float32); for pmap, shard_map and central"""
    deterministic: bool = False
    """on GPUs, use only kernels that are bitwise reproducible, which is slower; CPU kernels always are"""


@dataclasses.dataclass(frozen=True)
class ParallelConfig(LayoutConfig):
    """Flags that choose the strategy and the devices."""

    strategy: str = "pmap"
    """how devices share the work: pmap, single, shard_map, sharded or central"""
    devices: OptionalInt = None
    """use the first N devices (default: all of them); on a CPU, simulate N.
    On a CPU, these are added to XLA_FLAGS unless you set them yourself: --xla_force_host_platform_device_count=N and, for speed,
    --xla_cpu_experimental_ynn_fusion_type=-individual_convolution and --xla_disable_hlo_passes=cse_barrier_expander"""


@dataclasses.dataclass(frozen=True)
class OptimizationConfig:
    """Flags that choose the batch size, the length of training and the optimizer."""

    global_batch_size: BatchSize = None
    """examples per step, over all devices; auto: as many as fit in memory (default: 128, or the dataset's own)"""
    per_device_batch_size: OptionalInt = None
    """examples per device and microbatch, instead of --global-batch-size"""
    accumulate_steps: int = 1
    """gradient accumulation, which saves memory: split the global batch into this many microbatches, one after another, for one
    update; batch norm sees one microbatch"""
    epochs: OptionalInt = None
    """passes over the training set (default: 20, or the dataset's own)"""
    steps: OptionalInt = None
    """number of training steps, instead of --epochs"""
    optimizer: str = "nesterov"
    """sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lamb or lion"""
    optimizer_kwargs: Keywords = dataclasses.field(default_factory=dict)
    """keyword arguments of the Optax optimizer, e.g. momentum=0.95 or b1=0.9 b2=0.99 (default: the optimizer's own)"""
    learning_rate: OptionalFloat = None
    """peak learning rate (default: 0.1 for sgd, momentum and nesterov, otherwise 0.001)"""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """scale the learning rate with the global batch size over 128, linearly or by its square root, so that a recipe carries over to
    larger batches; schedules other than onecycle then warm up for 5 epochs"""
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "onecycle"
    """learning-rate schedule; multistep divides by 10 after 1/2 and 3/4 of the steps"""
    warmup_fraction: OptionalFloat = None
    """fraction of the steps spent warming up to the peak learning rate (default: 0.3 for onecycle, otherwise 0)"""
    weight_decay: float = 1e-4
    """weight decay of all parameters: L2, added to the gradient; decoupled for adamw, lamb and lion"""
    clip_norm: OptionalFloat = None
    """clip gradients to this global norm (default: no clipping)"""
    label_smoothing: float = 0.0
    """label smoothing of a classification: fraction of each target spread evenly over all classes"""
    ema_decay: float = 0.0
    """decay of the exponential moving average (EMA) of the weights, which is what is then evaluated, e.g. 0.999 (0: no EMA)"""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Flags that choose the folder of a run, and when it logs and saves."""

    run_dir: OptionalPath = None
    """directory of this run (default: runs/MODEL-DATASET-HASH, the same for the same settings)"""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: resume the run in its directory if there is one; never: start a new one; must: fail if there is none.
    A run that is stopped by a signal saves its last step and exits with code 75"""
    eval_every: OptionalInt = None
    """steps between evaluations (default: every epoch)"""
    checkpoint_every: OptionalInt = None
    """steps between checkpoints (default: whole epochs, at least 100 steps); the last step is always saved"""
    keep: int = 3
    """number of checkpoints to keep, besides the best one"""
    log_every: int = 10
    """steps between rows of metrics.jsonl"""
    steps_per_execution: int = 1
    """run this many steps in one program, where the dataset is in device memory: for steps of a few milliseconds on accelerators.
    Evaluations and checkpoints stay where they are; a shorter execution before one of them compiles a second program"""
    on_divergence: Literal["stop", "skip", "rollback"] = "stop"
    """when the loss or the gradients are no longer finite: stop (exit code 3), skip the update, or roll back to the last checkpoint
    and continue from there with half the learning rate"""
    max_divergences: int = 5
    """stop nevertheless after this many skipped updates in a row, or this many rollbacks"""
    callbacks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME[:KEY=VALUE,...]", help_behavior_hint="")] = ()
    """further callbacks, e.g. early_stopping:patience=5,metric=accuracy or wandb:project=mine; plugins may register more:
    early_stopping, learning_rate_monitor, profiler, wandb, mlflow"""
    profile: Annotated[str | None, tyro.conf.arg(metavar="START:STOP", help_behavior_hint="")] = None
    """profile steps START to STOP, counted from 1; the trace is written to the run's directory, for XProf or TensorBoard"""
    step_timeout: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """abort, with a stack trace of each thread, if no step finishes within this time (default: 30 times the median step, at least
    300 s; compiling and saving do not count)"""


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
    """Flags that connect the processes of a run."""

    distributed: Literal["auto", "on", "off"] = "auto"
    """whether this is one process of several: detected (from the flags below, Slurm, Open MPI, a Kubernetes indexed job or a TPU
    pod), yes, or no. `python -m jaxdp.launch -n N -- train ...` starts several on one machine"""
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """address at which process 0 listens, e.g. 10.0.0.1:1234 (default: detected on a cluster)"""
    num_processes: OptionalInt = None
    """number of processes (default: detected on a cluster)"""
    process_id: OptionalInt = None
    """index of this process, from 0 (default: detected on a cluster)"""
    distributed_timeout: float = 60.0
    """seconds to wait for the other processes at startup"""
    heartbeat_timeout: float = 30.0
    """seconds without a heartbeat after which a process counts as dead"""


@dataclasses.dataclass(frozen=True)
class TrainConfig(RunConfig, ProcessConfig, OptimizationConfig, ParallelConfig, TaskConfig, DataConfig, ModelConfig, PluginsConfig):
    """Everything that defines a training run; `config.yaml` in its folder holds exactly these fields."""

    def __post_init__(self) -> None:
        validate(self)


OBJECT = "(object)"  # stands for the name of what a program gave as an object

# At most one of each pair may be set. A flag on the command line displaces its partner from a file.
EXCLUSIVE = (("global_batch_size", "per_device_batch_size"), ("epochs", "steps"))

_POSITIVE = {
    "global_batch_size", "per_device_batch_size", "epochs", "steps", "devices", "clip_norm",
    "eval_every", "checkpoint_every", "keep", "log_every", "max_divergences", "num_classes", "step_timeout", "num_processes",
    "distributed_timeout", "heartbeat_timeout", "accumulate_steps", "repeats", "steps_per_execution", "at_a_time",
}  # fmt: skip
_TYPE_NAMES = {
    int: "an integer", float: "a number", bool: "true or false", str: "a string", list: "a list", dict: "a mapping",
    types.NoneType: "null",
}  # fmt: skip
_NON_NEGATIVE = {"learning_rate", "weight_decay", "seed", "tolerance", "process_id"}
_FRACTIONS = {"label_smoothing", "ema_decay", "warmup_fraction"}  # at least 0 and below 1


def validate(config: Any) -> None:
    """Checks every field that `config` has, whichever groups it is made of.

    Raises:
        ConfigError: for the first value that is out of range, or the first two that exclude each other.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(field.name, value)
    for first, second in EXCLUSIVE:
        if getattr(config, first, None) is not None and getattr(config, second, None) is not None:
            raise ConfigError(
                second, getattr(config, second), f"cannot be combined with --{first.replace('_', '-')}; give one of them"
            )
    if hasattr(config, "batch_norm"):
        BatchNormMode.parse(config.batch_norm)
    if getattr(config, "profile", None) is not None:
        ProfileRange.parse(config.profile)


def _check_range(name: str, value: int | float) -> None:
    """Raises ConfigError for a number that is out of the range of its setting."""
    if not math.isfinite(value):
        raise ConfigError(name, value, "must be a finite number")
    if name in _POSITIVE and value <= 0:
        raise ConfigError(name, value, "must be greater than 0")
    if name in _NON_NEGATIVE and value < 0:
        raise ConfigError(name, value, "must not be negative")
    if name == "seed" and value >= 2**31:
        raise ConfigError(name, value, "must be below 2147483648")
    if name in _FRACTIONS and not 0 <= value < 1:
        raise ConfigError(name, value, "must be at least 0 and below 1")


def _check_type(name: str, value: object, annotation: Any) -> None:
    """Raises ConfigError for a value of the wrong type, as a file may have it; the command line has only right ones."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if annotation in (tuple[str, ...], tuple[str, ...] | None):
        is_names = isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        if not is_names and not (value is None and annotation != tuple[str, ...]):
            raise ConfigError(name, value, "must be a list of names")
        return
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    union = typing.get_args(annotation) if is_union else (annotation,)
    choices = [choice for kind in union if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)]
    others = [kind for kind in union if typing.get_origin(kind) is not Literal and kind is not types.NoneType]
    if choices and value in choices:
        return
    if choices and not others:
        if not (value is None and types.NoneType in union):
            raise ConfigError(name, value, nearest(str(value), choices))
        return
    allowed = tuple(typing.get_origin(kind) or kind for kind in union if typing.get_origin(kind) is not Literal)
    accepted = (*allowed, int) if float in allowed else allowed
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(_TYPE_NAMES[kind] for kind in allowed)
        raise ConfigError(name, value, f"must be {names}, not {_TYPE_NAMES.get(type(value), type(value).__name__)}")


@dataclasses.dataclass(frozen=True)
class BatchNormMode:
    """Which examples share batch-norm statistics.

    Attributes:
        kind: `replica` (those of a replica), `global` (the whole batch) or `group`.
        group_size: examples of a `group`; None for the other kinds.
    """

    kind: Literal["replica", "global", "group"] = "replica"
    group_size: int | None = None

    @classmethod
    def parse(cls, text: str) -> "BatchNormMode":
        """Reads `replica`, `global` or `group:N`; raises ConfigError for anything else."""
        if text == "replica" or text == "global":
            return cls(text)
        kind, _, size = text.partition(":")
        if kind != "group" or not size.isdecimal() or int(size) < 1:
            raise ConfigError("batch_norm", text, "must be replica, global or group:N with N examples, e.g. group:16")
        return cls("group", int(size))

    def __str__(self) -> str:
        return self.kind if self.group_size is None else f"group:{self.group_size}"


@dataclasses.dataclass(frozen=True)
class ProfileRange:
    """Steps to profile, counted from 1, both ends included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "ProfileRange":
        """Reads `START:STOP`; raises ConfigError for anything else."""
        first, _, last = text.partition(":")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise ConfigError("profile", text, "must be START:STOP, steps counted from 1, e.g. 20:25")
        return cls(int(first), int(last))

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def parse_batch_size(word: str) -> int | Literal["auto"]:
    """Reads an integer or `auto`; raises ConfigError for anything else."""
    if word == "auto":
        return "auto"
    try:
        return int(word)
    except ValueError as error:
        raise ConfigError("global_batch_size", word, "must be an integer or auto") from error


def parse_keywords(words: list[str]) -> dict[str, Any]:
    """Reads `["depth=110", "alpha=48"]`; values are YAML, e.g. `true`, `0.5` or `[1, 2]`."""
    keywords: dict[str, Any] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not (key.isidentifier() and separator):
            raise ConfigError("", word, f"{word!r} is not a keyword argument: write KEY=VALUE without spaces, e.g. depth=110")
        keywords[key] = number(yaml.safe_load(value))
    return keywords


def number(value: Any) -> Any:
    """Returns a float for text that is one: YAML 1.1 reads 1e-3 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def load(path: str | pathlib.Path, cls: type) -> dict[str, Any]:
    """Reads settings from a file that `to_yaml` or a person wrote, also under their old names.

    Returns:
        only what the file sets; the rest is left to the defaults.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, or has a name or a type of value that `cls` does not have.
    """
    try:
        content = yaml.safe_load(pathlib.Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError("config", path, f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError("config", path, "must consist of `name: value` lines")
    fields = {field.name: field.type for field in dataclasses.fields(cls)}
    content = deprecation.rename_settings(content, warn=False)
    for name in content:
        if name not in fields:
            raise ConfigError("config", path, f"unknown setting {name!r}; {nearest(str(name), list(fields))}")
    return {name: from_yaml(name, value, fields[name]) for name, value in content.items()}


def from_yaml(name: str, value: Any, annotation: Any) -> Any:
    """Converts a value from YAML to the type of its field; raises ConfigError if it does not fit."""
    value = number(value) if "float" in str(annotation) else value
    if name == "image_size" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    _check_type(name, value, annotation)
    if "float" in str(annotation) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return tuple(value) if isinstance(value, list) else value


def to_yaml(config: Any) -> str:
    """Returns a configuration as YAML that `load` reads."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(config).items()}
    return yaml.safe_dump(plain, sort_keys=False)


# How a command runs, rather than what it trains.
OF_ONE_COMMAND = ("run_dir", "resume", "profile", "step_timeout", *(field.name for field in dataclasses.fields(ProcessConfig)))
_NOT_DEFINING = (*OF_ONE_COMMAND, "callbacks", "keep", "log_every", "steps_per_execution", "on_divergence", "max_divergences")


def defining(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings that make a run what it is."""
    settings: Mapping[str, Any] = dataclasses.asdict(config)
    # Runs from before there were plugins keep their folders.
    return {name: value for name, value in settings.items() if name not in _NOT_DEFINING and (name != "plugins" or value)}


def run_hash(config: TrainConfig) -> str:
    """Returns 8 hexadecimal digits that are the same for settings that define the same run."""
    return hash_of(defining(config))


def hash_of(settings: Mapping[str, Any]) -> str:
    """Returns 8 hexadecimal digits that are the same for equal settings, whatever their order."""
    return hashlib.sha256(yaml.safe_dump(settings).encode()).hexdigest()[:8]
