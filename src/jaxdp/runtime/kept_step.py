"""Keeps steps as they are after tracing and lowering, so that the next process which takes the same step does neither.

XLA's compiled program is in JAX's own cache, but JAX must trace and lower a step to know which program that is: with a hundred
layers most of the time before the first step. A step is kept as an artifact of `jax.export`, StableHLO in a FlatBuffer, from which
no Python is executed.
"""

import contextlib
import json
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.export

from jaxdp.runtime.private_folder import PrivateFolder
from jaxdp.runtime.program_key import Undecided, program_key

MOST_BYTES = 256 * 2**20  # a step takes 0.1-1 MB
_VARIABLE = "JAXDP_KEEP_STEPS"


class _Unknown(Exception):
    """A step is called with arguments of a structure that it has not been called with before."""


def keep(step: Callable[..., Any], *parts: Any, updates: bool) -> Callable[..., Any]:
    """Returns a step that is kept on the disk when it is first called, and taken from there by the next process.

    Results are the same bit for bit. Where a step cannot be kept, it is returned or called as it is.

    Args:
        step: what a transform returned. Its result is a dict of arrays, or with `updates` the new state and such a dict.
        *parts: everything that decides what it computes, besides its arguments.
        updates: whether it consumes its first argument, and returns another of the same structure, sharded alike.
    """
    folder = _folder()
    if folder is None or not are_kept() or not hasattr(step, "lower"):
        return step
    return KeptStep(step, parts, folder, updates=updates)


def are_kept() -> bool:
    """Whether this process keeps steps at all."""
    return _folder() is not None and jax.process_count() == 1


def _folder() -> pathlib.Path | None:
    """Returns where steps are kept, beside the compiled programs; None for nowhere."""
    values = jax.config.values
    place = values["jax_compilation_cache_dir"]
    off = os.environ.get(_VARIABLE, "").lower() in ("0", "false", "no", "off")
    if off or not place or "://" in place or not values["jax_enable_compilation_cache"]:
        return None
    # With these JAX does not run a program as it was traced.
    unusual = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks")
    return None if any(values.get(name) for name in unusual) else pathlib.Path(place, "steps")


class KeptStep:
    """A step that is exported or loaded when it is first called with arguments of one structure; see `keep`."""

    def __init__(self, step: Callable[..., Any], parts: tuple[Any, ...], folder: pathlib.Path, *, updates: bool) -> None:
        self._step, self._parts, self._updates = step, parts, updates
        self._files = PrivateFolder(folder, MOST_BYTES)
        self._exported: dict[Any, tuple[jax.export.Exported, list[str]]] = {}
        self._call: Any = ()  # until it is known
        self._loading: threading.Thread | None = None

    def load(self, *args: Any) -> None:
        """Begins to load the compiled program in the background, where an earlier process has kept the step.

        Args:
            *args: as it will be called with, but for their values.
        """
        with contextlib.suppress(Exception):  # the first call says it better
            found = self._read(self._key(args))
            if found is None or self._call:
                return
            self._exported[_signature(args)] = found
            call: Any = self._jitted(args)
            self._loading = threading.Thread(target=_compile, args=(call.lower(*args),))  # XLA leaves the interpreter's lock
            self._loading.start()
            self._call = call

    def __call__(self, *args: Any) -> Any:
        self._wait()
        if self._call:
            with contextlib.suppress(_Unknown):  # it comes from tracing: nothing has been executed
                return self._call(*args)
        try:
            self._prepare(args)
        except Exception:  # whatever it is, the step itself may do without, or say it better
            self._call = self._step
        return self._call(*args)

    def _wait(self) -> None:
        if self._loading is not None:
            self._loading.join()
            self._loading = None

    def _key(self, args: tuple[Any, ...]) -> str:
        leaves, structure = jax.tree.flatten(args)
        if not all(isinstance(leaf, jax.Array) and leaf.committed for leaf in leaves):
            raise Undecided("arguments that are not placed")
        return program_key(self._parts, structure, leaves, self._updates)

    def _prepare(self, args: tuple[Any, ...]) -> None:
        key = self._key(args)
        found = self._read(key)
        if found is None:
            found = self._export(args)
            self._files.write(key, json.dumps(found[1]).encode() + b"\n" + found[0].serialize())
        self._exported[_signature(args)] = found
        if not self._call:
            self._call = self._jitted(args)
        self._call.lower(*args)  # the call finds it

    def _read(self, key: str) -> tuple[jax.export.Exported, list[str]] | None:
        if (kept := self._files.read(key)) is None:
            return None
        names, _, artifact = kept.partition(b"\n")
        try:
            return jax.export.deserialize(bytearray(artifact)), json.loads(names)
        except Exception:  # a digest tells damage, but not what JAX makes of it
            return None

    def _export(self, args: tuple[Any, ...]) -> tuple[jax.export.Exported, list[str]]:
        leaves, structure = jax.tree.flatten(args)
        donated = range(len(jax.tree.leaves(args[0]))) if self._updates else ()
        names: list[str] = []

        def flat(*leaves: Any) -> list[Any]:
            result = self._step(*jax.tree.unflatten(structure, leaves))
            state, sums = result if self._updates else ((), result)
            if self._updates and jax.tree.structure(state) != jax.tree.structure(args[0]):
                raise Undecided("a state of another structure")
            names[:] = sorted(sums)
            return [*jax.tree.leaves(state), *(sums[name] for name in names)]

        return jax.export.export(jax.jit(flat, donate_argnums=tuple(donated)))(*leaves), names

    def _jitted(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            if (found := self._exported.get(_signature(args))) is None:
                raise _Unknown
            exported, names = found
            results = exported.call(*jax.tree.leaves(args))
            if not self._updates:
                return dict(zip(names, results, strict=True))
            structure = jax.tree.structure(args[0])
            state = results[: structure.num_leaves]
            return jax.tree.unflatten(structure, state), dict(zip(names, results[len(state) :], strict=True))

        everywhere = args[0].step.sharding  # of a number that all devices hold
        shardings = (jax.tree.map(lambda leaf: leaf.sharding, args[0]), everywhere) if self._updates else everywhere
        return jax.jit(step, donate_argnums=0 if self._updates else (), out_shardings=shardings)


def _compile(lowered: Any) -> None:
    with contextlib.suppress(Exception):  # the first call says it better
        lowered.compile()


def _signature(args: tuple[Any, ...]) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple((leaf.shape, leaf.dtype, leaf.aval.weak_type) for leaf in leaves)
