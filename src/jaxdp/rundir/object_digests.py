"""Computes digests of the values that a function or an optimizer object holds, with which a run
detects that it continues with others.
"""

import dataclasses
import functools
import hashlib
import os
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

_DEEPEST = 20  # objects in objects
_PLAIN = bool | int | float | complex | str | bytes | types.NoneType


def digest(value: Any) -> str:
    """Returns the SHA-256 of the numbers, texts and arrays that an object holds in closures,
    defaults, partial arguments and attributes.

    The code itself is not part of it: files have digests of their own (`source_files`), except that
    of a function without a file, as in a notebook.
    """
    found = hashlib.sha256()
    for piece in _pieces(value, 0, {}):
        found.update(f"{len(piece)}:".encode() + piece)
    return found.hexdigest()


def _pieces(value: Any, depth: int, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yields a canonical description of an object.

    Args:
        seen: number of each object that was described, by its address, and the object, so that the
            address stays its own.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "O":
        value = value.tolist()
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        yield f"{array.dtype}{array.shape}".encode() + array.tobytes()
    elif id(value) in seen:
        yield f"object {seen[id(value)][0]}".encode()
    elif depth < _DEEPEST and not isinstance(value, types.ModuleType | type):
        seen[id(value)] = len(seen), value
        parts = _parts(value)
        yield f"{type(value).__qualname__} {len(parts)}".encode()
        for part in parts:
            yield from _pieces(part, depth + 1, seen)


def _parts(value: Any) -> list[Any]:
    match value:
        case Mapping():
            return [part for pair in value.items() for part in pair]
        case set() | frozenset():
            return sorted(map(repr, value))
        case tuple() | list() | range():
            return list(value)
        case functools.partial():
            return [value.func, value.args, value.keywords]
        case types.MethodType():
            return [value.__func__, value.__self__]
        case types.CodeType():
            return [value.co_code, value.co_names, value.co_consts]
        case types.FunctionType():
            return _parts_of_function(value)
        case nnx.Module():
            plain = {name: each for name, each in vars(value).items() if isinstance(each, _PLAIN)}
            return [plain, *jax.tree.leaves(nnx.to_pure_dict(nnx.state(value)))]
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [vars(value)] if hasattr(value, "__dict__") else []


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    has_file = os.path.exists(function.__code__.co_filename)
    own = function.__qualname__ if has_file else function.__code__
    return [own, function.__defaults__, function.__kwdefaults__, *cells]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a function that its own definition has not reached
        return False
