"""Settles what must be decided before JAX starts: simulated devices and flags of the CPU."""

import contextlib
import importlib.metadata
import importlib.util
import mmap
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

from jaxdp.registry import ConfigError
from jaxdp.runtime import compilation_cache

# XLA:CPU sends convolutions to a library that is slow for their gradients (training steps run 2-3x faster without), while
# the same library makes reductions faster: so the convolutions alone leave it.
_CONVOLUTION_FLAG = "xla_cpu_experimental_ynn_fusion_type"
_CONVOLUTION_VALUE = "-individual_convolution"
# From this version of jaxlib on that library is also given what leads up to a reduction, whole networks even, and evaluation in
# bfloat16 came out as NaN (0.11.2, 0.12.0.1): there the reductions leave it, too.
_WRONG_REDUCTIONS, _REDUCTION_VALUE = (0, 11), ",-reduce"
# XLA:CPU drops optimization barriers before it merges operations: then neither `ops.convolution` nor rematerialization has the
# effect that it should. Without the pass that drops them they stay to the end, where the code generator must accept them: that is
# tried once for each jaxlib. The flag applies to all platforms, and GPUs need the pass: so it is set only where JAX has nothing
# but a CPU.
_BARRIER_FLAG, _BARRIER_PASS = "xla_disable_hlo_passes", "cse_barrier_expander"
_BARRIER_PROBE = """
import jax, jax.numpy as jnp
def loss(x, kernel):
    return jnp.sum(jnp.tanh(jax.lax.conv(*jax.lax.optimization_barrier((x, kernel)), (1, 1), "SAME")))
arrays = jnp.ones((1, 1, 3, 3)), jnp.zeros((1, 1, 3, 3))
step = jax.jit(jax.grad(jax.checkpoint(loss), argnums=1)).lower(*arrays).compile()
assert "opt-barrier" in step.as_text() and step(*arrays)[0, 0, 1, 1] == 9
"""
_PROBE_TIMEOUT_SECONDS = 300.0
_DETERMINISTIC_FLAGS = {"xla_gpu_deterministic_ops": "true", "xla_gpu_autotune_level": "0"}
_HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"
# XLA:TPU copies arrays that fit the memory on the chip there before each program, a small dataset included, of which a step reads
# a batch. `jax.pmap` takes no options for the compiler, so that its flag must be in the environment.
_PREFETCH_FLAG, _TPU_FLAGS = "xla_max_cross_program_prefetches", "LIBTPU_INIT_ARGS"
_DESCRIBED: list[bool] = []  # not empty in a process that compiles for devices it does not have


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def configure(devices: int | None, *, deterministic: bool = False) -> None:
    """Adds to XLA_FLAGS what this CPU needs; call it before the first JAX computation, later it has no effect.

    A flag that the user has set stays as it is, and one that the installed jaxlib does not know is left out, since XLA ends
    the process over it. On machines with accelerators both flags are idle.

    Args:
        devices: how many devices to simulate on the CPU; None for one.
        deterministic: whether GPU kernels must give the same bits in every run: no atomic sums, and none chosen by timing them.
    """
    if _DESCRIBED:
        return
    compilation_cache.enable()
    flags = os.environ.get("XLA_FLAGS", "").split()
    if not any(_CONVOLUTION_FLAG in flag for flag in flags) and _jaxlib_knows(_CONVOLUTION_FLAG, "INDIVIDUAL_CONVOLUTION"):
        wrong = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) >= _WRONG_REDUCTIONS
        flags.append(f"--{_CONVOLUTION_FLAG}={_CONVOLUTION_VALUE}{_REDUCTION_VALUE if wrong else ''}")
    if not any(_BARRIER_FLAG in flag for flag in flags) and only_cpu() and _keeps_barriers():
        flags.append(f"--{_BARRIER_FLAG}={_BARRIER_PASS}")
    if devices is not None and not any(_HOST_DEVICES_FLAG in flag for flag in flags):
        flags.append(f"--{_HOST_DEVICES_FLAG}={devices}")
    for name, value in _DETERMINISTIC_FLAGS.items() if deterministic else ():
        if not any(name in flag for flag in flags) and _jaxlib_knows(name):
            flags.append(f"--{name}={value}")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        _leave_data_in_place()


