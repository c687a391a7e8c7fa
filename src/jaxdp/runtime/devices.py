"""Simulates devices in a process that may have already started JAX."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.runtime import platform

_runs = 0


def available_devices() -> list[Any]:
    """Returns the devices of this process. Starts JAX with jaxdp's flags for a CPU."""
    platform.configure(None)
    import jax

    return jax.local_devices()


def ensure(count: int | None, **options: Any) -> None:
    """Makes sure that JAX has `count` devices, if they can be simulated.

    Before JAX has started, its flags determine the number. Afterwards, JAX is restarted with more
    simulated devices, if it has only the CPU. Arrays keep their content, and programs compile
    again.

    Args:
        **options: as for `platform.configure`.

    Raises:
        ConfigError: if devices are missing and can no longer be simulated.
    """
    platform.configure(count, **options)
    if count is None or not platform.started():
        return
    import jax
    import jax.extend.backend

    if len(jax.local_devices()) >= count or jax.default_backend() != "cpu":
        return  # too few accelerators are an error of `platform.select_devices`
    if jax.process_count() > 1 or _runs:
        remedy = (
            f"JAX has started with {len(jax.local_devices())} devices; set devices before, or"
            " restart the process"
        )
        raise ConfigError("devices", count, remedy)
    jax.extend.backend.clear_backends()
    jax.config.update("jax_num_cpu_devices", count)


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Marks a run in progress, during which JAX is not restarted."""
    global _runs
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def check_alive(devices: Sequence[Any]) -> None:
    """Raises ConfigError if JAX was restarted since these devices were chosen."""
    import jax

    if devices[0].client is not jax.local_devices(backend=devices[0].platform)[0].client:
        raise ConfigError(
            "",
            "",
            "the devices of this Trainer are gone, since JAX was started anew with more; create"
            " another Trainer",
        )
