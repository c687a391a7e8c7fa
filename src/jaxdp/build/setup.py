"""Puts a run together from its settings: data, model, task, optimizer, strategy and intervals."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float

from jaxdp import models, tasks
from jaxdp.build import class_weights, defaults, recipes
from jaxdp.build import initial_weights as transfer
from jaxdp.build.batches import Advance, Batches, ignore_progress
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.model_check import check_model
from jaxdp.build.parts import create_model, create_task, has_own_code, open_data
from jaxdp.config import TrainConfig, settings_with
from jaxdp.data import augment, pipeline, placement
from jaxdp.data.request import Request
from jaxdp.data.sources import Dataset
from jaxdp.errors import ConfigError
from jaxdp.inference import instances
from jaxdp.rundir.start import will_resume
from jaxdp.runtime import collector, platform
from jaxdp.runtime.targets import Target
from jaxdp.sharding import memory, mesh
from jaxdp.sharding import strategy as strategies
from jaxdp.step.keys import create_key
from jaxdp.step.state import Constants, TrainState, create_train_state
from jaxdp.text.console import warn

# Setups share these if they differ only in settings outside of the program: nothing is read twice,
# and the state of another schedule has the same shapes.
_SHARED = ("train_data", "evaluation_data", "_train_labels", "initial_weights", "shapes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup(Batches):
    """Everything that a run consists of, ready to train.

    Attributes:
        dtype: format of the computation.
        inputs: what was given as an object rather than by name.
        factory: makes the model, as it was when the setup was created: a plugin may be imported
            anew. None for a model object.
    """

    dtype: Any
    schedule: optax.Schedule
    inputs: Inputs = NOTHING
    factory: Callable[..., Any] | None = None

    @functools.cached_property
    def learning_rates(self) -> Float[np.ndarray, "steps"]:
        """The learning rate of each step.

        An optimizer given as an object has its own and ignores these.
        """
        # All at once: called step by step, a schedule compiles each of its operations.
        return np.asarray(jax.jit(jax.vmap(self.schedule))(np.arange(self.intervals.total_steps)))

    @functools.cached_property
    def constants(self) -> Constants:
        """The constants that all training steps read, on the devices."""
        small = self.strategy.replicate(self._host_constants)
        return dataclasses.replace(small, examples=self.train_data)

    @property
    def _host_constants(self) -> Constants:
        moments = self.step_config.preprocess.moments
        return Constants.create(self.learning_rates, self.config.seed, moments)

    def reconfigured(self, config: TrainConfig) -> "Setup | None":
        """Returns a setup for other settings that compiles and reads nothing anew; None if the
        settings need another program.
        """
        if config.batch_norm is None:  # the default, which depends on what may not change
            config = config.replace(batch_norm=self.config.batch_norm)
        before = self.config.flat()
        changed = {name for name, value in config.flat().items() if value != before[name]}
        if not changed <= {*settings_with(TrainConfig, program=False)}:
            return None
        if "seed" in changed and self.inputs.dataset is None and Request(config).validation_share:
            return None  # another seed draws other validation data
        defaults.check_learning(config, self.dataset)
        self.strategy.check(config, lambda: self.shapes)
        intervals, schedule = defaults.create_schedule(
            config, self.dataset.train_examples, self.inputs
        )
        other = dataclasses.replace(self, config=config, intervals=intervals, schedule=schedule)
        vars(other).update({name: vars(self)[name] for name in _SHARED if name in vars(self)})
        return other

    @collector.paused()
    def create_state(self) -> TrainState:
        """Creates the initial state, on the default device or where the strategy wants it."""
        weights = self.initial_weights
        with self.strategy.creation_device():
            return self._create_state(weights)

    def _create_state(self, weights: transfer.InitialWeights | None = None) -> TrainState:
        model = self.create_model()
        if weights is not None:
            weights.load_into(model)
        return create_train_state(
            model,
            self.step_config.optimizer(self.schedule),
            with_ema=self.config.ema_decay > 0,
            with_loss_scale=self.config.precision == "float16",
        )

    def create_model(self) -> nnx.Module:
        """Returns a new model with weights drawn from the seed, or a copy of the given model."""
        return create_model(
            self.config,
            self.dataset,
            self.inputs,
            rngs=nnx.Rngs(create_key(self.config.seed)),
            dtype=self.dtype,
            factory=self.factory,
        )

    @functools.cached_property
    def initial_weights(self) -> transfer.InitialWeights | None:
        """The weights of `--init-from`.

        Raises:
            ConfigError: if they cannot be read, or do not fit.
        """
        path = self.config.init_from
        if path is None:
            return None
        return transfer.read_initial(path, self.config, self.dataset, self.inputs)

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of a state as the model knows it; nothing is computed."""
        return jax.eval_shape(self._create_state)

    def abstract_step(self, global_batch_size: int) -> tuple[TrainState, Any, Any]:
        """Returns the shapes of the arguments of a training step: state, batch and constants.

        It reads one example of the dataset.
        """
        fields = example = pipeline.load(self.source("train"), np.zeros(1, np.int32))
        resident: dict[str, Any] = {}
        if not self.streams:
            fields = pipeline.index_batch(np.zeros(1, np.int32))
            stored = {name: values for name, values in example.items() if name != "indices"}
            resident = placement.abstract(stored, self.dataset.train_examples)
        if self.step_config.preprocess.mixings:
            fields = fields | {f"partner_{name}": values for name, values in fields.items()}
        batch = {
            name: jax.ShapeDtypeStruct((global_batch_size, *array.shape[1:]), array.dtype)
            for name, array in fields.items()
        }
        constants = jax.eval_shape(lambda constants: constants, self._host_constants)
        return (
            self.strategy.abstract(self.shapes),
            self.strategy.abstract_batch(batch),
            dataclasses.replace(constants, examples=resident),
        )


