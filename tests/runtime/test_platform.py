"""What is set before JAX starts: never over the user's own flags, and never one that this jaxlib does not know."""

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from jaxdp.registry import ConfigError
from jaxdp.runtime import platform


def flags(monkeypatch: pytest.MonkeyPatch, before: str, devices: int | None) -> list[str]:
    monkeypatch.setenv("XLA_FLAGS", before)
    platform.configure(devices)
    return platform.xla_flags().split()


@pytest.mark.parametrize(("jaxlib", "reductions"), [("0.10.2", ""), ("0.11.0", ",-reduce"), ("0.12.0.1", ",-reduce")])
def test_flags_are_added_once(monkeypatch: pytest.MonkeyPatch, jaxlib: str, reductions: str) -> None:
    monkeypatch.setattr(platform, "_keeps_barriers", lambda: True)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: jaxlib)
    expected = [
        f"--xla_cpu_experimental_ynn_fusion_type=-individual_convolution{reductions}",
        "--xla_disable_hlo_passes=cse_barrier_expander",
        "--xla_force_host_platform_device_count=4",
    ]
    assert flags(monkeypatch, "", 4) == expected
    assert flags(monkeypatch, " ".join(expected), 8) == expected
    assert flags(monkeypatch, "--xla_dump_to=x", None) == ["--xla_dump_to=x", *expected[:2]]


@pytest.mark.parametrize("name", ["cuda,cpu", "tpu"])
def test_accelerators_keep_their_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", name)
    assert not any("disable_hlo_passes" in flag for flag in flags(monkeypatch, "", 4))
    monkeypatch.delenv("JAX_PLATFORMS")
    plugin = importlib.metadata.EntryPoint("cuda", "jax_plugins.xla_cuda13", "jax_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (plugin,))
    assert not any("disable_hlo_passes" in flag for flag in flags(monkeypatch, "", 4))


def test_the_users_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ["--xla_cpu_experimental_ynn_fusion_type=", "--xla_disable_hlo_passes=", "--xla_force_host_platform_device_count=2"]
    assert flags(monkeypatch, " ".join(mine), 8) == mine


def test_an_unknown_flag_would_end_the_process_so_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not platform._jaxlib_knows("xla_cpu_no_such_flag_at_all")
    monkeypatch.setattr(platform, "_jaxlib_knows", lambda *words: False)
    assert flags(monkeypatch, "", None) == ["--xla_disable_hlo_passes=cse_barrier_expander"]  # known since long ago


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


def test_barriers_are_tried_once_for_each_jaxlib(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    assert platform._keeps_barriers()
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == f"barriers-{importlib.metadata.version('jaxlib')}"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    assert platform._keeps_barriers()
    kept.write_text("dropped")
    assert not any("disable_hlo_passes" in flag for flag in flags(monkeypatch, "", None))


@pytest.mark.parametrize("probe", ["raise SystemExit(1)", "import os; os.abort()", "import time; time.sleep(9)"])
def test_an_xla_that_does_not_take_barriers_is_left_alone(
    probe: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(platform, "_BARRIER_PROBE", probe)
    monkeypatch.setattr(platform, "_PROBE_TIMEOUT_SECONDS", 2.0)
    assert not platform._keeps_barriers()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/cache")  # nothing is kept there
    assert not platform._keeps_barriers()
    assert not pathlib.Path("gs:").exists()


def test_a_name_within_another_string_is_no_flag(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the list of reserved names, where the flags that were removed stay."""
    (tmp_path / "libjax_common.so").write_bytes(b"\0xla_cpu_here\0R\x0cxla_cpu_goneR\x0cA_VALUE")
    spec = importlib.machinery.ModuleSpec("jaxlib", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert platform._jaxlib_knows("xla_cpu_here", "A_VALUE")
    assert not platform._jaxlib_knows("xla_cpu_gone")


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        (b"\0xla_max_cross_program_prefetches\0", "--xla_a=1", "--xla_a=1 --xla_max_cross_program_prefetches=0"),
        (b"\0xla_max_cross_program_prefetches\0", "--xla_max_cross_program_prefetches=2", "--xla_max_cross_program_prefetches=2"),
        (b"R\x21xla_max_cross_program_prefetches", "", ""),  # libtpu ends the process over a flag that it does not know
        (None, "", ""),
    ],
)
def test_a_tpu_leaves_the_dataset_where_it_is(
    content: bytes | None, given: str, expected: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None
    if content is not None:
        (tmp_path / "libtpu.so").write_bytes(content)
        spec = importlib.machinery.ModuleSpec("libtpu", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "libtpu" else None)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", given)
    for platforms, found in (("cpu", given), ("tpu,cpu", expected)):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        flags(monkeypatch, "", None)
        assert os.environ["LIBTPU_INIT_ARGS"] == found


def test_a_process_that_compiles_for_others_has_no_flags_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of them XLA:TPU and XLA:GPU fail at the first barrier: "opt-barrier is not implemented on TPU"."""
    monkeypatch.setattr(platform, "_DESCRIBED", [])
    monkeypatch.delitem(sys.modules, "jax")  # else it is told, too
    for name in ("JAX_PLATFORMS", "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=cse_barrier_expander --xla_dump_to=/nowhere")
    platform.describe_only()
    platform.configure(2)  # as importing some of the package does
    assert platform.xla_flags() == "--xla_dump_to=/nowhere"
    assert os.environ["JAX_PLATFORMS"] == "cpu"
