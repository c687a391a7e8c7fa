"""Which devices take part, over all processes, by which axes are they named, and where does an array lie on them?"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.registry import ConfigError, nearest

Device = Any  # jax.Device, which type checkers take for a value

DATA_AXIS, MODEL_AXIS, SPACE_AXIS = "data", "model", "space"
# In this order they lie over the devices: the processes follow each other along the first.
AXES = (DATA_AXIS, MODEL_AXIS, SPACE_AXIS)


def all_devices(local: Sequence[Device]) -> list[Device]:
    """Returns as many devices of every process as `local` has of this one, process by process: the order of the batch's slices."""
    return [device for process in range(jax.process_count()) for device in jax.local_devices(process)[: len(local)]]


def data_mesh(devices: Sequence[Device]) -> Mesh:
    return Mesh(np.array(devices), (DATA_AXIS,))


def named_mesh(devices: Sequence[Device], text: str | None) -> Mesh:
    """Returns a mesh over these devices, of all processes, with the axes of e.g. "data=4,model=2"; for None it has data alone.

    Raises:
        ConfigError: if the text does not fit the devices.
    """
    sizes = axis_sizes(text, len(devices))
    if sizes[DATA_AXIS] % jax.process_count():
        remedy = f"data must be a multiple of the {jax.process_count()} processes: each reads its own examples"
        raise ConfigError("mesh", text, remedy)
    return Mesh(np.array(devices).reshape([*sizes.values()]), tuple(sizes))


def axis_sizes(text: str | None, devices: int) -> dict[str, int]:
    """Reads e.g. "data=4,model=2"; the sizes must multiply to the number of devices. There always is an axis data.

    Raises:
        ConfigError: for text of another form, an unknown axis, or another number of devices.
    """
    if text is None:
        return {DATA_AXIS: devices}
    sizes: dict[str, int] = {}
    for word in text.split(","):
        name, separator, size = (part.strip() for part in word.partition("="))
        if not (separator and size.isascii() and size.isdecimal() and int(size)):
            raise ConfigError("mesh", text, "write AXIS=SIZE,AXIS=SIZE with sizes from 1, e.g. data=4,model=2")
        if name not in AXES:
            raise ConfigError("mesh", text, f"unknown axis {name!r}; {nearest(name, list(AXES))}")
        if name in sizes:
            raise ConfigError("mesh", text, f"names the axis {name} twice; give each once")
        sizes[name] = int(size)
    product = int(np.prod(list(sizes.values())))
    if product != devices:
        raise ConfigError("mesh", text, f"is for {product} devices and there are {devices}; the sizes must multiply to {devices}")
    return {name: sizes.get(name, 1) for name in AXES if name in sizes or name == DATA_AXIS}


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def split_over_data(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def split_batch(mesh: Mesh, dims: int) -> NamedSharding:
    """How an array of a batch lies on the mesh: examples over data; of what has rows and columns also the rows over space."""
    if dims >= 3 and SPACE_AXIS in mesh.axis_names:
        return NamedSharding(mesh, PartitionSpec(DATA_AXIS, SPACE_AXIS))
    return split_over_data(mesh)
