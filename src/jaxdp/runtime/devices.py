"""Simulated devices inside a process that may have started JAX already."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.runtime import platform

_runs = 0


def available_devices() -> list[Any]:
    """Returns the devices of this process, which starts JAX, with the flags that jaxdp wants for a
    CPU.
    """
    platform.configure(None)
    import jax

    return jax.local_devices()


def ensure(count: int | None, *, deterministic: bool = False, precision: str = "float32") -> None:
    """Makes sure that JAX shows `count` devices where they can be simulated.

    Before JAX has started, its flags decide. Afterwards JAX is started anew with more simulated
    devices, if it has nothing but the CPU: arrays keep their content, and programs compile again.

    Raises:
        ConfigError: where devices are missing and cannot be simulated any more.
    """
    platform.configure(count, deterministic=deterministic, precision=precision)
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
    """Inside the block a run is under way, below which JAX is not started anew."""
    global _runs
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def check_alive(devices: Sequence[Any]) -> None:
    """Raises ConfigError if JAX was started anew since these devices were chosen."""
    import jax

    if devices[0].client is not jax.local_devices(backend=devices[0].platform)[0].client:
        raise ConfigError(
            "",
            "",
            "the devices of this Trainer are gone, since JAX was started anew with more; create"
            " another Trainer",
        )
