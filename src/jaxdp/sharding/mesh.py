"""Creates the mesh of devices over all processes, and the shardings of arrays on it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Device = Any  # jax.Device, which type checkers read as a value

DATA_AXIS = "data"


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


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a replicated array."""
    return NamedSharding(mesh, PartitionSpec())


def split_over_data(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array over `data`, by its first dim."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))
