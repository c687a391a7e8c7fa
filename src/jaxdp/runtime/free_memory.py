"""Finds how much memory is free, so that requests for more are refused before data are read or
computed.
"""

import contextlib
import os
import pathlib
import re
import sys

from jaxdp.text.units import bytes_text

_ROOT = pathlib.Path("/")
_FILES = {
    "cgroup": ("limit_in_bytes", "usage_in_bytes"),
    "cgroup2": ("max", "current"),
}  # of a group
_UNNOTICED_BYTES = 64 * 2**20  # smaller requests are not checked


class TooLarge(ValueError):
    """There is less free memory than a request takes.

    Attributes:
        times: how many times the free memory it takes.
    """

    times: float


def check_memory(wanted: int) -> None:
    """Raises TooLarge, a ValueError, if this number of bytes exceeds the free memory of this
    machine or container.
    """
    if wanted > _UNNOTICED_BYTES and wanted > (free := available_memory_bytes()):
        problem = f"it would take {bytes_text(wanted)} of memory, and {bytes_text(free)} are free"
        error = TooLarge(problem)
        error.times = wanted / max(free, 1)
        raise error


def machine_memory_bytes() -> int:
    """Returns the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory_bytes() -> int:
    """Returns how much memory this process can still allocate before other processes are swapped
    out or killed.

    The limits of a container and of the process itself (`ulimit -v`) apply.
    """
    limits = [machine_memory_bytes()]
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(OSError):
            limits.append(_read_proc("meminfo", "MemAvailable"))
        limits += [limit - used for limit, used in group_limits()]
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            limits.append(limit - _read_proc("self/status", "VmSize"))
    return max(min(limits), 0)


def group_limits(root: pathlib.Path = _ROOT) -> list[tuple[int, int]]:
    """Returns the limit and the use of memory, in bytes, of each control group that has a limit and
    holds this process: a container, a job or a service, and the groups around it.

    Args:
        root: of the file system.

    Source: Linux, cgroups(7) and proc_pid_mountinfo(5). There are two versions of control groups,
    and one or both may be mounted.
    """
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return []
    found = list[tuple[int, int]]()
    for _, controllers, path in (line.split(":", 2) for line in own):
        version = "cgroup" if controllers else "cgroup2"
        if controllers and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            kind, _, options = mount[mount.index("-") + 1 :][:3]
            if kind != version or (controllers and "memory" not in options.split(",")):
                continue
            top = root / mount[4].lstrip("/")
            # A container may see only its own group, under the path on the host.
            is_inside = pathlib.PurePosixPath(path).is_relative_to(mount[3])
            group = top / os.path.relpath(path, mount[3]) if is_inside else top
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # the group has no limit
                    limit, used = (
                        int((folder / f"memory.{name}").read_text()) for name in _FILES[version]
                    )
                    found.append((limit, used))
                if folder == top:
                    break
    return found


def _read_proc(file: str, field: str) -> int:
    """Returns an amount of memory in bytes."""
    found = re.search(rf"{field}:\s*(\d+) kB", pathlib.Path("/proc", file).read_text())
    assert found is not None
    return 1024 * int(found[1])
