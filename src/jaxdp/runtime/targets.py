"""Accelerators to compile for where there are none: their data sheets, and the devices of a
topology that JAX describes.

JAX compiles for a TPU with libtpu and for a CUDA GPU with XLA's plug-in, from a description of the
machine. Devices made from one have no memory and run nothing: programs are lowered onto them and
compiled.

Sources of the figures: for TPUs Google's pages of each generation
(docs.cloud.google.com/tpu/docs/v5e, v5p and v6e), for GPUs NVIDIA's data sheets (A100 80GB SXM,
H100 SXM, H200 SXM) and the descriptions in openxla/xla, xla/backends/gpu/target_config/specs; for
networks between hosts DGX A100 and DGX H100. Peaks are those of dense matrices. docs/targets.md has
the table.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Mapping
from typing import Any

from jaxdp.registry import ConfigError
from jaxdp.runtime.platform import environment

_TERA, _GIGA = 1e12, 1e9
MOST_DEVICES = 4096  # devices; more than any figure here was tried with
# Without these libtpu asks a metadata server that is not there, complains about it, and lets no
# second process compile.
_TPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_INSTALL = {"tpu": "pip install 'jaxdp[tpu]'", "cuda": "pip install 'jaxdp[cuda13]'"}


@dataclasses.dataclass(frozen=True)
class Chip:
    """The data sheet of an accelerator.

    Attributes:
        name: e.g. `v5e`.
        platform: `tpu` or `cuda`.
        peak_flops: operations per second of matrix products, by the format of the computation.
            Float32 is multiplied as XLA does by default: in bfloat16 on a TPU, in TF32 on a GPU.
        memory_bytes: of a device, as its runtime gives it out.
        memory_bandwidth: bytes per second.
        link_bandwidth: bytes per second that a device sends over all its fast links (ICI, NVLink).
        network_bandwidth: bytes per second that a device sends to others that these links do not
            reach.
        linked: most devices that the fast links connect: a pod, or a host.
        dims: of a topology: 2 or 3 for the torus of a TPU, 1 for GPUs.
        cycles_per_second: of a TPU, for the cycles that its compiler estimates; None if that tells
            no time.
        gpu: of a GPU, what differs in XLA's description.
    """

    name: str
    platform: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    linked: int
    dims: int
    cycles_per_second: float | None = None
    gpu: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


def _tpu(name: str, teraflops: float, multiplications_per_cycle: int, **sheet: Any) -> Chip:
    """Returns a TPU, whose clock is that at which its matrix units reach the peak.

    Google does not state it.
    """
    cycles = teraflops * _TERA / (2 * multiplications_per_cycle)
    return Chip(
        name,
        "tpu",
        dict.fromkeys(("bfloat16", "float32", "float16"), teraflops * _TERA),
        cycles_per_second=cycles,
        **sheet,
    )


def _gpu(name: str, half: float, tf32: float, **sheet: Any) -> Chip:
    peaks = {"bfloat16": half * _TERA, "float16": half * _TERA, "float32": tf32 * _TERA}
    return Chip(name, "cuda", peaks, linked=8, dims=1, **sheet)


_HOPPER = {
    "capability": (9, 0),
    "core_count": 132,
    "fpus_per_core": 128,
    "clock_rate_ghz": 1.98,
    "l2_cache_size": 50 * 2**20,
    "shared_memory_per_core": 228 * 2**10,
    "shared_memory_per_block_optin": 227 * 2**10,
}
CHIPS = {
    (chip.platform, chip.name): chip
    for chip in (
        # Four matrix units of 128 x 128.
        _tpu(
            "v5e",
            197.0,
            4 * 128**2,
            memory_bytes=int(15.75 * 2**30),
            memory_bandwidth=819 * _GIGA,
            link_bandwidth=200 * _GIGA,
            network_bandwidth=6.4e12 / 8 / 256,
            linked=256,
            dims=2,
        ),
        # Two cores, which XLA drives as one, with four such units each.
        _tpu(
            "v5p",
            459.0,
            8 * 128**2,
            memory_bytes=95 * 2**30,
            memory_bandwidth=2765 * _GIGA,
            link_bandwidth=600 * _GIGA,
            network_bandwidth=50e9 / 8,
            linked=6144,
            dims=3,
        ),
        # The page says two matrix units of 256 x 256; XLA plans more products in a cycle than two
        # could do: taken as four.
        _tpu(
            "v6e",
            918.0,
            4 * 256**2,
            memory_bytes=32 * 10**9,
            memory_bandwidth=1638 * _GIGA,
            link_bandwidth=400 * _GIGA,
            network_bandwidth=4 * 200e9 / 8 / 8,
            linked=256,
            dims=2,
        ),
        _gpu(
            "a100",
            312.0,
            156.0,
            memory_bytes=85_100_068_864,
            memory_bandwidth=2039 * _GIGA,
            link_bandwidth=300 * _GIGA,
            network_bandwidth=25 * _GIGA,
            gpu={
                "capability": (8, 0),
                "core_count": 108,
                "fpus_per_core": 64,
                "clock_rate_ghz": 1.41,
                "l2_cache_size": 40 * 2**20,
                "shared_memory_per_core": 164 * 2**10,
                "shared_memory_per_block_optin": 163 * 2**10,
                "description": "NVIDIA A100-SXM4-80GB",
            },
        ),
        _gpu(
            "h100",
            989.4,
            494.7,
            memory_bytes=84_942_979_072,
            memory_bandwidth=3352 * _GIGA,
            link_bandwidth=450 * _GIGA,
            network_bandwidth=50 * _GIGA,
            gpu=_HOPPER | {"description": "NVIDIA H100 80GB HBM3"},
        ),
        _gpu(
            "h200",
            989.4,
            494.7,
            memory_bytes=151_397_597_184,
            memory_bandwidth=4800 * _GIGA,
            link_bandwidth=450 * _GIGA,
            network_bandwidth=50 * _GIGA,
            gpu=_HOPPER | {"description": "NVIDIA H200 141GB HBM3e"},
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind to compile for.

    Attributes:
        chip: the data sheet.
        topology: how they are connected: the sides of a torus, or the number of GPUs.
    """

    chip: Chip
    topology: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of devices."""
        return math.prod(self.topology)

    def __str__(self) -> str:
        return f"{self.chip.platform}:{self.chip.name}:{'x'.join(map(str, self.topology))}"

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Reads e.g. `tpu:v5e:4x4` or `cuda:h100:8`.

        Raises:
            ConfigError: for another form, an unknown chip, or a topology that it does not have.
        """
        platform, _, rest = text.partition(":")
        name, _, topology = rest.partition(":")
        chip = CHIPS.get((platform, name))
        if chip is None:
            raise ConfigError(
                "target", text, f"there are {', '.join(_examples())}, and other numbers of devices"
            )
        words = topology.split("x")
        if (
            not all(word.isascii() and word.isdecimal() and int(word) for word in words)
            or len(words) != chip.dims
        ):
            raise ConfigError("target", text, f"write the number of devices as in {example(chip)}")
        target = cls(chip, tuple(map(int, words)))
        if target.count > MOST_DEVICES:
            raise ConfigError(
                "target", text, f"has {target.count} devices; give at most {MOST_DEVICES}"
            )
        if platform == "tpu" and target.count > chip.linked:
            raise ConfigError(
                "target",
                text,
                f"has {target.count} chips, and a slice of {name} at most {chip.linked}",
            )
        return target

    def of_size(self, count: int) -> "Target":
        """Returns a target with so many devices of this chip, those of a torus nearly as long as
        wide.

        Raises:
            ConfigError: for a number of TPUs that is no power of 2.
        """
        if self.chip.dims == 1:
            return Target(self.chip, (count,))
        if count & (count - 1):
            raise ConfigError("devices", count, "slices of TPUs here have a power of 2 of chips")
        sides = [1] * self.chip.dims
        while math.prod(sides) < count:
            smallest = min(sides)
            places = [place for place, side in enumerate(sides) if side == smallest]
            sides[places[-1] if self.chip.dims == 2 else places[0]] *= 2
        return Target(
            self.chip, tuple(sorted(sides)) if self.chip.dims == 2 or count > 4 else tuple(sides)
        )

    def devices(self) -> list[Any]:
        """Returns the described devices, onto which programs can be lowered.

        No accelerator is started.

        Raises:
            ConfigError: where what compiles for them is not installed, or refuses the topology.
        """
        _check_installed(self.chip.platform)
        from jax.experimental import topologies

        try:
            if self.chip.platform == "cuda":
                hosts, each = (
                    (1, self.count) if self.count <= 8 or self.count % 8 else (self.count // 8, 8)
                )
                text = gpu_description(self.chip)
                described = topologies.get_topology_desc(
                    platform="cuda", target_config=text, topology=f"1x{hosts}x{each}"
                )
            else:
                sides = (*self.topology, 1, 1)[:3]
                bounds = tuple(
                    math.gcd(side, most) for side, most in zip(sides, (2, 2, 1), strict=True)
                )
                name = f"{self.chip.name}:{'x'.join(map(str, self.topology))}"
                with environment(
                    {
                        variable: value
                        for variable, value in _TPU_SETTINGS.items()
                        if variable not in os.environ
                    }
                ):
                    described = topologies.get_topology_desc(
                        platform="tpu", topology_name=name, chips_per_host_bounds=bounds
                    )
        except (RuntimeError, ValueError, NotImplementedError) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                "target",
                self,
                f"JAX cannot describe it: {said}; needs {_INSTALL[self.chip.platform]}",
            ) from error
        return list(described.devices)


