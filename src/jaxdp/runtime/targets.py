"""Describes accelerators for which programs can be compiled without having them, and the devices of
a topology.

JAX compiles for a TPU with libtpu and for a CUDA GPU with XLA's plug-in, from a description of the
machine. Described devices have no memory and run nothing: programs are lowered onto them and
compiled. chips.toml lists the facts and their sources.
"""

import dataclasses
import math
import os
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.runtime.platform import environment
from jaxdp.text.messages import one_line
from jaxdp.text.parsing import is_count

# Without these variables, libtpu contacts a missing metadata server, prints errors, and allows no
# second process to compile.
_TPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_INSTALL = {"tpu": "pip install '.[tpu]'", "cuda": "pip install '.[cuda13]'"}
_GPUS_PER_HOST = 8


@dataclasses.dataclass(frozen=True)
class Chip:
    """The facts of an accelerator that its compiler requires.

    Attributes:
        platform: `tpu` or `cuda`.
        name: e.g. `v5e`.
        example: a topology, which is the dimensions of a TPU's torus, or a number of GPUs.
        memory_bytes: of a device, as available from its runtime.
        most: largest number of devices, for a TPU the size of its largest slice.
        name_of_device: name of the device, as CUDA reports it.
        capability: compute capability of a GPU.
        gpu: fields of a GPU in XLA's description.
    """

    platform: str
    name: str
    example: str
    memory_bytes: int
    most: int = 4096
    name_of_device: str = ""
    capability: Sequence[int] = (0, 0)
    gpu: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.platform}:{self.name}"


_SHEETS = tomllib.loads(pathlib.Path(__file__).with_name("chips.toml").read_text())
CHIPS = {
    (platform, name): Chip(platform, name, **sheet)
    for platform in _INSTALL
    for name, sheet in _SHEETS[platform].items()
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one type to compile for.

    Attributes:
        topology: the dimensions of a torus, or the number of GPUs.

    Raises:
        ConfigError: for more devices than the accelerator supports.
    """

    chip: Chip
    topology: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.count > self.chip.most:
            raise ConfigError("target", self, f"must have at most {self.chip.most} devices")

    @property
    def count(self) -> int:
        """Number of devices."""
        return math.prod(self.topology)

    def __str__(self) -> str:
        return f"{self.chip}:{'x'.join(map(str, self.topology))}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Reads e.g. `tpu:v5e:4x4` or `cuda:h100:8`.

        Raises:
            ConfigError: for another form, an unknown chip, or a topology that the chip does not
                have.
        """
        platform, name, topology = (*text.split(":", 2), "", "")[:3]
        chip = CHIPS.get((platform, name))
        if chip is None:
            known = ", ".join(f"{each}:{each.example}" for each in CHIPS.values())
            raise ConfigError("target", text, f"there are {known}, and other numbers of devices")
        sides = [int(word) if is_count(word) else 0 for word in topology.split("x")]
        if not all(sides) or len(sides) != len(chip.example.split("x")):
            remedy = f"write the number of devices as in {chip}:{chip.example}"
            raise ConfigError("target", text, remedy)
        return cls(chip, tuple(sides))

    def devices(self) -> list[Any]:
        """Returns the described devices, onto which programs can be lowered.

        Starts no accelerator.

        Raises:
            ConfigError: if their compiler is not installed, or refuses the topology.
        """
        from jax.experimental import topologies

        platform = self.chip.platform
        if platform == "cuda":
            hosts = 1 if self.count % _GPUS_PER_HOST else self.count // _GPUS_PER_HOST
            described: dict[str, Any] = {
                "target_config": gpu_description(self.chip),
                "topology": f"1x{hosts}x{self.count // hosts}",
            }
        else:
            described = {
                "topology_name": str(self).partition(":")[2],
                "chips_per_host_bounds": tuple(map(math.gcd, (*self.topology, 1, 1), (2, 2, 1))),
            }
        missing = {name: value for name, value in _TPU_SETTINGS.items() if name not in os.environ}
        try:
            with environment(missing):
                return list(topologies.get_topology_desc(platform=platform, **described).devices)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = one_line(error)[:200]
            remedy = f"JAX cannot describe it: {reason}; needs {_INSTALL[platform]}"
            raise ConfigError("target", self, remedy) from error


def gpu_description(chip: Chip) -> str:
    """Returns the description of a GPU for XLA's compiler, as text of the message
    `stream_executor.GpuTargetConfigProto`.
    """
    fields = _SHEETS["described"]["gpu"] | chip.gpu | {"device_memory_size": chip.memory_bytes}
    lines = "".join(f"  {name}: {value}\n" for name, value in fields.items())
    major, minor = chip.capability
    return (
        f"gpu_device_info {{\n{lines}"
        f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "{chip.name_of_device}"\n'
    )
