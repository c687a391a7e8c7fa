"""How much memory a process may take: limits of containers, services and batch jobs count."""

import os
import pathlib

import pytest

from jaxdp.runtime import free_memory, platform

MIB = 2**20
UNLIMITED_V1 = "9223372036854771712"
MOUNTS_V1 = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct
32 25 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:16 - cgroup cgroup rw,memory
"""
OF_THE_CONTAINER = "32 25 0:29 /docker/c1 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory"
MOUNTS_V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = MOUNTS_V1 + "26 25 0:24 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"


def system(
    root: pathlib.Path, groups: str, mounts: str, limits: dict[str, tuple[str, int]]
) -> None:
    """Writes the files of a Linux system; limits are the group's folder, limit and use."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for folder, (limit, used) in limits.items():
        group = root / "sys/fs/cgroup" / folder
        group.mkdir(parents=True, exist_ok=True)
        names = ("max", "current") if "memory" not in folder else free_memory._FILES["cgroup"]
        for name, value in zip(names, (limit, used), strict=True):
            (group / f"memory.{name}").write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("groups", "mounts", "limits", "expected"),
    [
        pytest.param(
            "12:cpu,cpuacct:/batch\n4:memory:/slurm/job_7\n0::/\n",
            MOUNTS_V1,
            {
                "memory": (UNLIMITED_V1, 900 * MIB),
                "memory/slurm": (str(800 * MIB), 300 * MIB),
                "memory/slurm/job_7": (str(400 * MIB), 100 * MIB),
                "memory/slurm/job_8": (str(1 * MIB), 0),
            },
            400 * MIB,
            id="version 1",
        ),
        pytest.param(
            "4:memory:/slurm/job_7\n",
            MOUNTS_V1,
            {
                "memory/slurm": (str(300 * MIB), 100 * MIB),
                "memory/slurm/job_7": (UNLIMITED_V1, 100 * MIB),
            },
            300 * MIB,
            id="version 1, around it",
        ),
        pytest.param(
            "4:memory:/docker/c1\n",
            OF_THE_CONTAINER,
            {"memory": (str(500 * MIB), 100 * MIB)},
            500 * MIB,
            id="version 1, container",
        ),
        pytest.param(
            "4:memory:/elsewhere\n",
            OF_THE_CONTAINER,
            {"memory": (str(500 * MIB), 100 * MIB)},
            500 * MIB,
            id="version 1, another root",
        ),
        pytest.param(
            "0::/\n", MOUNTS_V2, {"": (str(600 * MIB), 100 * MIB)}, 600 * MIB, id="version 2"
        ),
        pytest.param(
            "0::/user.slice/run.scope\n",
            MOUNTS_V2,
            {
                "user.slice": (str(900 * MIB), 100 * MIB),
                "user.slice/run.scope": (str(700 * MIB), 100 * MIB),
            },
            700 * MIB,
            id="version 2, below the root",
        ),
        pytest.param(
            "0::/user.slice/run.scope\n",
            MOUNTS_V2,
            {"user.slice": (str(900 * MIB), 100 * MIB), "user.slice/run.scope": ("max", 0)},
            900 * MIB,
            id="version 2, around it",
        ),
        pytest.param(
            "4:memory:/job\n0::/job\n",
            HYBRID,
            {"memory/job": (str(200 * MIB), 0), "unified/job": ("max", 0)},
            200 * MIB,
            id="hybrid",
        ),
        pytest.param("0::/\n", MOUNTS_V2, {}, None, id="no limit"),
    ],
)
def test_limits_of_groups_are_found(
    groups: str,
    mounts: str,
    limits: dict[str, tuple[str, int]],
    expected: int | None,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    system(tmp_path, groups, mounts, limits)
    found = free_memory.group_limits(tmp_path)
    assert min([total, *(limit for limit, _ in found)]) == (expected or total)

    class Device:
        def memory_stats(self) -> None: ...

    monkeypatch.setattr(platform, "group_limits", lambda: free_memory.group_limits(tmp_path))
    assert platform.device_memory_bytes([Device(), Device()]) == (expected or total) // 2
    monkeypatch.setattr(free_memory, "group_limits", lambda: found)
    free = min([total, *(limit - used for limit, used in found)])
    assert free_memory.available_memory_bytes() <= free


def test_without_groups_there_is_no_limit(tmp_path: pathlib.Path) -> None:
    assert free_memory.group_limits(tmp_path) == []
