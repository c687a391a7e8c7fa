"""Sets the options that must be set before JAX starts: simulated devices and flags for the CPU."""

import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.runtime import compilation_cache, malloc
from jaxdp.runtime.free_memory import group_limits, machine_memory_bytes
from jaxdp.text.messages import one_line

# By the version of jaxlib.
_CPU = tomllib.loads(pathlib.Path(__file__).with_name("cpu_flags.toml").read_text())
_CPU_FLAGS = ("xla_cpu_experimental_ynn_fusion_type", "xla_disable_hlo_passes")
# Settings of JAX, or of its environment, that change random draws or rounding.
_JAX_DEFAULTS = {
    "jax_enable_x64": False,
    "jax_threefry_partitionable": True,
    "jax_default_matmul_precision": None,
}
HALF_PRECISION = ("bfloat16", "float16")
_DETERMINISTIC_FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")
_HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"
# Threads of a CPU, by strategy. XLA divides long sums among its threads. By default there are as
# many as cores or simulated devices, so that rounding depends on both.
THREADS = {"exact": 8}
_DESCRIBED: list[bool] = []  # not empty in a process that compiles for absent devices


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_flags(precision: str = "float32") -> tuple[str, ...]:
    """Returns the XLA flags that jaxdp sets for this CPU.

    Returns no flags for an unknown jaxlib or machine.

    Args:
        precision: format of the computation.
    """
    if (sys.platform, os.uname().machine) != ("linux", "x86_64") or not only_cpu():
        return ()
    known = _CPU.get(importlib.metadata.version("jaxlib"), {})
    flags = known.get("flags", [])
    return tuple(known.get("half_precision", flags) if precision in HALF_PRECISION else flags)


def configure(
    devices: int | None,
    *,
    deterministic: bool = False,
    precision: str = "float32",
    strategy: str = "",
) -> None:
    """Adds the flags for this machine to XLA_FLAGS. Changes nothing after JAX has started.

    A flag that the user has set does not change.

    Args:
        devices: how many devices to simulate on the CPU; None for one.
        deterministic: whether GPU kernels must give the same bits in every run, without atomic sums
            and without kernels chosen by timing.
        precision: format of the computation.
        strategy: that computes.
    """
    if _DESCRIBED:
        return
    compilation_cache.enable()
    if started():
        return
    if only_cpu():
        import jax

        malloc.keep_freed()
        # The thread that calls a step of one device then allocates its memory. The main thread
        # allocates from the heap. JAX 0.10 to 0.12 have this option. Without it, a step is only
        # slower.
        with contextlib.suppress(AttributeError):
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    wanted = [*cpu_flags(precision), *(_DETERMINISTIC_FLAGS if deterministic else ())]
    if devices is not None:
        wanted.append(f"--{_HOST_DEVICES_FLAG}={devices}")
    # A parent process, or an earlier call, may have chosen for the other precision.
    outdated = {*cpu_flags("float32"), *cpu_flags("bfloat16")} - {*wanted}
    flags = [flag for flag in xla_flags().split() if flag not in outdated]
    names = {flag.partition("=")[0] for flag in flags}
    flags += [flag for flag in wanted if flag.partition("=")[0] not in names]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    if threads := THREADS.get(strategy):
        os.environ.setdefault("NPROC", str(threads))
        os.environ["PJRT_NPROC"] = os.environ["NPROC"]