def describe_only() -> None:
    """Settles what must be decided before JAX starts, where it only compiles for devices that it is told about, and starts none.

    Flags for the CPU apply to every compiler: with them those of TPUs and GPUs fail at the first optimization barrier. From now on
    `configure` does nothing.
    """
    _DESCRIBED.append(True)
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if _BARRIER_FLAG not in flag and _CONVOLUTION_FLAG not in flag)
    _leave_data_in_place()
    # Programs that were kept are loaded onto devices, of which there are none.
    settings = {"jax_platforms": "cpu", "jax_enable_compilation_cache": False}
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if "jax" in sys.modules:  # it read the environment when it was imported
        import jax

        for name, value in settings.items():
            jax.config.update(name, value)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the environment until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _leave_data_in_place() -> None:
    """Keeps XLA:TPU from copying a dataset before each step; call it before libtpu is loaded."""
    given = os.environ.get(_TPU_FLAGS, "")
    if _PREFETCH_FLAG not in given and _knows("libtpu", "libtpu.so", _PREFETCH_FLAG):
        os.environ[_TPU_FLAGS] = f"{given} --{_PREFETCH_FLAG}=0".strip()


def only_cpu() -> bool:
    """Whether JAX has nothing but a CPU here."""
    if os.environ.get("JAX_PLATFORMS"):
        return os.environ["JAX_PLATFORMS"] == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")  # where JAX finds accelerators, but for TPUs
    return not plugins and importlib.util.find_spec("libtpu") is None and importlib.util.find_spec("jax_plugins") is None


def _keeps_barriers() -> bool:
    """Whether this jaxlib compiles a program for the CPU with its optimization barriers left in, and computes it correctly.

    It is tried in a process of its own, since XLA may abort over it. That takes 2 seconds, so the answer is kept beside the
    compiled programs.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    kept = None if not folder or "://" in folder else pathlib.Path(folder, f"barriers-{importlib.metadata.version('jaxlib')}")
    with contextlib.suppress(OSError):
        if kept is not None:
            return kept.read_text() == "kept"
    settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{_BARRIER_FLAG}={_BARRIER_PASS}", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    try:
        probe = [sys.executable, "-c", _BARRIER_PROBE]
        done = subprocess.run(probe, env=os.environ | settings, capture_output=True, timeout=_PROBE_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    with contextlib.suppress(OSError):
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            written = kept.with_name(f"{kept.name}.{os.getpid()}")  # another process may be here, too
            written.write_text("dropped" if done.returncode else "kept")
            written.replace(kept)
    return done.returncode == 0


def _jaxlib_knows(*words: str) -> bool:
    return _knows("jaxlib", "libjax_common.*", *words)


def _knows(package: str, libraries: str, *words: str) -> bool:
    """Tells whether a library of a package holds all the words.

    Names of flags must be strings of their own there: a flag that was removed lives on in the list of reserved names. A look takes
    10-40 ms in jaxlib and at most a second in libtpu; asking XLA itself takes a process of its own.
    """
    wanted = [f"\0{word}\0".encode() if word.startswith("xla_") else word.encode() for word in words]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    for library in pathlib.Path(spec.origin).parent.glob(libraries):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if all(content.find(word) >= 0 for word in wanted):
                return True
    return False


def xla_flags() -> str:
    """Returns the flags that JAX started with, for the record."""
    return os.environ.get("XLA_FLAGS", "")


def check_backend() -> None:
    """Starts JAX, unless it has started.

    Raises:
        ConfigError: if it cannot start, e.g. on a platform that is not there.
    """
    import jax

    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # of which the second says nothing
        asked = os.environ.get("JAX_PLATFORMS")
        hint = f"JAX_PLATFORMS is {asked}, correct or unset it" if asked else "JAX_PLATFORMS=cpu does without accelerators"
        reason = " ".join(str(error).split()) or "there is no such device"
        raise ConfigError("", "", f"JAX cannot start: {reason}; {hint}") from error


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
