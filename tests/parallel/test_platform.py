"""What is set before JAX starts: never over the user's own flags, and never one that this jaxlib does not know."""

import pytest

from jaxdp.parallel import platform
from jaxdp.registry import ConfigError


def flags(monkeypatch: pytest.MonkeyPatch, before: str, devices: int | None) -> list[str]:
    monkeypatch.setenv("XLA_FLAGS", before)
    platform.configure(devices)
    return platform.xla_flags().split()


def test_flags_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ["--xla_cpu_experimental_ynn_fusion_type=-individual_convolution", "--xla_force_host_platform_device_count=4"]
    assert flags(monkeypatch, "", 4) == expected
    assert flags(monkeypatch, " ".join(expected), 8) == expected
    assert flags(monkeypatch, "--xla_dump_to=x", None) == ["--xla_dump_to=x", expected[0]]


def test_the_users_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ["--xla_cpu_experimental_ynn_fusion_type=", "--xla_force_host_platform_device_count=2"]
    assert flags(monkeypatch, " ".join(mine), 8) == mine


def test_an_unknown_flag_would_end_the_process_so_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not platform._jaxlib_knows("xla_cpu_no_such_flag_at_all")
    monkeypatch.setattr(platform, "_jaxlib_knows", lambda *words: False)
    assert flags(monkeypatch, "", None) == []


def test_devices_that_are_not_there() -> None:
    assert len(platform.select_devices(3)) == 3
    assert len(platform.select_devices(None)) == 8
    with pytest.raises(ConfigError, match="--devices 9: there are 8 cpu devices; use at most 8"):
        platform.select_devices(9)


def test_deterministic_kernels_are_a_matter_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    platform.configure(None, deterministic=True)
    found = platform.xla_flags().split()
    assert "--xla_gpu_deterministic_ops=true" in found
    assert "--xla_gpu_autotune_level=4" in found  # the user's stays
    assert "--xla_gpu_autotune_level=0" not in found
    monkeypatch.setenv("XLA_FLAGS", "")
    platform.configure(None)
    assert "deterministic" not in platform.xla_flags()
