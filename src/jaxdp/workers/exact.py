"""Defines the strategy `exact` on workers, which compute the slices of `sharding/slices.py`: checks
settings, and starts workers.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.build.setup import Setup
from jaxdp.config import TrainConfig, WorkersConfig, fields
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_cluster import Head
from jaxdp.sharding import strategy
from jaxdp.sharding.exact import Exact
from jaxdp.step.state import TrainState
from jaxdp.text.messages import one_line
from jaxdp.workers.log import WorkersLog
from jaxdp.workers.pool import Pool
from jaxdp.workers.scheduler import Work
from jaxdp.workers.session import WorkerSession
from jaxdp.workers.worker import WorkerSpec

DEFAULT_WORKERS = 4  # processes; each computes on one core


@strategy.register_on_workers("exact")
class ExactOnWorkers(Exact):
    """The strategy in which workers compute the train steps, and this process evaluates and saves.
    Those that computed a slice change no bit.

    Attributes:
        session: of the run that is under way; None outside of `resources`.
    """

    one_device = True
    one_process = "is started by one process, which starts its workers"
    runs_ahead = False
    takes_batches = False
    settings: ClassVar[Mapping[str, Any]] = {**Exact.settings, "workers": DEFAULT_WORKERS}
    session: WorkerSession | None = None

    def _build(self) -> None:
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

    @contextlib.contextmanager
    def resources(self, setup: Setup) -> Iterator[Sequence[Any]]:
        """Provides the workers of a run, and the callback that records them.

        Raises:
            ConfigError: if there is no cluster at the address, or for objects that cannot be sent.
        """
        config, workers = setup.config, setup.config.workers
        assert workers is not None
        with (
            ray_connection.connected(config.ray_address, cpus=workers, field="ray_address") as ray,
            contextlib.ExitStack() as cleanup,
        ):
            spec = WorkerSpec(_config_of_worker(config), setup.inputs, self.slices)
            try:
                ray.cloudpickle.dumps(spec.inputs)
            except Exception as error:  # whatever an object raises
                problem = f"one cannot be pickled: {one_line(error)[:200]}"
                remedy = f"sends objects to its workers, and {problem}"
                raise ConfigError("strategy", self.name, remedy) from error
            work, head = Work(), Head() if config.ray_address else None
            pool = Pool(ray, spec, workers, work, head)
            cleanup.callback(pool.close)
            self.session = WorkerSession(pool, work, self._update, self.slices)
            cleanup.callback(setattr, self, "session", None)
            yield [WorkersLog(self.session)]

    def check_resources(self) -> None:
        if self.session is None:
            remedy = "computes on workers, which only training starts; use another strategy"
            raise ConfigError("strategy", self.name, remedy)

    def _step(self, *arguments: Any) -> tuple[TrainState, dict[str, Any]]:
        assert self.session is not None
        return self.session.step(*arguments)

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)


def _config_of_worker(config: TrainConfig) -> TrainConfig:
    """Returns the settings with which a worker opens the data and builds the model: of one device,
    and without initial weights, since all weights come to it.
    """
    unset = dict.fromkeys(["init_from", *fields(WorkersConfig)])
    return config.replace(strategy="single", devices=1, **unset)
