"""Keywords of `Trainer` and `Trainer.fit` for editors and type checkers.

Written by `nox -s keywords` from the declarations of `TrainConfig`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

from optax import GradientTransformation  # pyright: ignore[reportMissingTypeStubs]


class Resumable(Protocol):
    """A result of training, with the folder of its run, if it has one."""

    run_dir: Path | None


class TrainKeywords(TypedDict, total=False):
    """Settings of a training run by name, in the types in which a program gives them."""

    plugins: Sequence[str]
    model_kwargs: dict[str, Any]
    batch_norm: str | None
    precision: Literal["float32", "bfloat16", "float16"]
    remat: Literal["none", "blocks"]
    data_dir: str | None
    train_split: str | None
    test_split: str | None
    validation: str | int | float | None
    image_size: str | int | None
    channels: Literal[1, 3, 4] | None
    tiff: Literal["pages", "channels"] | None
    columns: str | dict[str, str] | None
    num_classes: int | None
    mask_values: str | None
    instances: bool
    class_names: Sequence[str] | None
    augment: Sequence[str] | None
    normalize: Literal["channel", "image", "imagenet"]
    test_time_augmentation: Literal["flip", "dihedral"] | None
    data_placement: Literal["device", "host"] | None
    data_workers: int | None
    on_bad_example: Literal["error", "skip"]
    seed: int
    loss: str | None
    task_kwargs: dict[str, Any]
    class_weights: str | Sequence[float] | None
    strategy: str
    devices: int | None
    shard_params: bool
    deterministic: bool
    global_batch_size: int | Literal["auto"] | None
    per_device_batch_size: int | None
    accumulate_steps: int
    epochs: int | None
    steps: int | None
    optimizer: str | GradientTransformation | None
    optimizer_kwargs: dict[str, Any]
    learning_rate: float | Callable[[Any], Any] | None
    lr_scaling: Literal["none", "linear", "sqrt"]
    schedule: Literal["constant", "multistep", "cosine", "onecycle"]
    warmup_fraction: float | None
    weight_decay: float
    clip_norm: float | None
    label_smoothing: float
    ema_decay: float
    init_from: str | Path | Resumable | None
    freeze: str | None
    workers: int | None
    slices: int | None
    ray_address: str | None
    run_dir: str | None
    resume: Literal["auto", "never", "must"] | str | Path | Resumable
    eval_every: int | None
    checkpoint_every: int | None
    keep: int
    log_every: int
    steps_per_execution: int
    on_divergence: Literal["stop", "skip"]
    max_divergences: int
    early_stop: int | None
    max_time: str | None
    step_timeout: float | None
    distributed: Literal["auto", "on", "off"]
    coordinator: str | None
    num_processes: int | None
    process_id: int | None
    distributed_timeout: float
    heartbeat_timeout: float
