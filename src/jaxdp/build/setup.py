"""Builds a run from its settings: data, task, model, optimizer, strategy, batches, evaluator."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from jaxdp import models, tasks
from jaxdp.build import class_weights, resolve
from jaxdp.build.batches import Batches
from jaxdp.build.data import open_data
from jaxdp.build.evaluator import Evaluator
from jaxdp.build.examples import Advance, Examples, ignore_progress
from jaxdp.build.initial_state import InitialState
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.intervals import Intervals
from jaxdp.build.loss_check import check_losses
from jaxdp.build.model import has_own_code
from jaxdp.build.model_check import check_model
from jaxdp.build.pretrained_settings import with_pretrained
from jaxdp.build.step_config import (
    WrapOptimizer,
    create_preprocess,
    create_schedule,
    create_step_config,
)
from jaxdp.build.task import create_task
from jaxdp.config import TrainConfig, settings_with
from jaxdp.data import augment, pipeline, placement
from jaxdp.data.dataset import Description
from jaxdp.data.request import Request
from jaxdp.data.sources import Dataset
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import instances
from jaxdp.rundir.start import will_resume
from jaxdp.runtime import garbage_collector, platform
from jaxdp.runtime.targets import Target
from jaxdp.sharding import memory
from jaxdp.sharding import strategy as strategies
from jaxdp.step.state import Constants, TrainState
from jaxdp.step.step import StepConfig
from jaxdp.step.views import check as check_views
from jaxdp.text.console import warn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """A run, ready to train.

    Attributes:
        config: all settings, filled in. A setting is None only if None is one of its values.
        step_config: the settings of a step.
        strategy: shares the step among devices.
        batches: which examples are in which step.
        evaluator: computes the metric sums of a state.
        initial: makes the state in which training starts.
        schedule: learning rate as a function of the step.
        inputs: what was given as an object rather than by name.
    """

    config: TrainConfig
    step_config: StepConfig
    strategy: strategies.Strategy
    batches: Batches
    evaluator: Evaluator
    initial: InitialState
    schedule: optax.Schedule
    inputs: Inputs

    @property
    def dataset(self) -> Dataset:
        """The examples, and what is known of them."""
        return self.examples.dataset

    @property
    def description(self) -> Description:
        """What a model requires to know without its dataset: the content of `dataset.json`."""
        found, task = self.dataset.describe(), self.step_config.task
        if not self.inputs.has_own_task:
            return found
        own_loss = self.inputs.loss is not None
        return dataclasses.replace(
            found, own_task=task.name, own_loss=own_loss, best_metric=task.best_metric
        )

    @property
    def examples(self) -> Examples:
        """The dataset, and the way of its examples to the devices."""
        return self.batches.examples

    @property
    def intervals(self) -> Intervals:
        """When the run logs, evaluates and saves."""
        return self.batches.intervals

    @property
    def shapes(self) -> TrainState:
        """The shapes of a state as the model knows it."""
        return self.initial.shapes

    def create_state(self) -> TrainState:
        """Creates the initial state, on the default device or where the strategy wants it."""
        return self.initial.create(self.config.seed, self.schedule)

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
        return dataclasses.replace(small, examples=self.examples.train)

    @property
    def _host_constants(self) -> Constants:
        moments = self.step_config.preprocess.moments
        return Constants.create(
            self.learning_rates,
            self.config.seed,
            moments,
            steps_per_epoch=self.intervals.steps_per_epoch,
        )

    def reconfigured(self, given: TrainConfig) -> "Setup | None":
        """Returns a setup for other settings that compiles and reads nothing anew; None if the
        settings need another program.
        """
        if given.batch_norm is None:  # the default, which depends on what may not change
            given = given.replace(batch_norm=self.config.batch_norm)
        before = self.config.as_given().flat()
        now = given.as_given().flat()
        changed = {name for name, value in now.items() if value != before[name]}
        if not changed <= {*settings_with(TrainConfig, program=False)}:
            return None
        if "seed" in changed and self.inputs.dataset is None and Request(given).validation_share:
            return None  # another seed draws other validation data
        # What else was filled in holds, because the program is the same.
        kept = self.config.filled & {*settings_with(TrainConfig, program=True)}
        given = given.fill(**{name: getattr(self.config, name) for name in kept})
        config = resolve.with_lengths(given, self.dataset, self.dataset.train_examples, self.inputs)
        _check_learning(config, self.dataset)
        self.strategy.check(config, lambda: self.shapes)
        intervals = Intervals.of(config, self.dataset.train_examples)
        return dataclasses.replace(
            self,
            config=config,
            batches=dataclasses.replace(self.batches, intervals=intervals, seed=config.seed),
            schedule=create_schedule(config, intervals, self.inputs),
        )

    def abstract_step(self, global_batch_size: int) -> tuple[TrainState, Any, Any]:
        """Returns the shapes of the arguments of a training step: state, batch and constants.

        It reads one example of the dataset.
        """
        examples = self.examples
        fields = example = pipeline.load(examples.source("train"), np.zeros(1, np.int32))
        resident: dict[str, Any] = {}
        if not examples.streams:
            fields = pipeline.index_batch(np.zeros(1, np.int32))
            stored = {name: values for name, values in example.items() if name != "indices"}
            resident = placement.abstract(stored, self.dataset.train_examples)
        if self.batches.paired:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is built from that does not depend on its batch size or its lengths.

    Attributes:
        examples: of the training set; for evaluation, of the largest split.
        dtype: format of the computation.
    """

    inputs: Inputs
    dataset: Dataset
    task: tasks.Task
    preprocess: augment.Preprocess
    examples: int
    devices: Sequence[Any]
    dtype: Any
    advance: Advance
    wrap_optimizer: WrapOptimizer