def example(chip: Chip) -> str:
    """Returns a target of a chip, as text."""
    return f"{chip.platform}:{chip.name}:{ {1: '8', 2: '4x4', 3: '2x2x4'}[chip.dims] }"


def _examples() -> list[str]:
    return [example(chip) for chip in CHIPS.values()]


def _check_installed(platform: str) -> None:
    if platform == "tpu":
        found = importlib.util.find_spec("libtpu") is not None
    else:
        plugin = importlib.util.find_spec("jax_plugins")
        places = plugin.submodule_search_locations if plugin is not None else None
        found = any(
            name.startswith("xla_cuda") for place in places or () for name in _names_in(place)
        )
    if not found:
        raise ConfigError(
            "",
            "",
            f"--target {platform}:... compiles with what is not installed here:"
            f" {_INSTALL[platform]}",
        )


def _names_in(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def gpu_description(chip: Chip) -> str:
    """Returns a GPU as XLA's compiler wants it described, as text of the message
    `stream_executor.GpuTargetConfigProto`.
    """
    facts = dict(chip.gpu)
    major, minor = facts.pop("capability")
    name = facts.pop("description")
    common = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 2**10,
        "threads_per_core_limit": 2048,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "memory_bandwidth": int(chip.memory_bandwidth),
        "device_memory_size": chip.memory_bytes,
    }
    lines = [f"  {field}: {value}" for field, value in (common | facts).items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 patch: 0 }",
            f'device_description_str: "{name}"',
            "",
        ]
    )
