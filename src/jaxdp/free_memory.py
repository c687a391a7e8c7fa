"""How much memory is free: what would take more is refused before it is read or computed."""

import contextlib
import os
import pathlib
import re
import sys

from jaxdp.units import bytes_text

_UNNOTICED_BYTES = 64 * 2**20  # what takes less than this is not worth a look at the memory


def check_memory(wanted: int) -> None:
    """Raises ValueError if so many bytes are more than this machine, or this container, has
    free.
    """
    if wanted > _UNNOTICED_BYTES and wanted > (free := available_memory_bytes()):
        raise ValueError(
            f"it would take {bytes_text(wanted)} of memory, and {bytes_text(free)} are free"
        )


def available_memory_bytes() -> int:
    """Returns how much memory this process can still take before others are swapped out or
    killed.

    The limits of a container and of the process itself (`ulimit -v`) count.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(OSError):
            limits.append(_read_proc("meminfo", "MemAvailable"))
        group = pathlib.Path("/sys/fs/cgroup")  # of a container
        with contextlib.suppress(OSError, ValueError):  # there is none, or it has no limit
            most, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
            limits.append(int(most) - int(used))
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            limits.append(limit - _read_proc("self/status", "VmSize"))
    return max(min(limits), 0)


def _read_proc(file: str, field: str) -> int:
    """Returns an amount of memory in bytes."""
    found = re.search(rf"{field}:\s*(\d+) kB", pathlib.Path("/proc", file).read_text())
    assert found is not None
    return 1024 * int(found[1])
