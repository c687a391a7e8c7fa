"""Finds the key of a step: a digest of everything that decides which program tracing it gives.

What is forgotten here would be a wrong program. So whole groups of things count, whether they matter or not: all settings but those
that are data of the step, all values that the step holds, all source files, all of JAX's configuration.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import os
import pathlib
import re
import site
import sys
import sysconfig
import time
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import jaxdp
from jaxdp import registry
from jaxdp.config.settings import Settings

# Data of the step, or matters of the host: the program is the same with others.
NOT_IN_PROGRAM = frozenset(
    "learning_rate lr_scaling schedule warmup_fraction epochs steps seed log_every eval_every checkpoint_every keep run_dir resume "
    "max_divergences profile step_timeout callbacks early_stop data_workers measure_devices".split()
)
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "opt_einsum", "scipy", "chex")
_ENVIRONMENT = ("JAX_", "JAXDP_", "XLA_", "LIBTPU_", "TPU_", "FLAX_", "OPTAX_", "NVIDIA_TF32_OVERRIDE")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), np.dtype, np.generic)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FOLDERS = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
_FOLDERS += [*site.getsitepackages(), site.getusersitepackages()]
_INSTALLED = tuple(os.path.join(os.path.realpath(folder), "") for folder in _FOLDERS)
# Rooms of jaxdp whose functions are traced.
_TRACED = tuple(f"jaxdp.{room}" for room in ("models", "ops", "step", "tasks", "sharding", "data.augment", "data.placement"))
_PACKAGE = pathlib.Path(jaxdp.__file__).parent
_CLOCK_SECONDS = 0.1  # by which the times of files may be behind


class Undecided(Exception):
    """Something takes part in a step of which it cannot be told whether it is the same as in another process."""


def program_key(*parts: Any) -> str:
    """Returns a digest of these values, of all code, of JAX's configuration and of the devices.

    Args:
        *parts: what a step consists of and is called with: settings, dataclasses, functions, plain values, and arrays, of which
            shape, format and sharding count.

    Raises:
        Undecided: if something in them has no content that can be compared, or code has changed since it was imported.
    """
    _check_unpatched()
    words = [*_code(), *_configuration()]
    _describe((_values_of_modules(), parts), words, {})
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


def _configuration() -> list[str]:
    from jax._src import config  # what JAX itself compares before it takes a trace for the same

    values = [f"{name}={value!r}" for name, value in sorted(jax.config.values.items())]
    context = [repr(config.trace_context()), repr(jax.sharding.get_abstract_mesh())]
    variables = [f"{name}={value!r}" for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)]
    devices = [f"{each.platform} {each.device_kind} {each.id} {each.client.platform_version}" for each in jax.devices()]
    return [_ADDRESS.sub("", word) for word in (*values, *context)] + [*variables, *devices]


def _code() -> list[str]:
    """Returns the versions of libraries, and digests of all source files that have to do with a step.

    These are jaxdp's own and those of every module that is not installed: scripts, plugins, their neighbours, libraries that
    someone is working on. Of plugins that are installed the dates of all installed modules stand for whatever they use.
    """
    versions = [f"{name} {_version(name)}" for name in _LIBRARIES]
    own = [(str(file.relative_to(_PACKAGE)), str(file)) for file in _PACKAGE.rglob("*.py")]
    if not own:
        raise Undecided("the source of jaxdp")  # in an archive
    others, installed = list[tuple[str, str]](), list[str]()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        name = getattr(getattr(module, "__spec__", None), "name", name)  # of what python -m runs, in place of __main__
        if not file or not os.path.isabs(file) or name.partition(".")[0] == "jaxdp":  # there are modules with an invented file
            continue
        file = os.path.realpath(file)
        others += [(name, file)] * (not file.startswith(_INSTALLED))
        installed += [file] * file.startswith(_INSTALLED)
    digests = [f"{name} {_digest(file, jaxdp.IMPORTED)}" for name, file in sorted(own)]
    digests += [f"{name} {_digest(file, _process_started())}" for name, file in sorted(others)]
    if any(_is_installed(name) for name in registry.registrants()):
        found = ((file, os.stat(file)) for file in sorted(installed))
        versions += [f"{file} {each.st_size} {each.st_mtime_ns}" for file, each in found]
    return [sys.version, str(sys.flags.optimize), *versions, *digests]


def _values_of_modules() -> list[Any]:
    """Returns what modules hold that a step may read: a script may have set it to something that no file tells.

    Of modules that are traced the plain values, and under which names they have which functions; of those that register something
    in addition to jaxdp all values.
    """
    found: list[Any] = []
    outside = {name for name in registry.registrants() if name.partition(".")[0] != "jaxdp"}
    for name, module in sorted(sys.modules.items()):
        if name not in outside and not name.startswith(_TRACED):
            continue
        for key, value in sorted(vars(module).items()):
            if inspect.isfunction(value) or isinstance(value, type):
                found.append((name, key, value.__module__, value.__qualname__))
            elif not key.startswith("__") and (name in outside or isinstance(value, _PLAIN)):
                found.append((name, key, value))
    return found


def _check_unpatched() -> None:
    """Raises Undecided where a function of jaxdp, or of a library that it traces, was replaced by one of a script or a test."""
    known = {"jaxdp", *_LIBRARIES}
    strange = {
        name
        for name, module in list(sys.modules.items())
        if not os.path.realpath(getattr(module, "__file__", None) or "").startswith(_INSTALLED)
    }
    strange = {name for name in strange if name.partition(".")[0] not in known} - {*sys.builtin_module_names}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in known or (top == "jaxdp" and not name.startswith(_TRACED)):
            continue
        for value in list(vars(module).values()):
            held = [value]
            if isinstance(value, type) and top in ("jaxdp", "flax", "optax"):
                held += vars(value).values()
            for each in held:
                if type(each) is types.FunctionType and each.__module__ in strange:
                    raise Undecided(f"{name} has {each.__qualname__} of {each.__module__}")


@functools.cache
def _process_started() -> float:
    """Returns when this process started, or at the latest when it imported jaxdp."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return min(time.time() - running, jaxdp.IMPORTED)
    return jaxdp.IMPORTED


