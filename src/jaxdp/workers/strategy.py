"""What the strategies on workers have in common: what they check, how they begin and end, and what
they record of their workers.
"""

import abc
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.config import OBJECT, TrainConfig, WorkersConfig, fields
from jaxdp.events import Ended, Run, StepEnd
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_cluster import Head
from jaxdp.sharding.single import Single
from jaxdp.step.state import Constants, TrainState
from jaxdp.training.setup import Setup
from jaxdp.workers import shares
from jaxdp.workers.pool import Pool
from jaxdp.workers.scheduler import Work
from jaxdp.workers.servers import ServerGroup
from jaxdp.workers.worker import WorkerSpec


class OnWorkers(Single):
    """A strategy whose train steps are computed by workers, while this process evaluates and saves.

    It is a callback of its run, too, and records which workers joined and left, and what they did.

    Attributes:
        default_servers: number of servers by default; 0 where this process holds the state.
        batch_norms: modes of batch norm that do not depend on who computes.
        returns_deltas: as for `WorkerSpec`.
        work: what workers did since the last row.
    """

    runs_ahead = False
    takes_batches = False
    several_programs = True
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
            remedy = f"--strategy {self.name} takes --workers, each of which is one device"
            raise ConfigError("devices", self.num_devices, remedy)
        super()._build()
        self.train_step = self._train_step
        self._is_started = False

    def check(self, config: TrainConfig, shapes: Callable[[], TrainState]) -> None:
        super().check(config, shapes)
        ray_connection.require()
        if not self.on_cpu:
            remedy = "its workers compute on CPUs; set JAX_PLATFORMS=cpu, or use another strategy"
            raise ConfigError("strategy", self.name, remedy)
        accumulate_steps = config.accumulate_steps
        for name, value, is_set in (
            ("accumulate_steps", accumulate_steps, accumulate_steps > 1),
            ("profile", config.profile, config.profile is not None),
        ):
            if is_set:
                remedy = f"does not go together with --strategy {self.name}; leave one of them out"
                raise ConfigError(name, value, remedy)
        if servers := self._servers(config):
            self._check_servers(config, servers, len(jax.tree.leaves(shapes().params)))
        mode = config.batch_norm
        has_statistics = bool(jax.tree.leaves(shapes().batch_stats))
        if has_statistics and mode is not None and mode.kind not in self.batch_norms:
            group = math.gcd(int(config.global_batch_size or 1), 32)
            remedy = (
                f"depends on what one device computes; --strategy {self.name} takes group:N, e.g."
                f" group:{group}"
            )
            raise ConfigError("batch_norm", str(mode), remedy)
        self.number_of_slices(config, shapes())

    def _servers(self, config: TrainConfig) -> int:
        return config.servers or self.default_servers

    def _check_servers(self, config: TrainConfig, servers: int, arrays: int) -> None:
        if config.optimizer == OBJECT:
            remedy = "divides the optimizer among servers, which takes one by its name"
            raise ConfigError("strategy", self.name, remedy)
        if servers > arrays:
            remedy = f"the model has {arrays} arrays of parameters; use at most {arrays}"
            raise ConfigError("servers", servers, remedy)
        if config.precision == "float16":
            remedy = "its loss scale is one of the whole state, which servers divide; use bfloat16"
            raise ConfigError("precision", "float16", remedy)
        if config.on_divergence == "skip":
            remedy = f"--strategy {self.name} has no single update to skip here; use stop"
            raise ConfigError("on_divergence", "skip", remedy)

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
            count = self._servers(config)
            sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(setup.shapes.params)]
            spec = WorkerSpec(
                _config_of_worker(config),
                self._sendable(ray, setup.objects),
                self.number_of_slices(config, setup.shapes),
                shares.balance(sizes, max(count, 1)),
                self.returns_deltas,
            )
            self.work = Work()
            head = Head() if config.ray_address else None
            self.pool = Pool(
                ray, spec, config.worker_count, self.work, fetches=not count, head=head
            )
            cleanup.callback(self.pool.close)
            self.servers = ServerGroup(ray, setup, count, spec.owners)
            cleanup.callback(self.servers.close)
            # The state that the loop has, once servers have taken it over.
            self._state: TrainState | None = None
            self._version = 0  # of the parameters that workers get
            self._slices, self._total_steps = spec.slices, setup.intervals.total_steps
            self._open(config)
            self._is_started = True
            try:
                yield
            finally:
                self._is_started = False

    @abc.abstractmethod
    def _open(self, config: TrainConfig) -> None:
        """Prepares for the first step of a run."""

    def _train_step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        if not self._is_started:
            remedy = "computes on workers, which only training starts; use another strategy"
            raise ConfigError("strategy", self.name, remedy)
        return self._step(state, batch, constants)

    @abc.abstractmethod
    def _step(
        self, state: TrainState, step: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after a step, counted from 0, and its metric sums."""

    def _install(self, state: TrainState, constants: Constants) -> None:
        """Gives the servers a state."""
        self._state, self._rates = state, np.asarray(constants.learning_rates)
        self.pool.read_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(shares.needed(state)))
        self.servers.install(state, self._rates)

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Records which workers joined and left."""
        self._record(run, event.step)

    def on_end(self, run: Run, event: Ended) -> None:
        """Records which workers joined and left since the last step."""
        self._record(run, event.step)

    def _record(self, run: Run, step: int) -> None:
        changes, self.pool.changes = self.pool.changes, []
        if run.folder is not None:
            for event, facts in changes:
                RunDirectory(run.folder).record(
                    event, step, **{"seconds": self.pool.seconds} | facts
                )

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

    def _sendable(self, ray: Any, objects: Any) -> Any:
        try:
            ray.cloudpickle.dumps(objects)
        except Exception as error:  # whatever an object raises
            said = " ".join(str(error).split())[:200]
            remedy = (
                "sends model, data, task and optimizer to its workers, and one of the objects"
                f" cannot be pickled: {said}"
            )
            raise ConfigError("strategy", self.name, remedy) from error
        return objects


def _config_of_worker(config: TrainConfig) -> TrainConfig:
    """Returns the settings with which a worker opens the data and builds the model: of a run on one
    device without a folder.
    """
    return config.replace(
        strategy="single",
        devices=1,
        run_dir=None,
        resume="never",
        init_from=None,
        callbacks=(),
        early_stop=None,
        distributed="off",
        on_divergence="stop",
        **dict.fromkeys(fields(WorkersConfig)),
    )