def started() -> bool:
    """Returns whether JAX has started its devices, after which flags have no effect."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge  # JAX has no public way to check this without starting

    return xla_bridge.backends_are_initialized()


def check_precision(precision: str, field: str = "precision", value: str | None = None) -> None:
    """Makes sure that this process computes correct values in a format.

    Args:
        precision: name of a floating-point format.
        field: the setting that requests it.
        value: of the setting; None for the name of the format.

    Raises:
        ConfigError: if JAX has started with flags that give wrong values on a CPU.
    """
    wanted = cpu_flags(precision)
    if ({*cpu_flags("float32")} - {*wanted}) & {*xla_flags().split()}:
        problem = f"JAX has started with XLA flags that make {precision} wrong on this CPU"
        remedy = f"set XLA_FLAGS={shlex.quote(' '.join(wanted))}, or restart and use it first"
        raise ConfigError(field, value or precision, f"{problem}; {remedy}")


def cpu_defect() -> str | None:
    """Returns one line on wrong results of the installed jaxlib on this CPU, if any are known."""
    known = _CPU.get(importlib.metadata.version("jaxlib"), {})
    return known.get("defect") if only_cpu() else None


def unusual_settings() -> str | None:
    """Returns one line on settings of JAX that change the results of a run, if there are any."""
    import jax

    found = {name: getattr(jax.config, name) for name in _JAX_DEFAULTS}
    texts = [f"{name}={found[name]}" for name in found if found[name] != _JAX_DEFAULTS[name]]
    if not texts:
        return None
    return (
        f"JAX has {' and '.join(texts)}, which changes what a run computes; resume it, and compare"
        " it, under the same setting, or unset it"
    )


def cpu_flags_note() -> str:
    """Returns one line with the XLA flags that jaxdp sets for this CPU."""
    system = f"jaxlib {importlib.metadata.version('jaxlib')} on {sys.platform} {os.uname().machine}"
    if not (flags := cpu_flags()):
        return (
            f"jaxdp sets no XLA flags for a CPU: it was not tested with {system}; steps may be"
            " slower"
        )
    return f"for {system} jaxdp sets {' '.join(flags)}"


def describe_only() -> None:
    """Prepares a process that compiles for described devices and starts none, before JAX starts.

    Flags for the CPU apply to every compiler. With these flags, the compilers for TPUs and GPUs
    fail at the first optimization barrier. After this call, `configure` does nothing.
    """
    _DESCRIBED.append(True)
    flags = [flag for flag in xla_flags().split() if not any(name in flag for name in _CPU_FLAGS)]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    # Programs from the cache would be loaded onto devices, but there are none.
    compilation_cache.set_options({"jax_platforms": "cpu", "jax_enable_compilation_cache": False})


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the environment until the block ends."""
    before = {**os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in values if name in before})


def only_cpu() -> bool:
    """Returns whether JAX has only a CPU on this machine."""
    if os.environ.get("JAX_PLATFORMS"):
        return os.environ["JAX_PLATFORMS"] == "cpu"
    # Paths at which JAX finds accelerators, except TPUs.
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return (
        not plugins
        and importlib.util.find_spec("libtpu") is None
        and importlib.util.find_spec("jax_plugins") is None
    )


def xla_flags() -> str:
    """Returns the flags that JAX started with, for the record."""
    return os.environ.get("XLA_FLAGS", "")


def check_backend() -> None:
    """Starts JAX, unless it has already started.

    Raises:
        ConfigError: if it cannot start, e.g. on a missing platform.
    """
    import jax

    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # an AssertionError has no text
        asked = os.environ.get("JAX_PLATFORMS")
        hint = (
            f"JAX_PLATFORMS is {asked}, correct or unset it"
            if asked
            else "JAX_PLATFORMS=cpu does without accelerators"
        )
        reason = one_line(error) or "there is no such device"
        raise ConfigError("", "", f"JAX cannot start: {reason}; {hint}") from error


def threads() -> int:
    """Returns the number of threads among which XLA divides work on this CPU."""
    import jax

    return max(int(os.environ.get("NPROC") or cores()), len(jax.local_devices(backend="cpu")))


def rounding_facts(device: Any) -> str:
    """Returns a text with what rounding depends on, apart from the program and XLA's flags."""
    kind = device.device_kind
    if device.platform == "cpu":
        kind = os.uname().machine
        with contextlib.suppress(OSError):  # Linux only
            text = pathlib.Path("/proc/cpuinfo").read_text()
            kind = (re.findall(r"model name\s*: (.*)", text) or [kind])[0]
        kind += f", {threads()} threads"
    return f"jaxlib {importlib.metadata.version('jaxlib')}, {kind}"


def select_devices(count: int | None) -> list:
    """Returns the first `count` devices of this process, or all devices for None.

    Raises:
        ConfigError: if there are fewer devices.
    """
    import jax

    available = jax.local_devices()
    if count is not None and count > len(available):
        found = f"there are {len(available)} {available[0].platform} devices"
        raise ConfigError("devices", count, f"{found}; use at most {len(available)}")
    return available[:count]


def device_memory_bytes(devices: list) -> int:
    """Returns the memory of each of these devices. CPU devices share the memory of the machine."""
    statistics = devices[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    return min([machine_memory_bytes(), *(limit for limit, _ in group_limits())]) // len(devices)
