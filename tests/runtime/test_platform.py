"""What is set before JAX starts: never over the user's own flags, and never one that this jaxlib
does not know.
"""

import importlib.metadata
import os
import subprocess
import sys
import types

import jax
import pytest

import jaxdp
from jaxdp.errors import ConfigError
from jaxdp.runtime import platform

CONVOLUTIONS = "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution"
BARRIERS = "--xla_disable_hlo_passes=cse_barrier_expander,small-while-loop-hoisting"


@pytest.fixture(autouse=True)
def _not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX has started in the process of the tests, after which flags do not change."""
    monkeypatch.setattr(platform, "started", lambda: False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def with_jaxlib(
    monkeypatch: pytest.MonkeyPatch, version: str, system: str = "linux", machine: str = "x86_64"
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=machine))


def flags(
    monkeypatch: pytest.MonkeyPatch, before: str, devices: int | None, precision: str = "float32"
) -> list[str]:
    monkeypatch.setenv("XLA_FLAGS", before)
    platform.configure(devices, precision=precision)
    return platform.xla_flags().split()


def printed(program: str, **variables: str) -> str:
    """Returns what a Python program prints in a process without flags."""
    environment = {**os.environ, "XLA_FLAGS": "", **variables}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("jaxlib", "precision", "expected"),
    [
        ("0.10.2", "bfloat16", [f"{CONVOLUTIONS},-individual_dot", BARRIERS]),
        ("0.11.2", "float32", [CONVOLUTIONS]),
        ("0.11.2", "bfloat16", [f"{CONVOLUTIONS},-reduce"]),
        ("0.12.0.1", "float32", [CONVOLUTIONS]),
        ("0.12.0.1", "bfloat16", [f"{CONVOLUTIONS},-reduce"]),
        ("0.12.0.1", "float16", [f"{CONVOLUTIONS},-reduce"]),
        ("0.12.0.1", "float64", [CONVOLUTIONS]),
        ("0.10.0", "float32", []),  # versions on which the test suite has not run
        ("0.12.0", "bfloat16", []),
        ("0.13.0", "float32", []),
    ],
)
def test_flags_are_those_of_the_version_and_added_once(
    monkeypatch: pytest.MonkeyPatch, jaxlib: str, precision: str, expected: list[str]
) -> None:
    with_jaxlib(monkeypatch, jaxlib)
    expected = [*expected, "--xla_force_host_platform_device_count=4"]
    assert flags(monkeypatch, "", 4, precision) == expected
    assert flags(monkeypatch, " ".join(expected), 8, precision) == expected
    mine = ["--xla_dump_to=x", *expected[:-1]]
    assert flags(monkeypatch, "--xla_dump_to=x", None, precision) == mine


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "aarch64")])
def test_a_machine_of_another_kind_gets_no_flags(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    with_jaxlib(monkeypatch, "0.10.2", system, machine)
    assert flags(monkeypatch, "", None) == []


def test_flags_for_one_precision_give_way_to_those_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process inherits the flags of the process that started it."""
    with_jaxlib(monkeypatch, "0.12.0.1")
    single = flags(monkeypatch, "", None)
    half = flags(monkeypatch, " ".join(single), None, "bfloat16")
    assert half == [f"{CONVOLUTIONS},-reduce"]
    assert flags(monkeypatch, " ".join(half), None) == single


def test_a_process_that_started_for_float32_refuses_16_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_jaxlib(monkeypatch, "0.12.0.1")
    monkeypatch.setenv("XLA_FLAGS", CONVOLUTIONS)
    monkeypatch.setattr(platform, "started", lambda: True)
    platform.configure(None, precision="bfloat16")
    assert platform.xla_flags() == CONVOLUTIONS
    with pytest.raises(ConfigError, match="precision=bfloat16: JAX has started with XLA flags"):
        platform.check_precision("bfloat16")
    platform.check_precision("float32")
    for right in (f"{CONVOLUTIONS},-reduce", ""):
        monkeypatch.setenv("XLA_FLAGS", right)
        platform.check_precision("bfloat16")
    with_jaxlib(monkeypatch, "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", CONVOLUTIONS)
    platform.check_precision("bfloat16")


HALF_PRECISION = """
import jax, jax.numpy as jnp
from flax import nnx
import jaxdp

class Net(nnx.Module):
    def __init__(self, dtype):
        self.head = nnx.Linear(64, 10, dtype=dtype, rngs=nnx.Rngs(0))
    def __call__(self, x):
        return self.head(x.reshape(len(x), -1)).astype(jnp.float32)

jaxdp.Trainer(Net(jnp.float32), "digits", progress=False)
for settings in ({"model": Net(jnp.bfloat16)}, {"model": "cnn", "precision": "bfloat16"}):
    try:
        jaxdp.Trainer(data="digits", progress=False, **settings)
    except jaxdp.ConfigError as error:
        print(error)
"""


