"""Reads one checkpoint: its arrays whole, in parts or of the model alone, and its position."""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxdp.errors import ConfigError
from jaxdp.step.state import TrainState, array_name

Position = dict[str, Any]  # plain values: the position of a run, and the counters of its loop
# In addition to the position, if processes of version 0.2 wrote padded shards.
SHAPES = "shapes_without_padding"
SETTINGS = "settings"  # in the position: the settings that a run keeps when it continues


@functools.cache
def orbax() -> Any:  # its annotations reject arguments that it accepts
    """Returns Orbax, which is imported when required, because a run without a folder does not
    require it.
    """
    from orbax.checkpoint import v1

    return v1


class _OrbaxErrors(logging.Filter):
    """Drops Orbax's log of its phases and of each error that it also raises, and keeps the error of
    a save in the background.

    Before Orbax raises this error, it waits for the other processes, for twenty minutes if their
    saves have also failed.
    """

    background: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName == "async_save" and record.exc_info:
            self.background = record.exc_info[1]
        return False


orbax_errors = _OrbaxErrors()


@dataclasses.dataclass(frozen=True)
class Stored:
    """The metadata of a checkpoint, before its arrays are read.

    Attributes:
        leaves: shapes, padding included, and dtypes by name.
        shapes: without padding.
    """

    path: pathlib.Path
    leaves: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    position: Position

    @classmethod
    def of(cls, path: pathlib.Path) -> "Stored":
        found = orbax().metadata(path)
        position = dict(found.custom_metadata or {})
        unpadded = position.pop(SHAPES, {})
        position.pop(SETTINGS, None)
        shapes = {
            name: tuple(unpadded.get(name, leaf.shape)) for name, leaf in found.metadata.items()
        }
        return cls(path, found.metadata, shapes, position)

    def load(self, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
        """Reads the arrays with these names, whole and without padding."""
        # As NumPy, because Orbax would place arrays from devices on devices again.
        wanted = {
            name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for name, leaf in self.leaves.items()
            if is_wanted(name)
        }
        context = orbax().Context()
        context.pytree.loading.partial_load = True
        with context:
            arrays = orbax().load(self.path, wanted)
        return {
            name: np.asarray(array[tuple(map(slice, self.shapes[name]))], order="C")
            for name, array in arrays.items()
        }

    def load_parts(self, parts: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Reads the arrays onto the devices of their shardings."""
        context = orbax().Context()
        # Removes the padding of version 0.2.
        context.array.loading.enable_padding_and_truncation = True
        wanted = {
            name: jax.ShapeDtypeStruct(part.shape, self.leaves[name].dtype, sharding=part.sharding)
            for name, part in parts.items()
        }
        with context:
            return orbax().load(self.path, wanted)

    def check_fit(self, like: TrainState) -> None:
        """Raises ConfigError if names, shapes or dtypes differ from `like`, for which the step was
        compiled.
        """
        expected = flatten(like)
        wrong = sorted(self.shapes.keys() ^ expected.keys())
        shared = [name for name in expected if name in self.shapes]
        wrong += [name for name in shared if self.shapes[name] != np.shape(expected[name])]
        differing = [
            f"{name} {self.leaves[name].dtype}, expected {expected[name].dtype}"
            for name in shared
            if self.leaves[name].dtype != expected[name].dtype
        ]
        problem = f"{len(differing)} of another dtype: {differing[0]}" if differing else ""
        if wrong:
            problem = f"{len(wrong)} arrays differ, e.g. {wrong[0]}"
        if problem:
            raise misfit(int(self.path.name), "this model and optimizer", problem)


def misfit(step: int, what: str, problem: str) -> ConfigError:
    """Returns the error for a checkpoint with other arrays than a state."""
    return ConfigError("resume", step, f"the checkpoint does not fit {what}: {problem}")


def flatten(state: TrainState) -> dict[str, Any]:
    """Returns the leaves of a state by the names that they have in a checkpoint."""
    return {array_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def unflatten(like: TrainState, leaves: Mapping[str, Any]) -> TrainState:
    """Returns leaves by name in the structure of a state."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [leaves[array_name(path)] for path, _ in paths])