@collector.paused()
def create_setup(
    config: TrainConfig,
    inputs: Inputs = NOTHING,
    *,
    training: bool = True,
    dtype: Any = None,
    advance: Advance = ignore_progress,
    target: Target | None = None,
) -> Setup:
    """Puts a run together, and finds what does not fit before anything is computed or written.

    Args:
        inputs: what is given as an object rather than by name.
        training: whether the batch must divide over the devices; evaluation pads, so it takes any
            number.
        dtype: format of the computation; None for the configured precision.
        advance: reading progress callback(split, done, total).
        target: devices that are described only, for which steps can be compiled; None for the
            devices of this process.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    platform.check_backend()
    given = defaults.with_saved_defaults(config)
    asked, dataset = open_data(given, inputs)
    task = _create_task(asked, dataset, inputs, training=training)
    preprocess = recipes.create_preprocess(asked, dataset, dense=task.name != "classification")
    tile = augment.output_shape(preprocess.augmentations, dataset.image_shape)
    sizes = {dataset.image_shape, tile}
    fewest_rows, normalizes = check_model(asked, dataset, task, sizes, inputs)
    devices = _devices(asked, target)
    shards = len(devices) * jax.process_count()
    axes = mesh.MeshShape.parse(asked.mesh, shards) if asked.mesh is not None else None
    automatic = asked.global_batch_size == "auto"
    examples = dataset.train_examples
    if not training:  # no batch is larger than a split
        examples = max(map(len, dataset.splits().values()))
    config = defaults.with_batch_size(asked, given, examples, axes.data if axes else shards)
    config = defaults.with_batch_norm(config, grouped=normalizes and training and not automatic)
    limit = target.chip.memory_bytes if target else platform.device_memory_bytes(devices)
    config = defaults.with_placement(config, dataset, limit)
    intervals, schedule = defaults.create_schedule(config, examples, inputs)
    step_config = recipes.create_step_config(config, dataset, inputs, schedule, task, preprocess)
    step_config = dataclasses.replace(step_config, scan=devices[0].platform != "cpu")
    create = strategies.by_name(config.strategy)
    strategy = create(step_config, devices, axes, shard_params=config.shard_params)
    strategy.check_rows({height for height, *_ in sizes}, fewest_rows)
    setup = Setup(
        config=config,
        dtype=jnp.dtype(dtype or config.precision),
        dataset=dataset,
        step_config=step_config,
        schedule=schedule,
        strategy=strategy,
        intervals=intervals,
        inputs=inputs,
        advance=advance,
        factory=models.factory(config.model) if inputs.model is None else None,
    )
    if automatic:
        size = memory.automatic_batch(strategy, setup.abstract_step, examples)
        asked = asked.replace(global_batch_size=size)
        return create_setup(asked, inputs, training=training, dtype=dtype, advance=advance)
    if training:
        _check_training(setup, asked)
    return setup


def _create_task(
    config: TrainConfig, dataset: Dataset, inputs: Inputs, *, training: bool
) -> tasks.Task:
    """Returns the task, once the dataset can be read and, for training, learned from."""
    if dataset.instances:
        instances.require()
    if not training:
        return create_task(config, dataset, inputs)
    defaults.check_learning(config, dataset)
    if has_own_code(config, inputs) and (defect := platform.cpu_defect()) is not None:
        warn(defect)
    if (settings := platform.unusual_settings()) is not None:
        warn(settings)
    weights = class_weights.resolve(config, dataset)
    return create_task(config, dataset, inputs, class_weights=weights)


def _check_training(setup: Setup, asked: TrainConfig) -> None:
    """Raises ConfigError for settings that training needs, and evaluation does not."""
    if setup.evaluation_split is None:
        warn(f"{setup.config.dataset} has no validation or test data: only training is measured")
    group = asked.batch_norm.group_size if asked.batch_norm is not None else None
    setup.strategy.check_batch(setup.global_batch_size, setup.dataset.train_examples, group)
    setup.strategy.check(setup.config, lambda: setup.shapes)
    if setup.config.resume != "must" and not will_resume(setup.config):
        _ = setup.initial_weights  # finds what does not fit


def _devices(config: TrainConfig, target: Target | None) -> list[Any]:
    kind, count = strategies.by_name(config.strategy), config.devices
    if target is None:
        return platform.select_devices(1 if kind.one_device and count is None else count)
    if not kind.takes_batches:
        remedy = f"computes on CPUs, which {target} is not; use another strategy"
        raise ConfigError("strategy", kind.name, remedy)
    return target.devices()
