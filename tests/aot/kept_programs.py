"""Keeps what was found in a compiled program, so that another run of the session compiles only what
has changed.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from typing import Any

HERE = pathlib.Path(__file__).parent
# What decides about a program, beside the package: versions of JAX and of the compilers.
LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "libtpu",
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc",
)


@functools.cache
def _sources() -> bytes:
    """Returns a hash of the package, of the process that compiles, and of the versions of what it
    compiles with.
    """
    found = importlib.util.find_spec("jaxdp")
    package = pathlib.Path(str(found.origin)).parent if found is not None else HERE
    files = [*sorted(package.rglob("*.py")), HERE / "compile_worker.py", HERE / "hlo.py"]
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file.name}\0".encode() + file.read_bytes())
    for name in LIBRARIES:
        try:
            state.update(f"{name}={importlib.metadata.version(name)}\0".encode())
        except importlib.metadata.PackageNotFoundError:
            state.update(f"{name}\0".encode())
    return state.digest()


def _path(case: dict[str, Any]) -> pathlib.Path | None:
    # Programs for devices that are not there JAX does not keep.
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not folder:
        return None
    digest = hashlib.sha256(_sources() + json.dumps(case, sort_keys=True).encode()).hexdigest()
    return pathlib.Path(folder, "aot", f"{digest[:32]}.json")


def find(case: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what was found in the program of a case, None if that is to be compiled."""
    path = _path(case)
    return json.loads(path.read_text()) if path is not None and path.is_file() else None


def keep(case: dict[str, Any], found: dict[str, Any]) -> None:
    path = _path(case)
    if path is not None and "error" not in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(path)