@garbage_collector.paused()
def create_setup(
    given: TrainConfig,
    inputs: Inputs = NOTHING,
    *,
    training: bool = True,
    dtype: Any = None,
    advance: Advance = ignore_progress,
    target: Target | None = None,
    wrap_optimizer: WrapOptimizer = lambda create: create,
) -> Setup:
    """Builds a run, and finds what does not fit before anything is computed or written.

    Args:
        given: settings, of which those that are None are filled in.
        inputs: what is given as an object rather than by name.
        training: whether the batch must divide over the devices; evaluation pads, so it takes any
            number.
        dtype: format of the computation; None for the configured precision.
        advance: reading progress callback(split, done, total).
        target: devices that are described only, for which steps can be compiled; None for the
            devices of this process.
        wrap_optimizer: returns what makes the optimizer of the step, from what would make it.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    platform.check_backend()
    if inputs.model is None and training:
        given = with_pretrained(given, inputs.dataset)
    given = resolve.with_saved(given, inputs.dataset)
    named, dataset = open_data(given, inputs)
    asked = resolve.with_dataset(named, dataset, inputs)
    task = _create_task(asked, dataset, inputs, training=training)
    check_views(asked.test_time_augmentation, task, dataset.image_shape[:2])
    asked = resolve.with_strategy(resolve.with_task(asked, task, inputs))
    preprocess = create_preprocess(asked, dataset, task)
    sizes = {
        dataset.image_shape,
        augment.output_shape(preprocess.augmentations, dataset.image_shape),
    }
    facts = check_model(asked, dataset, task, sizes, inputs)
    devices = _devices(asked, target)
    parts = Parts(
        inputs=inputs,
        dataset=dataset,
        task=task,
        preprocess=preprocess,
        # No batch that is evaluated is larger than a split.
        examples=dataset.train_examples if training else max(map(len, dataset.splits().values())),
        devices=devices,
        dtype=jnp.dtype(dtype or asked.precision),
        advance=advance,
        wrap_optimizer=wrap_optimizer,
    )
    config = resolve.with_devices(
        asked,
        given,
        dataset,
        examples=parts.examples,
        num_devices=len(devices) * jax.process_count(),
        device_memory=(
            target.chip.memory_bytes if target else platform.device_memory_bytes(devices)
        ),
        grouped=(facts.normalizes and training) or not strategies.of(asked).divided_by_devices,
        largest_batch=functools.partial(_largest_batch, parts),
    )
    setup = build(resolve.with_lengths(config, dataset, parts.examples, inputs), parts)
    if training:
        _check_training(setup, asked)
        if inputs.has_own_task and not task.over_batch:
            evaluated = dataclasses.replace(preprocess, augmentations=())
            check_losses(task, setup.examples.source("train"), evaluated, facts.outputs)
    return setup


def build(config: TrainConfig, parts: Parts) -> Setup:
    """Makes the optimizer, the strategy and the batches of a run, in this order.

    Args:
        config: without a None that stands for a default.
    """
    dataset, inputs = parts.dataset, parts.inputs
    intervals = Intervals.of(config, parts.examples)
    schedule = create_schedule(config, intervals, inputs)
    step_config = create_step_config(
        config,
        dataset,
        inputs,
        schedule,
        parts.wrap_optimizer,
        task=parts.task,
        preprocess=parts.preprocess,
        scan=parts.devices[0].platform != "cpu",
    )
    strategy_class = strategies.of(config)
    strategy = strategy_class(step_config, parts.devices, shard_params=config.shard_params)
    examples = Examples.of(config, dataset, strategy, parts.advance)
    size = int(config.global_batch_size or 1)
    batches = Batches(
        examples=examples,
        intervals=intervals,
        global_batch_size=size,
        seed=config.seed,
        paired=bool(parts.preprocess.mixings),
    )
    initial = InitialState(
        config=config,
        inputs=inputs,
        dataset=dataset,
        step_config=step_config,
        strategy=strategy,
        schedule=schedule,
        dtype=parts.dtype,
        factory=models.factory(config.model) if inputs.model is None else None,
    )
    strategy.prepare(lambda: initial.shapes, config)
    return Setup(
        config=config,
        step_config=step_config,
        strategy=strategy,
        batches=batches,
        evaluator=Evaluator(examples=examples, preprocess=parts.preprocess, most=size),
        initial=initial,
        schedule=schedule,
        inputs=inputs,
    )


def _largest_batch(parts: Parts, config: TrainConfig) -> int:
    """Returns the largest batch that fits in memory, found by compiling steps."""
    config = resolve.with_lengths(config, parts.dataset, parts.examples, parts.inputs)
    probe = build(config, parts)
    return memory.automatic_batch(probe.strategy, probe.abstract_step, parts.examples)


def _create_task(
    config: TrainConfig, dataset: Dataset, inputs: Inputs, *, training: bool
) -> tasks.Task:
    """Returns the task, once the dataset can be read and, for training, learned from."""
    if dataset.instances:
        instances.require()
    if not training:
        return create_task(config, dataset, inputs)
    _check_learning(config, dataset)
    if has_own_code(config, inputs) and (defect := platform.cpu_defect()) is not None:
        warn(defect)
    if (settings := platform.unusual_settings()) is not None:
        warn(settings)
    weights = class_weights.of_classes(config, dataset)
    return create_task(config, dataset, inputs, class_weights=weights)


def _devices(config: TrainConfig, target: Target | None) -> list[Any]:
    kind, count = strategies.of(config), config.devices
    if target is None:
        return platform.select_devices(1 if kind.one_device and count is None else count)
    if not kind.takes_batches:
        remedy = f"computes on CPUs, which {target} is not; use another strategy"
        raise ConfigError("strategy", kind.name, remedy)
    return target.devices()


def _check_learning(config: TrainConfig, dataset: Dataset) -> None:
    """Raises ConfigError for stopping early without validation data."""
    if config.early_stop is not None and dataset.validation is None:
        remedy = (
            "stops by validation data, and this dataset has none; set some apart, e.g. with"
            f" {flag('validation', 0.1)}"
        )
        raise ConfigError("early_stop", config.early_stop, remedy)


def _check_training(setup: Setup, asked: TrainConfig) -> None:
    """Raises ConfigError for settings that training needs, and evaluation does not."""
    if setup.evaluator.split is None:
        warn(f"{setup.config.dataset} has no validation or test data: only training is measured")
    group = asked.batch_norm.group_size if asked.batch_norm is not None else None
    batch_size = setup.batches.global_batch_size
    setup.strategy.check_batch(batch_size, setup.dataset.train_examples, group)
    setup.strategy.check(setup.config, lambda: setup.shapes)
    for split in setup.dataset.splits():
        setup.evaluator.batch_size(split)
    if setup.config.resume != "must" and not will_resume(setup.config):
        _ = setup.initial.weights  # finds what does not fit
