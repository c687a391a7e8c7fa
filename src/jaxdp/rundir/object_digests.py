"""Computes digests of the values that a function or an optimizer object holds, with which a run
detects that it continues with others.
"""

import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

_DEEPEST = 20  # objects in objects


def digest(value: Any) -> str:
    """Returns the SHA-256 of the numbers, texts and arrays that an object holds in closures,
    defaults, partial arguments and attributes.

    The code itself is not part of it: files have digests of their own (`source_files`), except that
    of a function without a file, as in a notebook.
    """
    found = hashlib.sha256()
    for piece in _pieces(value, 0, set()):
        found.update(piece)
    return found.hexdigest()


def _pieces(value: Any, depth: int, seen: set[int]) -> Iterator[bytes]:
    """Yields a canonical description of an object; an object that was seen counts once."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
        return
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        yield f"{array.dtype}{array.shape}".encode() + array.tobytes()
        return
    if id(value) in seen or depth > _DEEPEST or isinstance(value, types.ModuleType | type):
        return
    seen.add(id(value))
    yield type(value).__qualname__.encode()
    for part in _parts(value):
        yield from _pieces(part, depth + 1, seen)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, nnx.Module):
        return jax.tree.leaves(nnx.to_pure_dict(nnx.state(value)))
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        code = value.__code__
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        own = [] if not code.co_filename.startswith("<") else [code.co_code, *code.co_consts]
        return [value.__qualname__, value.__defaults__, value.__kwdefaults__, *cells, *own]
    return [vars(value)] if hasattr(value, "__dict__") else []


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a function that its own definition has not reached
        return False
