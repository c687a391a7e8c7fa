"""Targets are read from text, and their topologies are those that the machines have."""

import math

import pytest
from jax.experimental import topologies

from jaxdp.errors import ConfigError
from jaxdp.runtime import targets
from jaxdp.runtime.targets import CHIPS, Target


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("tpu:v5e:4x4", (4, 4)),
        ("tpu:v5p:2x2x4", (2, 2, 4)),
        ("cuda:h200:1", (1,)),
        ("cuda:h100:512", (512,)),
    ],
)
def test_a_target_is_read(text: str, topology: tuple[int, ...]) -> None:
    target = Target.parse(text)
    assert (target.count, target.topology, str(target)) == (math.prod(topology), topology, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpu:v5e", "write the number of devices as in tpu:v5e:4x4"),
        ("tpu:v5e:4x4x4", "write the number of devices as in tpu:v5e:4x4"),
        ("tpu:v5e:0x4", "write the number of devices"),
        ("tpu:v5e:32x32", "must have at most 256 devices"),
        ("cuda:h100:100000", "at most 4096"),
        ("cuda:h100:²", "write the number of devices"),
        (
            "cuda:k80:8",
            (
                "there are tpu:v5e:4x4, tpu:v5p:2x2x4, tpu:v6e:4x4, cuda:a100:8, cuda:h100:8,"
                " cuda:h200:8"
            ),
        ),
        ("rocm:mi300:8", "there are tpu:v5e:4x4"),
        ("", "there are tpu:v5e:4x4"),
    ],
)
def test_what_is_no_target(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Target.parse(text)


@pytest.mark.parametrize("text", ["tpu:v5e:2x2", "cuda:h100:4"])
def test_what_is_missing_is_named_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**described: object) -> None:
        raise NotImplementedError("topology\nnot implemented")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    with pytest.raises(ConfigError, match=r"not implemented; needs pip install '\.\[(tpu|cuda)"):
        Target.parse(text).devices()


def test_a_gpu_is_described_for_its_compiler() -> None:
    text = targets.gpu_description(CHIPS["cuda", "h200"])
    for line in (
        "device_memory_size: 151397597184",
        "memory_bandwidth: 4800000000000",
        "core_count: 132",
        "major: 9 minor: 0",
    ):
        assert line in text
