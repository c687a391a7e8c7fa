"""The base of strategies on workers: checks settings, starts processes, records what they do."""

import abc
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.build.setup import Setup
from jaxdp.callbacks.events import Ended, Run, StepEnd
from jaxdp.config import OBJECT, TrainConfig, WorkersConfig, fields
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_cluster import Head
from jaxdp.sharding.single import Single
from jaxdp.step.state import Constants, TrainState
from jaxdp.text.messages import one_line
from jaxdp.workers import shares
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import Work
from jaxdp.workers.servers import ServerGroup
from jaxdp.workers.worker import WorkerSpec

# Values of settings that do not work with servers, which each have a part of the state; and why.
_NOT_WITH_SERVERS = (
    ("optimizer", OBJECT, "is divided among servers, which create one by its name"),
    (
        "precision",
        "float16",
        "its loss scale is of the whole state, which servers divide; use bfloat16",
    ),
    ("on_divergence", "skip", "no server knows whether to skip an update; use stop"),
)
_CLIPPED = "takes the norm of the whole gradient, which servers divide; use one server"


class OnWorkers(Single):
    """A strategy in which workers compute the train steps, and this process evaluates and saves.

    As a callback of its run it also records which workers joined and left, and what they did.

    Attributes:
        default_servers: number of servers by default; 0 where this process holds the state.
        batch_norms: modes of batch norm that do not depend on the number of workers.
        returns_deltas: as for `WorkerSpec`.
        work: counts what workers did since the last row.
    """

    runs_ahead = False
    takes_batches = False
    refuses: ClassVar[Mapping[str, str]] = {
        "accumulate_steps": "computes no microbatches; use 1",
        "steps_per_execution": "has a step of several programs; use 1",
    }
    default_servers: ClassVar[int] = 0
    batch_norms: ClassVar[tuple[str, ...]] = ("group",)
    returns_deltas: ClassVar[bool] = False
    pool: Pool
    servers: ServerGroup

    def _build(self) -> None:
        if jax.process_count() > 1:
            raise ConfigError(
                "strategy", self.name, "is started by one process, which starts its workers"
            )
        if self.num_devices > 1:
            remedy = f"takes {flag('workers')}; each is one device"
            problem = f"{flag('strategy', self.name)} {remedy}"
            raise ConfigError("devices", self.num_devices, problem)
        super()._build()
        self.train_step = self._step

    def check(self, config: TrainConfig, shapes: Callable[[], TrainState]) -> None:
        super().check(config, shapes)
        ray_connection.require()
        if not self.on_cpu:
            remedy = "its workers compute on CPUs; set JAX_PLATFORMS=cpu, or use another strategy"
            raise ConfigError("strategy", self.name, remedy)
        if servers := self._number_of_servers(config):
            values, arrays = config.flat(), len(jax.tree.leaves(shapes().params))
            if servers > arrays:
                remedy = f"the model has {arrays} arrays of parameters; use at most {arrays}"
                raise ConfigError("servers", servers, remedy)
            for name, value, remedy in _NOT_WITH_SERVERS:
                if values[name] == value:
                    raise ConfigError(name, value, remedy)
            if servers > 1 and config.clip_norm is not None:
                raise ConfigError("clip_norm", config.clip_norm, _CLIPPED)
        mode = config.batch_norm
        has_statistics = bool(jax.tree.leaves(shapes().batch_stats))
        if has_statistics and mode is not None and mode.kind not in self.batch_norms:
            remedy = (
                f"depends on what one device computes; {flag('strategy', self.name)} takes group:N,"
                f" e.g. group:{math.gcd(int(config.global_batch_size or 1), 32)}"
            )
            raise ConfigError("batch_norm", str(mode), remedy)
        self.number_of_slices(config, shapes())

    def _number_of_servers(self, config: TrainConfig) -> int:
        return config.servers or self.default_servers

    def number_of_slices(self, config: TrainConfig, shapes: TrainState) -> int:
        """Returns into how many slices a batch is divided.

        Raises:
            ConfigError: for slices that are not whole groups of batch norm.
        """
        return 1

    @contextlib.contextmanager
    def started(self, setup: Setup) -> Iterator[None]:
        """Provides the workers and servers of a run.

        Raises:
            ConfigError: if there is no cluster at the address, or for objects that cannot be sent.
        """
        config = setup.config
        with (
            ray_connection.connected(
                config.ray_address, cpus=config.worker_count, field="ray_address"
            ) as ray,
            contextlib.ExitStack() as cleanup,
        ):
            count = self._number_of_servers(config)
            sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(setup.shapes.params)]
            spec = WorkerSpec(
                _config_of_worker(config),
                setup.inputs,
                self.number_of_slices(config, setup.shapes),
                shares.balance(sizes, max(count, 1)),
                self.returns_deltas,
            )
            try:
                ray.cloudpickle.dumps(spec.inputs)
            except Exception as error:  # whatever an object raises
                problem = f"one cannot be pickled: {one_line(error)[:200]}"
                remedy = f"sends objects to its workers, and {problem}"
                raise ConfigError("strategy", self.name, remedy) from error
            self.work = Work()
            head = Head() if config.ray_address else None
            self.pool = Pool(
                ray, spec, config.worker_count, self.work, fetches=not count, head=head
            )
            cleanup.callback(self.pool.close)
            self.servers = ServerGroup(ray, setup, count, spec)
            cleanup.callback(self.servers.close)
            self._slices, self._total_steps = spec.slices, setup.intervals.total_steps
            self._limit = config.staleness
            self._reset()
            try:
                yield
            finally:
                self._reset()
                del self.pool, self.servers

    def _reset(self) -> None:
        """Forgets the run before."""
        # The state that the loop has, once servers have taken it over.
        self._state: TrainState | None = None
        self._version = 0  # of the parameters that workers get

    def check_started(self) -> None:
        if not hasattr(self, "pool"):
            remedy = "computes on workers, which only training starts; use another strategy"
            raise ConfigError("strategy", self.name, remedy)

    @abc.abstractmethod
    def _step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the step with a batch, counted from 0, and its metric sums."""

    def _install(self, state: TrainState, constants: Constants) -> None:
        """Gives the servers a state."""
        self._state = state
        self.pool.read_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(shares.needed(state)))
        self.servers.install(state, np.asarray(constants.learning_rates))

    def fetch_state(self, state: TrainState) -> TrainState:
        if state is self._state and not self.servers.here:
            self._state = state = self.restore(self.servers.collect(state))
        return state

    def _listen(self) -> None:
        """Waits a moment for news of the workers, and notes them."""
        for news in self.pool.poll():
            self._note(news)

    @abc.abstractmethod
    def _note(self, news: Joined | Lost | Finished) -> None:
        """Notes that a worker joined, was lost, or finished a slice."""

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)

    def on_step_end(self, run: Run, event: StepEnd | Ended) -> None:
        """Records which workers joined and left."""
        changes, self.pool.changes = self.pool.changes, []
        if run.folder is not None:
            for name, facts in changes:
                RunDirectory(run.folder).record(name, event.step, **facts)

    on_end = on_step_end

    def on_row(self, run: Run, row: Row) -> None:
        """Adds to a training row what the workers did since the last one."""
        if row["split"] != "train":
            return
        work = self.work.take()
        row |= {
            "elapsed_seconds": self.pool.seconds,
            "workers": self.pool.ready,
            "worker_slices": [work.slices[place] for place in range(self.pool.count)],
            "recomputed_slices": work.recomputed,
            "dropped_slices": work.dropped,
            "worker_bytes": work.moved_bytes,
            "worker_idle_seconds": round(work.waiting_seconds, 6),
        }
        if work.staleness:
            row |= {
                "staleness_mean": sum(work.staleness) / len(work.staleness),
                "staleness_max": max(work.staleness),
            }


def _config_of_worker(config: TrainConfig) -> TrainConfig:
    """Returns the settings with which a worker opens the data and builds the model: of one device,
    and without initial weights, since all weights come to it.
    """
    unset = dict.fromkeys(["init_from", *fields(WorkersConfig)])
    return config.replace(strategy="single", devices=1, **unset)
