"""Which devices take part, over all processes, and where does an array lie on them?"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Device = Any  # jax.Device, which type checkers take for a value

DATA_AXIS = "data"


def all_devices(local: Sequence[Device]) -> list[Device]:
    """Returns as many devices of every process as `local` has of this one, process by process: the order of the batch's slices."""
    return [device for process in range(jax.process_count()) for device in jax.local_devices(process)[: len(local)]]


def data_mesh(devices: Sequence[Device]) -> Mesh:
    return Mesh(np.array(devices), (DATA_AXIS,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def split_over_data(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))
