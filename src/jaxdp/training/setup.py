"""Puts a run together from its settings: data, model, task, optimizer, strategy and intervals."""

# Over 300 lines: a setup and what puts it together belong together.

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float

from jaxdp import models, tasks
from jaxdp.components import (
    NOTHING,
    Objects,
    array_shapes,
    check_model,
    create_model,
    create_task,
    has_own_code,
    open_data,
)
from jaxdp.config import TrainConfig, settings_with
from jaxdp.data import augment, pipeline, placement
from jaxdp.data.reading_processes import ReadingProcesses
from jaxdp.data.sources import BadExample, Dataset, Split
from jaxdp.inference import instances
from jaxdp.registry import ConfigError
from jaxdp.rundir.read import warn
from jaxdp.rundir.start import will_resume
from jaxdp.runtime import platform
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.runtime.targets import Target
from jaxdp.sharding import memory, mesh
from jaxdp.sharding import strategy as strategies
from jaxdp.sharding.strategy import Strategy, create_strategy
from jaxdp.step import metrics, optim
from jaxdp.step.state import Constants, TrainState, create_train_state
from jaxdp.step.step import Recipe
from jaxdp.training import class_weights, defaults, transfer
from jaxdp.training.intervals import Intervals

Advance = Callable[[str, int, int], None]
# Batches of an evaluation that the devices have been given before the host waits for the first of
# them.
_EVALUATED_AHEAD = 2
# Threads that read where the settings do not say it; each has a batch that waits on the devices.
_FEWEST_WORKERS, _MOST_WORKERS = 2, 8


