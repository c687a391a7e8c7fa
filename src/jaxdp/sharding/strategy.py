"""Defines the interface of strategies, which share a training step among devices."""

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Sharding

from jaxdp.config import TrainConfig, deprecation
from jaxdp.data.pipeline import HostBatch
from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.registry import Registry
from jaxdp.runtime import compilation_cache
from jaxdp.sharding import mesh
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.mesh import Device
from jaxdp.sharding.tracing import own_trace, scan_steps
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState
from jaxdp.step.step import StepConfig, TrainStep

EvalStep = Callable[[TrainState, Any, Constants], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program of a training step.

    Attributes:
        state: shapes of the part of the state that it takes.
        reads_examples: whether it takes the batch, and the dataset if that is on the devices.
        calls: how often a device runs it in a step.
        held_bytes: of further arrays that a device holds meanwhile.
    """

    compiled: Any
    state: Any
    reads_examples: bool = True
    calls: int = 1
    held_bytes: int = 0


class Strategy(abc.ABC):
    """Base class of strategies: places the state, shards batches, wraps the step in a transform,
    and gathers the state to the host.

    A subclass is registered under its `name`. Its `_build` sets `train_step` and `eval_step`, or
    its `prepare` if they depend on the shapes of the state. Most subclasses wrap what
    `_steps(Communication(...))` returns in their transform.

    Args:
        step_config: the settings of a step.
        devices: this process's devices.
        shard_params: whether parameters, optimizer state and EMA are sharded over devices.

    Attributes:
        train_step: (state, placed batch, placed constants) -> (state, metric sums). It reuses the
            memory of the old state, which cannot be used afterwards. Most strategies also take
            several batches at once: `tracing.scan_steps`. Without `takes_batches`, it takes the
            number of the step instead of a batch.
        eval_step: (state, placed batch, placed constants) -> metric sums; of the constants it needs
            examples and moments.

    Raises:
        ConfigError: for devices, `shard_params` or a setting of the step that the strategy does not
            accept.
    """

    name: ClassVar[str]
    shards_params: ClassVar[bool] = False  # whether it takes `shard_params`
    one_device: ClassVar[bool] = False  # whether it uses one device only
    one_process: ClassVar[str] = ""  # what to do with several processes, if it takes only one
    runs_ahead: ClassVar[bool] = True  # whether `train_step` returns before the devices are done
    # Whether `train_step` takes placed batches; if not, it takes the number of a step, from 0 on.
    takes_batches: ClassVar[bool] = True
    # Whether the devices must divide a global batch.
    divided_by_devices: ClassVar[bool] = True
    # Whether a loss may compare the examples of a global batch that several devices compute.
    joins_batches: ClassVar[bool] = True
    # Settings that only some strategies have, and this one does, each with its default.
    settings: ClassVar[Mapping[str, Any]] = {}
    # Settings that must stay at their defaults, each with the rest of a sentence that begins with
    # the strategy, such as "computes no microbatches; use 1".
    refuses: ClassVar[Mapping[str, str]] = {}
    train_step: TrainStep
    eval_step: EvalStep

    def __init__(
        self,
        step_config: StepConfig,
        devices: Sequence[Device],
        *,
        shard_params: bool = False,
    ) -> None:
        if shard_params and not self.shards_params:
            problem = f"{flag('strategy', self.name)} takes none"
            others = " or ".join(
                flag("strategy", name) for name, kind in names().items() if kind.shards_params
            )
            remedy = f"use {others}, or leave {flag('shard_params')} out"
            raise ConfigError("shard_params", shard_params, f"{problem}; {remedy}")
        if self.one_process and jax.process_count() > 1:
            raise ConfigError("strategy", self.name, self.one_process)
        self.step_config = step_config
        self.devices = list(devices)
        self.shard_params = shard_params
        self.mesh = mesh.data_mesh(mesh.all_devices(self.devices))
        self.num_devices = self.mesh.size
        compilation_cache.release_programs()
        self._build()

    @abc.abstractmethod
    def _build(self) -> None:
        """Sets `train_step` and `eval_step`, unless they depend on the shapes of the state."""

    def prepare(  # noqa: B027
        self, shapes: Callable[[], TrainState], config: TrainConfig
    ) -> None:
        """Sets what of the steps depends on the shapes of the state, or on other settings.

        Args:
            shapes: returns them.
            config: with what model, dataset and devices decide filled in.
        """

    @property
    def shards(self) -> int:
        """Into how many equal parts an evaluated batch is divided."""
        return self.num_devices

    def _steps(self, replicas: Communication) -> tuple[TrainStep, EvalStep]:
        """Returns the steps with traces of their own, to be wrapped in a transform."""
        kwargs: Any = {"step_config": self.step_config, "replicas": replicas}
        return (
            scan_steps(functools.partial(step.train_step, **kwargs), step_config=self.step_config),
            own_trace(functools.partial(step.eval_step, **kwargs)),
        )

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are (simulated) CPU devices."""
        return self.devices[0].platform == "cpu"

    @property
    def _state_sharding(self) -> Sharding:
        return mesh.replicated(self.mesh)

    def check(self, config: TrainConfig, shapes: Callable[[], TrainState]) -> None:
        """Raises ConfigError for settings of training that do not go together with the strategy.

        Args:
            config: with what model, dataset and devices decide filled in.
            shapes: returns the shapes of the state.
        """
        values, defaults = config.flat(), TrainConfig().flat()
        owners: dict[str, list[str]] = {}
        for strategy, kind in sorted(names().items()):
            for name in kind.settings:
                owners.setdefault(name, []).append(strategy)
        for name in sorted(owners.keys() - self.settings):
            if values[name] is not None:
                theirs = flag("strategy", " and ".join(owners[name]), quote="")
                raise ConfigError(name, values[name], f"is for {theirs}, and this is {self.name}")
        if self.step_config.task.over_batch:
            self._check_joined(config)
        for name, reason in self.refuses.items():
            if values[name] != defaults[name]:
                raise ConfigError(name, values[name], f"{flag('strategy', self.name)} {reason}")

    def _check_joined(self, config: TrainConfig) -> None:
        """Raises ConfigError for settings with which no device knows all examples of a batch."""
        compared = "the loss compares the examples of a batch"
        if not self.joins_batches:
            joining = (name for name, kind in names().items() if kind.joins_batches)
            others = " or ".join(sorted(joining))  # whichever was imported first
            remedy = f"{compared}, which are apart here; use {flag('strategy', others, quote='')}"
            raise ConfigError("strategy", self.name, remedy)
        if config.accumulate_steps > 1:
            raise ConfigError("accumulate_steps", config.accumulate_steps, f"{compared}; use 1")
        if config.on_bad_example == "skip":
            remedy = f"{compared}, and zeros would take the place of a bad one; use error"
            raise ConfigError("on_bad_example", "skip", remedy)

    def resources(self, setup: Any) -> contextlib.AbstractContextManager[Sequence[Any]]:
        """Returns a context with what train steps need apart from devices, such as other processes.

        The context provides callbacks of the run, which are called first.

        Args:
            setup: the `build.setup.Setup` of the run.
        """
        return contextlib.nullcontext(())

    def check_resources(self) -> None:  # noqa: B027
        """Raises ConfigError if train steps need what `resources` provides, and it is not there."""

    def check_batch(
        self, global_batch_size: int, most: int | None = None, group: int | None = None
    ) -> None:
        """Raises ConfigError for a global batch that devices, microbatches or batch-norm groups do
        not divide.

        Args:
            most: examples that there are.
            group: examples that share batch-norm statistics, where a number was asked for; by
                default it follows the batch.
        """
        parts, shards = self.step_config.accumulate_steps, self.num_devices
        if not self.divided_by_devices:
            shards = 1
        mode = self.step_config.batch_norm
        share, rest = divmod(global_batch_size, shards)
        if rest:
            unit = parts * math.lcm(shards, group or 1)
            sizes = [global_batch_size // unit * unit + more for more in (0, unit)]
            possible = [str(size) for size in sizes if 0 < size <= (most or math.inf)]
            few = "use fewer devices" + " or smaller groups" * bool(group and group > 1)
            remedy = f"there are {most} examples to train on: {few}"
            if possible:
                remedy = f"use {' or '.join(possible)}"
            remedy = f"{shards} devices do not divide it; {remedy}"
            raise ConfigError("global_batch_size", global_batch_size, remedy)
        if share % parts:
            near = min(divisors(share), key=lambda count: abs(count - parts))
            remedy = f"does not divide the {share} examples of each device; use e.g. {near}"
            raise ConfigError("accumulate_steps", parts, remedy)
        together = global_batch_size // parts
        if mode.group_size is not None and together % mode.group_size:
            what = "a microbatch" if parts > 1 else "the batch"
            near = nearest_divisor(together, mode.group_size)
            remedy = f"does not divide the {together} examples of {what}; use e.g. group:{near}"
            raise ConfigError("batch_norm", mode, remedy)

    def batch_permutation(
        self, global_batch_size: int, *, training: bool = True
    ) -> np.ndarray | None:
        """Returns the order in which the examples of a global batch are placed; None for their own.

        With microbatches, batch-norm statistics over several devices cover consecutive examples
        only if each microbatch is a consecutive part of the global batch.

        Args:
            training: whether the batch is for a train step.
        """
        parts, shards = self.step_config.accumulate_steps, self.num_devices
        mode = self.step_config.batch_norm
        share = global_batch_size // (parts * shards)
        spans = mode.kind == "global" or share % (mode.group_size or 1) != 0
        if parts == 1 or shards == 1 or not spans or not training:
            return None
        return np.arange(global_batch_size).reshape(parts, shards, share).swapaxes(0, 1).ravel()

    def state_bytes(self, state: TrainState) -> dict[str, int] | None:
        """Returns the bytes of a state, `replicated` and `per_device`, if they may differ."""
        return None

    def creation_device(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which a state is created, to be placed later."""
        return contextlib.nullcontext()

    def init(self, create_state: Callable[[], TrainState]) -> TrainState:
        """Creates a state and places it."""
        return self.restore(create_state())

    def restore(self, state: TrainState) -> TrainState:
        """Places a state on the devices, as a copy, since a train step consumes its state.

        Arrays of a sharded state that were read into its shapes, `abstract`, stay in place.
        """
        sharding = self._state_sharding
        # On a CPU, JAX shares the memory of an aligned NumPy array whatever `may_alias` says.
        return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf), sharding), state)

    def replicate(self, tree: Any) -> Any:
        """Places whole arrays on every device, such as a dataset that the step reads."""
        return jax.tree.map(lambda array: jax.device_put(array, self._state_sharding), tree)

    def gather(self, tree: Any) -> Any:
        """Returns NumPy copies of a replicated tree, once the devices have computed it."""
        return jax.tree.map(lambda leaf: np.array(leaf.addressable_shards[0].data), tree)

    def host_copy(self, state: TrainState) -> TrainState:
        """Returns a copy of a state, which a checkpoint writes in the background."""
        return self.gather(state)

    def all_finite(self, state: TrainState, saved: TrainState) -> bool:
        """Returns whether parameters, batch statistics and moving averages are finite numbers.

        Args:
            state: on the devices.
            saved: the same state, as `host_copy` returned it.
        """
        return all(
            np.isfinite(leaf).all()
            for leaf in jax.tree.leaves((saved.params, saved.batch_stats, saved.ema))
        )

    def abstract_batch(
        self, batch: Mapping[str, jax.ShapeDtypeStruct]
    ) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a placed batch from the shapes of the global batch."""
        return batch

    def compile(
        self, state: TrainState, batch: Mapping[str, Any], constants: Constants
    ) -> Sequence[Program]:
        """Compiles the programs of a training step for the shapes of its arguments.

        Raises:
            ConfigError: for a strategy whose programs XLA does not plan.
        """
        step: Any = self.train_step
        if not hasattr(step, "lower"):
            remedy = "has a step of several programs; plan for another strategy"
            raise ConfigError("strategy", self.name, remedy)
        calls = self.step_config.accumulate_steps if self.step_config.scan else 1
        # XLA counts the operations in the body of a loop once.
        return [Program(step.lower(state, batch, constants).compile(), state, calls=calls)]

    def abstract(self, state: TrainState) -> TrainState:
        """Returns the shapes of a placed state, with shardings if it is sharded."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)

    def shard_batch(self, batch: HostBatch) -> Mapping[str, jax.Array]:
        """Places this process's share of a global batch on its devices, in order."""
        return {
            name: jax.make_array_from_process_local_data(mesh.split_over_data(self.mesh), array)
            for name, array in batch.items()
        }


def divisors(number: int) -> list[int]:
    """Returns the divisors of a number, the smallest first."""
    return [size for size in range(1, number + 1) if number % size == 0]


def nearest_divisor(number: int, wanted: int) -> int:
    """Returns the divisor of a number that is nearest to `wanted` by their ratio."""
    return min(divisors(number), key=lambda size: max(size, wanted) / min(size, wanted))


_strategies: Registry[type[Strategy]] = Registry("strategy", "jaxdp.sharding")
register = _strategies.register
"""Decorator that registers a subclass of `Strategy` under a name, e.g. `@register("pmap")`."""
names = _strategies.entries
_on_workers: Registry[type[Strategy]] = Registry("strategy", "jaxdp.workers")
register_on_workers = _on_workers.register
"""Decorator that registers a subclass that takes the place of the strategy of this name if
`workers` or `ray_address` is given.
"""


def by_name(name: str) -> type[Strategy]:
    """Returns the class of a strategy.

    Raises:
        ConfigError: for a name that no strategy has, or no longer has.
    """
    if name not in names() and (sentence := deprecation.removal(name, "strategy")):
        raise ConfigError("strategy", name, sentence)
    return _strategies[name]


def of(config: TrainConfig) -> type[Strategy]:
    """Returns the class of the strategy that the settings name."""
    if config.workers is None and config.ray_address is None:
        return by_name(config.strategy)
    return _on_workers.entries().get(config.strategy) or by_name(config.strategy)


def create_strategy(
    name: str,
    step_config: StepConfig,
    devices: Sequence[Device],
    *,
    shard_params: bool = False,
) -> Strategy:
    """Creates the strategy that is registered under a name, e.g. `pmap`.

    Arguments and errors are the same as for `Strategy`; an unknown name is also a ConfigError.
    """
    return _strategies[name](step_config, devices, shard_params=shard_params)
