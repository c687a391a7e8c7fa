"""Chooses by measurement how many devices to simulate: several may use the cores of a CPU better than one does, or worse."""

import pathlib
from collections.abc import Callable

from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.run_directory import RunDirectory
from jaxdp.runtime import clusters, platform, trial

_REPEATS = 3
# Of numbers of devices whose rates differ by less, which is noise, the smallest is chosen.
_NOISE = 0.03


def choose(config: TrainConfig, *, by_name: bool = True, say: Callable[[str], object] = lambda line: None) -> TrainConfig:
    """Returns the settings with the number of simulated devices that trains fastest here, where they ask for it.

    1, 2, 4, ... devices, at most one for each core, train for some seconds, each number in a process of its own, whose compiled
    programs stay for the run. A run in a folder that is given keeps its number. Without a CPU as backend nothing is simulated,
    and all devices are used.

    Args:
        by_name: whether the settings alone say what is trained.
        say: is told each rate, and what is chosen.

    Raises:
        ConfigError: where there is nothing to choose, the result would depend on the choice, or no number can train.
    """
    if not config.run.measure_devices:
        return config
    if config.sharding.devices is not None:
        say(f"--devices {config.sharding.devices} is given: nothing is measured")
        return config
    if not by_name:
        remedy = "trains each number in a process of its own, which takes model, data and optimizer by name; give devices instead"
        raise ConfigError("measure_devices", "", remedy)
    _check(config)
    folder = pathlib.Path(config.run.run_dir) if config.run.run_dir and config.run.resume != "never" else None
    if folder is not None and RunDirectory(folder).config_file.is_file():
        return config.replace(devices=RunDirectory(folder).load_config().sharding.devices)
    rates: dict[int, float] = {}
    count, refused = 1, ""
    while count <= platform.cores():
        settings = config.replace(devices=count).plain()
        found = trial.run({"config": settings, "steps": None, "repeats": _REPEATS, "rate_only": True}, cache=None)
        if found.get("platform", "cpu") != "cpu":
            return config
        if found["status"] == "ok":
            rates[count] = found["images_per_second"]["median"]
            say(f"measured: {rates[count]:,.0f} images/s on {_devices(count)}")
        elif count == 1:
            refused = found["reason"]
        count *= 2
    if not rates:
        raise ConfigError("", "", refused)
    chosen = min(count for count, rate in rates.items() if rate >= (1 - _NOISE) * max(rates.values()))
    say(f"trains on {_devices(chosen)}, as with --devices {chosen}")
    return config.replace(devices=chosen)


def _check(config: TrainConfig) -> None:
    sharding, processes = config.sharding, config.processes
    if sharding.strategy == "single" or config.exchange.name != "allreduce":
        raise ConfigError("measure_devices", "", "is for one process that shares a batch among its devices; leave it out")
    several = processes.distributed == "on" or processes.num_processes is not None or clusters.detect(processes) is not None
    if several and processes.distributed != "off":
        raise ConfigError("measure_devices", "", "is for one process; give several their --devices")
    if config.optimization.global_batch_size == "auto" or config.optimization.per_device_batch_size is not None:
        raise ConfigError("measure_devices", "", "needs a batch that does not depend on devices; give --global-batch-size a number")
    if config.model.batch_norm is not None and config.model.batch_norm.kind == "replica":
        raise ConfigError("batch_norm", "replica", "depends on the number of devices, which is to be measured; use group:32")


def _devices(count: int) -> str:
    return f"{count} simulated devices" if count > 1 else "1 device"
