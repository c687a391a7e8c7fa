"""Begins and ends training with workers: checks the settings, starts Ray, and gives a run another
strategy.
"""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from typing import Any

import jax

from jaxdp.components import Objects
from jaxdp.config import ExchangeConfig, TrainConfig, fields
from jaxdp.exchange import leaves
from jaxdp.exchange.asynchronous import Asynchronous
from jaxdp.exchange.monitor import Monitor
from jaxdp.exchange.pool import Pool
from jaxdp.exchange.rounds import Exact, ExactOnServers, Local
from jaxdp.exchange.servers import AverageHere, Averages, Servers, owners_of
from jaxdp.exchange.worker import Task
from jaxdp.registry import ConfigError
from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_cluster import Head
from jaxdp.step import optim
from jaxdp.step.step import Recipe
from jaxdp.training.setup import Setup

_NEVER = 1e30  # a norm that nothing is clipped to
# By default: enough for workers of different speed, and few enough that each is worth sending.
_MOST_SLICES = 16


class WorkersSetup(Setup):
    """A setup whose batches are read by workers: here they are only the numbers of steps."""

    @functools.cached_property
    def train_data(self) -> dict[str, Any]:
        return {}

    def train_batches(self, start: int) -> Iterator[range]:
        return iter(self.intervals.calls(start))


def check(setup: Setup) -> None:
    """Checks what the settings of a run have to do with its exchange.

    Raises:
        ConfigError: for the first one that does not work with it, and where Ray is not installed.
    """
    config, exchange = setup.config, setup.config.exchange
    if exchange == "allreduce":
        return
    ray_connection.require()
    if config.strategy not in ("pmap", "single"):
        raise ConfigError(
            "strategy",
            config.strategy,
            f"--exchange {exchange} computes on its workers; leave --strategy out",
        )
    if config.devices not in (None, 1):
        raise ConfigError(
            "devices",
            config.devices,
            f"--exchange {exchange} takes --workers, each of which is one device",
        )
    if jax.process_count() > 1:
        raise ConfigError(
            "exchange", exchange, "is started by one process, which starts its workers"
        )
    if not setup.strategy.on_cpu:
        raise ConfigError(
            "exchange",
            exchange,
            "its workers compute on CPUs; set JAX_PLATFORMS=cpu, or use allreduce",
        )
    for name, value in (
        (
            "accumulate_steps",
            config.accumulate_steps if config.accumulate_steps > 1 else None,
        ),
        (
            "steps_per_execution",
            config.steps_per_execution if config.steps_per_execution > 1 else None,
        ),
        ("profile", config.profile),
    ):
        if value is not None:
            raise ConfigError(
                name,
                value,
                f"does not go together with --exchange {exchange}; leave one of them out",
            )
    if exchange != "exact" or config.servers:
        _check_update(setup)
    _check_batch_norm(setup)
    number_of_slices(setup)


def _check_update(setup: Setup) -> None:
    config = setup.config
    if servers := _servers(config):
        if setup.objects.optimizer is not None and config.exchange != "local":
            raise ConfigError(
                "exchange",
                config.exchange,
                "divides the optimizer among servers, which takes one by its name",
            )
        if servers > (most := len(jax.tree.leaves(setup.shapes.params))):
            raise ConfigError(
                "servers",
                config.servers,
                f"the model has {most} arrays of parameters; use at most {most}",
            )
    if config.precision == "float16":
        remedy = (
            f"its loss scale is one of the whole state, which --exchange {config.exchange}"
            " divides; use bfloat16"
        )
        raise ConfigError("precision", "float16", remedy)
    if config.on_divergence == "skip":
        remedy = (
            f"--exchange {config.exchange} has no single update to skip here; use stop or rollback"
        )
        raise ConfigError("on_divergence", "skip", remedy)


def _check_batch_norm(setup: Setup) -> None:
    mode, exchange = setup.recipe.batch_norm, setup.config.exchange
    if not jax.tree.leaves(setup.shapes.batch_stats) or mode.kind == "group":
        return
    if mode.kind == "replica" or exchange != "async":
        size = setup.global_batch_size
        remedy = (
            f"depends on what one device computes; --exchange {exchange} takes group:N, e.g."
            f" group:{math.gcd(size, 32)}"
        )
        raise ConfigError("batch_norm", str(mode), remedy)