def _is_installed(name: str) -> bool:
    """Whether a module is an installed one of somebody else.

    Raises:
        Undecided: if it has no file, as what was typed into a notebook.
    """
    if name.partition(".")[0] == "jaxdp":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if not file:
        raise Undecided(name)
    return os.path.realpath(file).startswith(_INSTALLED)


def _version(name: str) -> str:
    """Returns the version of a library, that which is imported rather than that which is installed."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__version__", "") or importlib.metadata.version(name)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _digest(file: str, imported: float) -> str:
    """Returns the digest of a source file; raises Undecided if it may be another one than was imported."""
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_ctime > imported - _CLOCK_SECONDS:
            raise Undecided(f"{file} has changed since it was imported")
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _describe(value: Any, words: list[str], seen: dict[int, Any]) -> None:
    """Adds words that are the same for the same value in another process, and others for any other value."""
    kind = type(value)
    if kind is str or isinstance(value, _PLAIN):  # a deep model has 100,000 of these
        words.append(f"{kind.__name__} {value!r}")
    elif isinstance(value, jax.Array | np.ndarray):
        words.append(_array(value))
    elif isinstance(value, tuple | list | Mapping | set | frozenset):
        words.append(f"{kind.__name__} of {len(value)}")
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        for item in value.items() if isinstance(value, Mapping) else value:
            _describe(item, words, seen)
    elif isinstance(value, jax.tree_util.PyTreeDef):
        _describe((value.node_data(), value.children()), words, seen)
    elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType) or _is_global(value):
        words.append(_name(value))
    elif isinstance(value, enum.Enum | jax.Device):
        words.append(f"{_name(kind)} {value!s}")
    elif id(value) in seen:
        words.append(f"again {seen[id(value)][0]}")
    else:
        seen[id(value)] = len(seen), value  # which is kept, so that no other gets its id
        words.append(_name(kind))
        _describe(_content(value), words, seen)


def _array(value: jax.Array | np.ndarray) -> str:
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}"
    devices = [each.id for each in value.sharding._device_assignment]
    return f"{value.shape} {value.dtype} {value.aval.weak_type} {value.sharding} {devices}"


def _content(value: Any) -> Any:
    """Returns what an object consists of; raises Undecided where that cannot be told."""
    if isinstance(value, Settings):
        return {name: each for name, each in value.flat().items() if name not in NOT_IN_PROGRAM}
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if inspect.isfunction(value):  # what it does is in a file, and what it does it with may not be
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return _name(value), value.__code__.co_firstlineno, value.__defaults__, value.__kwdefaults__, cells
    if callable(value) and (wrapped := getattr(value, "__wrapped__", None)) is not None:  # what jax.jit returned, for one
        return wrapped
    known = dataclasses.is_dataclass(value) or hasattr(value, "__dict__")
    if not known or type(value).__module__.partition(".")[0] == "jaxlib":
        raise Undecided(type(value))
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {field.name: getattr(value, field.name) for field in fields} | getattr(value, "__dict__", {})


def _is_global(value: Any) -> bool:
    """Whether it is a function that a module has under its own name: what is in the file decides about it."""
    return inspect.isfunction(value) and getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def _name(value: Any) -> str:
    """Returns the full name of something that a module defines; raises Undecided where no file decides about it."""
    module = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    known = sys.modules.get(module)
    made = isinstance(value, type) and "<locals>" in value.__qualname__  # from what a function was called with
    if made or (module not in sys.builtin_module_names and not getattr(known, "__file__", None)):
        raise Undecided(value)
    return f"{type(value).__name__} {module}.{getattr(value, '__qualname__', '')}"
