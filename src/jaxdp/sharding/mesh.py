"""Creates the mesh of devices over all processes, and the shardings of arrays on it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.errors import ConfigError
from jaxdp.text.parsing import is_count

Device = Any  # jax.Device, which type checkers read as a value

DATA_AXIS, SPACE_AXIS = "data", "space"
# Devices are laid out in this order of axes. The processes follow each other along the first axis.
AXES = (DATA_AXIS, SPACE_AXIS)


def all_devices(local: Sequence[Device]) -> list[Device]:
    """Returns the same number of devices of each process as `local` has, process by process.

    This is the order of the slices of the batch.
    """
    if jax.process_count() == 1:
        return list(local)  # which may be devices only for compilation
    return [
        device
        for process in range(jax.process_count())
        for device in jax.local_devices(process)[: len(local)]
    ]


def data_mesh(devices: Sequence[Device]) -> Mesh:
    """Returns a mesh over these devices with the axis `data` only."""
    return Mesh(np.array(devices), (DATA_AXIS,))


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """The sizes of the axes of a mesh, as in `--mesh`.

    Attributes:
        data: number of shards of the batch.
        space: number of shards of an image's rows; None without this axis.
    """

    data: int = 1
    space: int | None = None

    @classmethod
    def parse(cls, text: str | None, devices: int) -> "MeshShape":
        """Reads e.g. "data=4,space=2". None means `data` alone.

        Args:
            text: the axes and their sizes, which must multiply to the number of devices.
            devices: number of devices of all processes.

        Raises:
            ConfigError: for text of another form, an unknown axis, or another number of devices.
        """
        if text is None:
            return cls(devices)
        sizes: dict[str, int] = {}
        for word in text.split(","):
            name, _, size = (part.strip() for part in word.partition("="))
            if name not in AXES or name in sizes or not is_count(size) or int(size) == 0:
                remedy = "write data=N,space=N, or one of the two, with numbers from 1"
                raise ConfigError("mesh", text, remedy)
            sizes[name] = int(size)
        if (product := math.prod(sizes.values())) != devices:
            remedy = f"is for {product} devices and there are {devices}; the sizes must multiply to"
            raise ConfigError("mesh", text, f"{remedy} {devices}")
        return cls(**sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the existing axes by name, in the order of `AXES`."""
        return {name: size for name, size in vars(self).items() if size is not None}

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes.items())

    def over(self, devices: Sequence[Device]) -> Mesh:
        """Returns a mesh of this shape over the devices of all processes.

        Raises:
            ConfigError: if the processes do not divide the axis `data`.
        """
        count = jax.process_count()
        if self.data % count:
            remedy = (
                f"data must be a multiple of the {count} processes: each reads its own examples"
            )
            raise ConfigError("mesh", self, remedy)
        return Mesh(np.array(devices).reshape([*self.sizes.values()]), tuple(self.sizes))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a replicated array."""
    return NamedSharding(mesh, PartitionSpec())


def split_over_data(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array over `data`, by its first dim."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def split_batch(mesh: Mesh, dims: int) -> NamedSharding:
    """Returns the sharding of an array of a batch: examples over `data`, rows over `space`.

    Args:
        mesh: the mesh. Without the axis `space`, rows are not sharded.
        dims: number of dims of the array: (batch, rows, columns, ...) from 3 on.
    """
    if dims >= 3 and SPACE_AXIS in mesh.axis_names:
        return NamedSharding(mesh, PartitionSpec(*AXES))
    return split_over_data(mesh)