def number_of_slices(setup: Setup) -> int:
    """Returns into how many slices a batch is divided.

    Raises:
        ConfigError: for a number of slices that are not whole groups of batch norm.
    """
    exchange, size = setup.config, setup.global_batch_size
    if exchange.exchange == "async":
        return 1
    has_groups = (
        bool(jax.tree.leaves(setup.shapes.batch_stats)) and setup.recipe.batch_norm.group_size
    )
    unit = setup.recipe.batch_norm.group_size or 1 if has_groups else 1
    possible = [count for count in range(1, size // unit + 1) if size % (count * unit) == 0]
    given = (
        exchange.slices
        if exchange.slices is not None
        else exchange.worker_count
        if exchange.exchange == "local"
        else None
    )
    if given is None:
        return max(count for count in possible if count <= _MOST_SLICES)
    if given in possible:
        return given
    field = "slices" if exchange.slices is not None else "workers"
    what = (
        f"whole groups of {unit} of the {size} examples"
        if unit > 1
        else f"equal parts of the {size} examples"
    )
    near = min(possible, key=lambda count: abs(count - given))
    raise ConfigError(
        field,
        given,
        f"slices must be {what} of a batch; use {'--slices ' if field == 'workers' else ''}{near}",
    )


@contextlib.contextmanager
def started(setup: Setup) -> Iterator[tuple[Setup, Monitor]]:
    """Provides a setup whose steps workers compute, and the callback that tells about them.

    The workers end with the block.

    Raises:
        ConfigError: if there is no cluster at the address, or for objects that cannot be sent.
    """
    config = setup.config
    exchange = config
    with (
        ray_connection.connected(
            exchange.ray_address, cpus=exchange.worker_count, field="ray_address"
        ) as ray,
        contextlib.ExitStack() as cleanup,
    ):
        slices, owners = number_of_slices(setup), _owners(setup)
        task = Task(
            _of_worker(config),
            _sendable(ray, setup.objects),
            os.getcwd(),
            exchange.exchange == "local",
            slices,
            owners,
            alone=exchange.exchange == "async",
        )
        pool = Pool(ray, task, exchange.worker_count, Head() if exchange.ray_address else None)
        cleanup.callback(pool.close)
        intervals, devices = setup.intervals, setup.strategy.devices[:1]
        servers: Any = owners and _started_servers(ray, setup, owners)
        if servers:
            cleanup.callback(servers.close)
        if exchange.exchange == "exact" and not servers:
            strategy: Any = Exact(setup.recipe, devices, pool, slices)
        elif exchange.exchange == "exact":
            strategy = ExactOnServers(setup.recipe, devices, pool, slices, servers)
        elif exchange.exchange == "local":
            average = servers or AverageHere(pool, *_outer(exchange))
            strategy = Local(
                setup.recipe, devices, pool, slices, average, stacks=exchange.steps_alone > 1
            )
            intervals = dataclasses.replace(intervals, steps_per_execution=exchange.steps_alone)
        else:
            strategy = Asynchronous(
                setup.recipe, devices, pool, servers, exchange.staleness, intervals.total_steps
            )
        fields = {field.name: getattr(setup, field.name) for field in dataclasses.fields(setup)}
        yield (
            WorkersSetup(**fields | {"strategy": strategy, "intervals": intervals}),
            Monitor(pool, strategy),
        )


def _started_servers(ray: Any, setup: Setup, owners: tuple[int, ...]) -> Any:
    if setup.config.exchange == "local":
        return Averages(ray, owners, *_outer(setup.config))
    return Servers(
        ray, _of_servers(setup), setup.recipe.optimizer(setup.schedule), owners, _clipped(setup)
    )


def _outer(exchange: TrainConfig) -> tuple[float, float]:
    """Returns the learning rate and the momentum of the changes of an average."""
    return exchange.outer_learning_rate or 1.0, exchange.outer_momentum or 0.0


def _owners(setup: Setup) -> tuple[int, ...]:
    """Returns which server takes which of the arrays that workers compute."""
    count = _servers(setup.config)
    if not count:
        return ()
    computed = (setup.shapes, None) if setup.config.exchange == "local" else setup.shapes.params
    return owners_of(
        [0 if leaf is None else math.prod(leaf.shape) for leaf in leaves.places(computed)], count
    )


def _servers(config: TrainConfig) -> int:
    """Returns the number of parameter servers, 0 where this process holds the state."""
    return config.servers or (1 if config.exchange == "async" else 0)


def _clipped(setup: Setup) -> float | None:
    """Returns the norm to which gradients are clipped before they get to several servers, none of
    which sees all of them.
    """
    return setup.config.clip_norm if _servers(setup.config) > 1 else None


def _of_servers(setup: Setup) -> Recipe:
    """Returns the settings of a step for servers."""
    if _clipped(setup) is None:
        return setup.recipe
    # Not None: the optimizer's state is to have the same form.
    never = setup.config.replace(clip_norm=_NEVER)
    return dataclasses.replace(
        setup.recipe, optimizer=functools.partial(optim.create_optimizer, never)
    )


def _of_worker(config: TrainConfig) -> TrainConfig:
    """Returns the settings with which a worker opens the data and builds the model: of a run on one
    device without a folder.
    """
    defaults = {name: getattr(ExchangeConfig(), name) for name in fields(ExchangeConfig)}
    return config.replace(
        **defaults,
        strategy="single",
        devices=1,
        run_dir=None,
        resume="never",
        init_from=None,
        callbacks=(),
        early_stop=None,
        distributed="off",
        on_divergence="stop" if config.on_divergence == "rollback" else config.on_divergence,
    )


def _sendable(ray: Any, objects: Objects) -> Objects:
    try:
        ray.cloudpickle.dumps(objects)
    except Exception as error:  # whatever an object raises
        said = " ".join(str(error).split())[:200]
        remedy = (
            "sends model, data, task and optimizer to its workers, and one of the objects cannot"
            f" be pickled: {said}"
        )
        raise ConfigError("exchange", "", remedy) from error
    return objects