def say_nothing(split: str, done: int, total: int) -> None:
    """Is told how far a dataset is read, and tells nobody."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that a run consists of, ready to train.

    Attributes:
        config: the settings, with what depends on model, dataset and devices filled in.
        dtype: format of the computation.
        objects: what was given as an object rather than by name.
        advance: is told the name of a split, how many of its examples are read, and how many there
            are, while the dataset is put on the devices.
        factory: makes the model, as it was when the setup was created: a plugin may be imported
            anew. None for a model object.
    """

    config: TrainConfig
    dtype: Any
    dataset: Dataset
    recipe: Recipe
    schedule: optax.Schedule
    strategy: Strategy
    intervals: Intervals
    objects: Objects = NOTHING
    advance: Advance = say_nothing
    factory: Callable[..., Any] | None = None

    @property
    def global_batch_size(self) -> int:
        """Examples of a step over all devices."""
        assert isinstance(self.config.global_batch_size, int)
        return self.config.global_batch_size

    @functools.cached_property
    def learning_rates(self) -> Float[np.ndarray, "steps"]:
        """The learning rate of each step.

        An optimizer given as an object has its own and ignores these.
        """
        # All at once: called step by step, a schedule compiles each of its operations.
        return np.asarray(jax.jit(jax.vmap(self.schedule))(np.arange(self.intervals.total_steps)))

    @functools.cached_property
    def constants(self) -> Constants:
        """What all training steps read, on the devices."""
        small = self.strategy.replicate(Constants.create(self.learning_rates, self.config.seed))
        return dataclasses.replace(small, examples=self.train_data)

    def reconfigured(self, config: TrainConfig) -> "Setup | None":
        """Returns a setup for other settings that compiles and reads nothing anew, or None where
        they need another one.
        """
        before = self.config.flat()
        if config.batch_norm is None:  # the default, which depends on what may not change
            config = config.replace(batch_norm=self.config.batch_norm)
        changed = {name for name, value in config.flat().items() if value != before[name]}
        if not changed <= {*settings_with(TrainConfig, program=False)}:
            return None
        defaults.check_learning(config, self.dataset)
        self.strategy.check(config, lambda: self.shapes)
        intervals, schedule = defaults.create_schedule(
            config, len(self.dataset.train), self.objects
        )
        return self._sharing_data(
            dataclasses.replace(self, config=config, intervals=intervals, schedule=schedule)
        )

    def _sharing_data(self, setup: "Setup") -> "Setup":
        # What was read is not read twice, and the state of another schedule has the same shapes.
        for name in (
            "train_data",
            "evaluation_data",
            "_train_labels",
            "initial_weights",
            "shapes",
            "reading",
        ):
            if name in vars(self):
                vars(setup)[name] = vars(self)[name]
        return setup

    def create_state(self) -> TrainState:
        """Creates the initial state, on the default device or where the strategy wants it."""
        initial = self.initial_weights
        with self.strategy.creating():
            return self._create_state(
                initial.load_into if initial is not None else lambda model: None
            )

    def _create_state(self, fill: Callable[[nnx.Module], None]) -> TrainState:
        model = self.create_model()
        fill(model)
        optimizer = self.recipe.optimizer(self.schedule)
        scaled = self.config.precision == "float16"
        return create_train_state(
            model,
            optimizer,
            with_ema=self.config.ema_decay > 0,
            with_loss_scale=scaled,
        )

    def create_model(self) -> nnx.Module:
        """Returns a new model with weights drawn from the seed, or those of the model that was
        given.
        """
        if self.objects.model is not None:
            return nnx.clone(self.objects.model)
        rngs = nnx.Rngs(self.config.seed)
        return create_model(
            self.config, self.dataset, rngs=rngs, dtype=self.dtype, factory=self.factory
        )

    @functools.cached_property
    def initial_weights(self) -> transfer.InitialWeights | None:
        """The weights of `--init-from`, once they are read.

        Raises:
            ConfigError: if they cannot be read, or do not fit.
        """
        path = self.config.init_from
        return (
            transfer.read_initial(path, self.config, self.dataset, self.objects)
            if path is not None
            else None
        )

    def abstract_step(self, global_batch_size: int) -> tuple[TrainState, Any, Any]:
        """Returns the shapes of what a training step takes, state, batch and constants.

        It reads one example of the dataset.
        """
        constants = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            Constants.create(self.learning_rates, self.config.seed),
        )
        streams = self.config.data_placement == "host"
        resident = (
            {}
            if streams
            else {name: values for name, values in self._example.items() if name != "indices"}
        )
        return (
            self.strategy.abstract(self.shapes),
            self.strategy.abstract_batch(self._batch_shapes(global_batch_size)),
            dataclasses.replace(
                constants, examples=placement.abstract(resident, len(self.dataset.train))
            ),
        )

    @property
    def _example(self) -> dict[str, np.ndarray]:
        return pipeline.load(self.source("train"), np.zeros(1, np.int32))

    def _batch_shapes(self, count: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a global batch before it is placed.

        It reads one example where batches hold examples.
        """
        streams = self.config.data_placement == "host"
        fields = self._example if streams else pipeline.index_batch(np.zeros(1, np.int32))
        if self.config.sampler is not None:
            fields = fields | {"draws": fields["indices"]}
        if self.recipe.preprocess.mixings:
            fields = fields | {f"partner_{name}": values for name, values in fields.items()}
        return {
            name: jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype)
            for name, array in fields.items()
        }

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of a state as the model knows it; nothing is computed."""
        return jax.eval_shape(lambda: self._create_state(lambda model: None))

    @functools.cached_property
    def train_data(self) -> Mapping[str, Any]:
        """The training set on the devices; nothing where it streams, or others read it."""
        return self._resident("train") if self.strategy.takes_batches else {}

    @functools.cached_property
    def evaluation_data(self) -> Mapping[str, Any]:
        """The split that is evaluated, on the devices; nothing where it streams."""
        return self._resident(self.evaluation_split)

    @property
    def evaluation_split(self) -> str:
        """`validation` if the dataset has one, otherwise `test`."""
        return self.dataset.evaluation_split or "test"

    @property
    def evaluation_source(self) -> Split:
        """The split that is evaluated."""
        return self.source(self.evaluation_split)

    def _resident(self, split: str) -> Mapping[str, Any]:
        if self.config.data_placement == "host":
            return {}
        source = self.source(split)
        with ReadingProcesses({split: source}) as processes:
            source = source.read_by(processes.reader(split, self._workers))
            arrays = placement.read_all(
                source, functools.partial(self.advance, split), self._workers
            )
        return self.strategy.replicate(placement.pack(arrays))

    def source(self, split: str) -> Split:
        """Returns a split by its name."""
        source = getattr(self.dataset, split)
        assert isinstance(source, Split)
        return source

    @functools.cached_property
    def reading(self) -> ReadingProcesses:
        """The processes that read what streams, for sources that ask for them.

        As a context it ends them.
        """
        return ReadingProcesses(self.dataset.splits())

    @property
    def train_order(self) -> pipeline.TrainingOrder | pipeline.BalancedOrder:
        """Which examples are in which step."""
        how = (self.global_batch_size, self.config.seed, self.intervals.total_steps)
        if self.config.sampler == "balanced":
            return pipeline.BalancedOrder(self._train_labels, *how)
        return pipeline.TrainingOrder(len(self.dataset.train), *how)

    @functools.cached_property
    def _train_labels(self) -> np.ndarray:
        return self.source("train").labels()

    def train_batches(self, start: int) -> Iterator[Any]:
        """Returns the placed batches from step `start` on, with `--steps-per-execution` those of
        each call together; or the numbers of the steps, if the strategy takes those.
        """
        self.strategy.check_started()
        if not self.strategy.takes_batches:
            return iter(range(start, self.intervals.total_steps))
        order: Any = self.train_order
        if self.intervals.steps_per_execution > 1:
            order, start = pipeline.CallOrder(order, self.intervals.executions(start)), 0
        layout = self.strategy.order_in_batch(self.global_batch_size)
        return self._batches(
            "train", order, start, paired=bool(self.recipe.preprocess.mixings), layout=layout
        )

    def evaluate(
        self,
        state: TrainState,
        batch_done: Callable[[], None] = lambda: None,
        *,
        split: str | None = None,
    ) -> metrics.Sums:
        """Returns metric sums over every example of a split once, whatever divides what.

        Args:
            batch_done: is called after each batch.
            split: None for `evaluation_split`, whose examples may stay on the devices.
        """
        split = split or self.evaluation_split
        devices, examples = self.strategy.num_devices, len(self.source(split))
        batch_size = -(-min(self.global_batch_size, examples) // devices) * devices
        sums: metrics.Sums = {}
        with self.reading:
            for part in self._evaluate(
                state, split, pipeline.EvaluationOrder(examples, batch_size)
            ):
                sums = metrics.add(sums, part)
                batch_done()
        if not sums["examples"]:
            raise self.source(split).nothing_left()
        return sums

    def evaluate_each(self, state: TrainState, *, split: str) -> Iterator[metrics.Sums]:
        """Yields the metric sums of each example of a split by itself, in order.

        Of one that is left out they are 0.
        """
        order = pipeline.SingleOrder(len(self.source(split)), self.strategy.num_devices)
        with self.reading:
            yield from map(metrics.add, self._evaluate(state, split, order))

    def _evaluate(self, state: TrainState, split: str, order: Any) -> Iterator[metrics.Sums]:
        data = self.evaluation_data if split == self.evaluation_split else self._resident(split)
        under_way: collections.deque[Any] = collections.deque()
        for batch in self._batches(split, order, 0):
            under_way.append(compile_then_barrier(self.strategy.eval_step, state, batch, data))
            if len(under_way) > _EVALUATED_AHEAD:
                yield self.strategy.gather(under_way.popleft())
        yield from map(self.strategy.gather, under_way)

    def skipped(self) -> dict[str, list[BadExample]]:
        """Returns of each split which bad examples this process left out so far, in the order of
        the split.
        """
        found = {split: self.source(split).errors for split in self.dataset.splits()}
        return {
            split: [errors[index] for index in sorted(errors)]
            for split, errors in found.items()
            if errors
        }

    def _batches(
        self,
        split: str,
        order: Any,
        start: int,
        *,
        paired: bool = False,
        layout: np.ndarray | None = None,
    ) -> Iterator[Any]:
        # Not before: `plan` compiles and runs nothing.
        platform.check_precision(self.config.precision)
        streams = self.config.data_placement == "host"
        read = pipeline.index_batch
        if streams:
            read = functools.partial(
                pipeline.load, self.source(split).read_by(self.reading.reader(split, self._workers))
            )
        return pipeline.batches(
            read,
            order,
            self.strategy.shard_batch,
            start=start,
            paired=paired,
            layout=layout,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            threads=self._workers,
        )

    @property
    def _workers(self) -> int:
        """Threads that read and decode, which releases the interpreter's lock, and as many
        processes for sources that hold it.
        """
        return self.config.data_workers or min(
            max(platform.cores(), _FEWEST_WORKERS), _MOST_WORKERS
        )


def create_setup(
    config: TrainConfig,
    objects: Objects = NOTHING,
    *,
    training: bool = True,
    dtype: Any = None,
    advance: Advance = say_nothing,
    target: Target | None = None,
) -> Setup:
    """Puts a run together, and finds what does not fit before anything is computed or written.

    Args:
        objects: what is given as an object rather than by name.
        dtype: format of the computation; None for the configured precision.
        training: whether the batch must divide over the devices; evaluation pads, so it takes any
            number.
        target: devices that are described only, for which steps can be compiled; None for those
            that there are.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    platform.check_backend()
    config = defaults.with_saved_defaults(config)
    sizes = config
    # What there is later is the dataset's own.
    is_default = sizes.global_batch_size is None and sizes.per_device_batch_size is None
    config, dataset = open_data(config, objects)
    ReadingProcesses(dataset.splits()).check()
    if dataset.instances:
        instances.require()
    if training:
        defaults.check_learning(config, dataset)
        if has_own_code(config, objects) and (defect := platform.cpu_defect()) is not None:
            warn(defect)
    task = create_task(
        config,
        dataset,
        objects,
        class_weights=class_weights.resolve(config, dataset) if training else (),
    )
    preprocess = augment.create_preprocess(
        config.augment or (),
        mean=dataset.mean,
        std=dataset.std,
        per_image=config.normalize == "image",
        dense=task.name != "classification",
        pixel_range=dataset.pixel_range,
        padded=dataset.padded,
    )
    tile = augment.output_shape(preprocess.augmentations, dataset.image_shape)
    fewest_rows, normalizes = check_model(
        config, dataset, task, {dataset.image_shape, tile}, objects
    )
    devices = _devices(config, target)
    axes = (
        mesh.MeshShape.parse(config.mesh, len(devices) * jax.process_count())
        if config.mesh is not None
        else None
    )
    asked = config
    data_shards = axes.data if axes is not None else len(devices) * jax.process_count()
    config = defaults.with_batch_size(config, dataset, data_shards, is_default=is_default)
    automatic = asked.global_batch_size == "auto"
    config = defaults.with_batch_norm(config, grouped=normalizes and training and not automatic)
    limit = platform.device_memory_bytes(devices) if target is None else target.chip.memory_bytes
    config = defaults.with_placement(config, dataset, limit)
    intervals, schedule = defaults.create_schedule(config, len(dataset.train), objects)
    optimizer, frozen = _optimizer_factory(config, schedule, objects), frozenset[str]()
    if config.freeze is not None:
        frozen = transfer.frozen_names(config.freeze, array_shapes(config, dataset, objects)[0])
    recipe = _create_recipe(
        config, task, preprocess, optimizer, frozen, scan=devices[0].platform != "cpu"
    )
    strategy = create_strategy(
        config.strategy, recipe, devices, axes, shard_params=config.shard_params
    )
    strategy.check_rows({dataset.image_shape[0], tile[0]}, fewest_rows)
    if training and not automatic:
        group = asked.batch_norm.group_size if asked.batch_norm is not None else None
        strategy.check_batch(int(config.global_batch_size or 0), len(dataset.train), group)
    setup = Setup(
        config,
        jnp.dtype(dtype or config.precision),
        dataset,
        recipe,
        schedule,
        strategy,
        intervals,
        objects,
        advance,
        factory=models.factory(config.model) if objects.model is None else None,
    )
    if not automatic:
        if training:
            strategy.check(config, lambda: setup.shapes)
        if training and config.resume != "must" and not will_resume(config):
            _ = setup.initial_weights  # finds what does not fit
        return setup
    size = memory.automatic_batch(strategy, setup.abstract_step, len(dataset.train))
    chosen = asked.replace(global_batch_size=size)
    return create_setup(chosen, objects, training=training, dtype=dtype, advance=advance)


def _devices(config: TrainConfig, target: Target | None) -> list[Any]:
    kind, count = strategies.by_name(config.strategy), config.devices
    if target is None:
        return platform.select_devices(1 if kind.one_device and count is None else count)
    if not kind.takes_batches:
        remedy = f"computes on CPUs, which {target} is not; use another strategy"
        raise ConfigError("strategy", kind.name, remedy)
    return target.devices()


def _create_recipe(
    config: TrainConfig,
    task: tasks.Task,
    preprocess: augment.Preprocess,
    optimizer: Callable[[optax.Schedule], optax.GradientTransformation],
    frozen: frozenset[str],
    *,
    scan: bool,
) -> Recipe:
    assert config.batch_norm is not None
    return Recipe(
        task=task,
        optimizer=optimizer,
        preprocess=preprocess,
        batch_norm=config.batch_norm,
        ema_decay=config.ema_decay,
        on_divergence=config.on_divergence,
        accumulate_steps=config.accumulate_steps,
        scan=scan,
        remat=config.remat,
        frozen=frozen,
    )


def _optimizer_factory(
    config: TrainConfig, schedule: optax.Schedule, objects: Objects
) -> Callable[[optax.Schedule], optax.GradientTransformation]:
    """Returns a function from a schedule to the optimizer.

    One given as an object has its own schedule.
    """
    optimizer = objects.optimizer
    if optimizer is not None:
        return lambda schedule: optimizer
    optim.create_optimizer(config, schedule)  # finds what does not fit
    return functools.partial(optim.create_optimizer, config)
