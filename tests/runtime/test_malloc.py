"""Memory of a step is there for the next one, also in a script, unless the user decides on malloc."""

import subprocess
import sys

import jax
import pytest

from jaxdp.runtime import malloc, platform

STEPS = """
import resource

import jaxdp

jaxdp.available_devices()
import jax
import jax.numpy as jnp

from jaxdp.runtime import malloc, platform


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


images = jnp.ones(2**25)  # 128 MiB, 32,768 pages
step = jax.jit(lambda images: images + 1)
for _ in range(12):
    result = step(images).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    result = step(images).block_until_ready()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
del result
held = resident()
malloc.return_freed()
print(faults, held - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has mallopt")
def test_steps_of_a_script_fault_no_pages_and_their_memory_can_be_returned() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults, returned = map(int, done.stdout.split())
    assert faults < 100_000  # each of the 10 steps would fault 32,768
    assert returned > 30_000


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX"])
def test_a_user_who_decides_on_malloc_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    called: list[str] = []
    monkeypatch.setattr(malloc, "_call", lambda name, *arguments: called.append(name))
    monkeypatch.setenv(name, "1")
    malloc.keep_freed()
    assert not called
    monkeypatch.delenv(name)
    malloc.keep_freed()
    assert called


def test_a_jax_without_the_option_of_dispatch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def update(name: str, value: object) -> None:
        asked.append(name)
        raise AttributeError(name)

    monkeypatch.setattr(jax.config, "update", update)
    monkeypatch.setattr(platform, "started", lambda: False)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    platform.configure(None)
    assert asked == ["jax_cpu_enable_async_dispatch"]
