"""What must be decided before JAX starts: how many devices a CPU pretends to be, and its flags."""

import importlib.util
import mmap
import os
import pathlib

from jaxdp.registry import ConfigError

# XLA:CPU sends convolutions to a library that is slow for their gradients (training steps run 2-3x faster without), while
# the same library makes reductions faster: so the convolutions alone leave it.
_CONVOLUTION_FLAG = "xla_cpu_experimental_ynn_fusion_type"
_CONVOLUTION_VALUE = "-individual_convolution"
_DETERMINISTIC_FLAGS = {"xla_gpu_deterministic_ops": "true", "xla_gpu_autotune_level": "0"}
_HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"


def configure(devices: int | None, *, deterministic: bool = False) -> None:
    """Adds to XLA_FLAGS what this CPU needs; call it before the first JAX computation, later it has no effect.

    A flag that the user has set stays as it is, and one that the installed jaxlib does not know is left out, since XLA ends
    the process over it. On machines with accelerators both flags are idle.

    Args:
        devices: how many devices to simulate on the CPU; None for one.
        deterministic: whether GPU kernels must give the same bits in every run: no atomic sums, and none chosen by timing them.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if not any(_CONVOLUTION_FLAG in flag for flag in flags) and _jaxlib_knows(_CONVOLUTION_FLAG, "INDIVIDUAL_CONVOLUTION"):
        flags.append(f"--{_CONVOLUTION_FLAG}={_CONVOLUTION_VALUE}")
    if devices is not None and not any(_HOST_DEVICES_FLAG in flag for flag in flags):
        flags.append(f"--{_HOST_DEVICES_FLAG}={devices}")
    for name, value in _DETERMINISTIC_FLAGS.items() if deterministic else ():
        if not any(name in flag for flag in flags) and _jaxlib_knows(name):
            flags.append(f"--{name}={value}")
    os.environ["XLA_FLAGS"] = " ".join(flags)


def _jaxlib_knows(*words: str) -> bool:
    """Whether the library holds all the words. A look takes 10-40 ms, asking XLA itself a process of its own."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return False
    for library in pathlib.Path(spec.origin).parent.glob("libjax_common.*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if all(content.find(word.encode()) >= 0 for word in words):
                return True
    return False


def xla_flags() -> str:
    """Returns the flags that JAX started with, for the record."""
    return os.environ.get("XLA_FLAGS", "")


def select_devices(count: int | None) -> list:
    """Returns the first `count` of this process's devices, all of them for None.

    Raises:
        ConfigError: if there are fewer.
    """
    import jax

    available = jax.local_devices()
    if count is not None and count > len(available):
        hint = "unset that flag in XLA_FLAGS" if _HOST_DEVICES_FLAG in xla_flags() else "set XLA_FLAGS before JAX starts"
        remedy = f"there are {len(available)} {available[0].platform} devices; use at most {len(available)}"
        raise ConfigError("devices", count, remedy + (f", or {hint} to simulate more" if available[0].platform == "cpu" else ""))
    return available[:count]


def device_memory_bytes(devices: list) -> int:
    """Returns how much memory each of these devices has; of the CPU's, which share the machine's, each its share."""
    statistics = devices[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.is_file() and limit.read_text().strip().isdecimal():
        total = min(total, int(limit.read_text()))
    return total // len(devices)