@pytest.mark.skipif(
    platform.cpu_flags("bfloat16") == platform.cpu_flags("float32"),
    reason="this jaxlib has the same flags for both precisions",
)
def test_a_model_in_16_bits_is_refused_where_its_values_would_be_wrong() -> None:
    first, second = printed(HALF_PRECISION).splitlines()
    assert first.startswith("model=Net: JAX has started with XLA flags that make bfloat16 wrong")
    assert second.startswith("precision=bfloat16: JAX has started with XLA flags")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_threefry_partitionable", False),
        ("jax_default_matmul_precision", "bfloat16"),
    ],
)
def test_settings_of_jax_that_change_results_are_named(
    name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        jaxdp.Trainer("cnn", "digits", model_kwargs={"width": 4, "hidden": 16}, devices=1)
    finally:
        jax.config.update(name, before)
    lines = [line for line in capsys.readouterr().err.splitlines() if "changes what a run" in line]
    assert len(lines) == 1
    assert f"JAX has {name}={value}, which changes" in lines[0]


def test_by_default_no_setting_of_jax_changes_results() -> None:
    assert platform.unusual_settings() is None


BARRIERS_IN_SMALL_LOOPS = """
from jaxdp.runtime import platform
platform.configure(None)
import jax, jax.numpy as jnp
barrier = jax.lax.optimization_barrier
rows = jnp.arange(12.0).reshape(4, 3)
double = jax.jit(lambda rows: jax.lax.map(lambda row: 2 * barrier(jnp.tanh(row)), rows))
pair = jax.jit(lambda rows: jax.lax.map(lambda row: sum(barrier((jnp.tanh(row), row))), rows))
assert jnp.array_equal(double(rows), 2 * jnp.tanh(rows))
assert jnp.array_equal(pair(rows), jnp.tanh(rows) + rows)
step = jax.jit(jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.tanh(x @ x)))))
print("opt-barrier" in step.lower(jnp.ones((3, 3))).compile().as_text())
"""


def test_barriers_stay_in_programs_and_small_loops_may_have_them() -> None:
    """Loops around barriers compile with the flag that jaxdp sets, and compute right values."""
    found = printed(BARRIERS_IN_SMALL_LOOPS, JAX_ENABLE_COMPILATION_CACHE="false")
    assert found.strip() == str(BARRIERS in platform.cpu_flags())


@pytest.mark.parametrize("platforms", ["cuda,cpu", "tpu", ""])
def test_accelerators_keep_their_passes(platforms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    plugin = importlib.metadata.EntryPoint("cuda", "jax_plugins.xla_cuda13", "jax_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (plugin,))
    assert not any("disable_hlo_passes" in flag for flag in flags(monkeypatch, "", 4))


def test_the_users_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [
        "--xla_cpu_experimental_ynn_fusion_type=",
        "--xla_disable_hlo_passes=",
        "--xla_force_host_platform_device_count=2",
    ]
    assert flags(monkeypatch, " ".join(mine), 8) == mine


def test_devices_that_are_not_there() -> None:
    assert len(platform.select_devices(3)) == 3
    assert len(platform.select_devices(None)) == 8
    with pytest.raises(ConfigError, match="devices=9: there are 8 cpu devices; use at most 8"):
        platform.select_devices(9)


def test_deterministic_kernels_are_a_matter_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    platform.configure(None, deterministic=True)
    found = platform.xla_flags().split()
    assert "--xla_gpu_deterministic_ops=true" in found
    assert "--xla_gpu_autotune_level=4" in found  # the user's stays
    assert "--xla_gpu_autotune_level=0" not in found
    assert not any("deterministic" in flag for flag in flags(monkeypatch, "", None))


def test_a_process_that_compiles_for_others_has_no_flags_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one of them XLA:TPU and XLA:GPU fail at the first barrier: "opt-barrier is not
    implemented on TPU".
    """
    monkeypatch.setattr(platform, "_DESCRIBED", [])
    monkeypatch.delitem(sys.modules, "jax")  # else it is told, too
    for name in ("JAX_PLATFORMS", "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XLA_FLAGS", f"{BARRIERS} --xla_dump_to=/nowhere")
    platform.describe_only()
    platform.configure(2)  # as importing some of the package does
    assert platform.xla_flags() == "--xla_dump_to=/nowhere"
    assert os.environ["JAX_PLATFORMS"] == "cpu"


def test_own_code_is_told_what_a_jaxlib_computes_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        with_jaxlib(patch, "0.12.0.1")
        assert platform.cpu_defect() is None
        with_jaxlib(patch, "0.10.2")
        defect = platform.cpu_defect()
    assert defect is not None
    monkeypatch.setattr(platform, "cpu_defect", lambda: defect)
    for own in ({}, {"task": lambda outputs, labels: outputs[:, 0]}):
        jaxdp.Trainer("cnn", "digits", progress=False, **own)
        assert capsys.readouterr().err == (f"warning: {defect}\n" if own else "")
