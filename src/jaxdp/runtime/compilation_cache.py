"""Chooses the folder in which JAX keeps compiled programs, and does not use a folder that other
users can change.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import stat
import sys
import warnings
from collections.abc import Mapping

from jaxdp.text.console import say_again

_SHORTEST = "jax_persistent_cache_min_compile_time_secs"
_LIMITS = {
    # In bytes, for all programs together; a step takes 1-10 MB. JAX removes the least recently used
    # programs.
    "jax_compilation_cache_max_size": 2 * 2**30,
    # Shorter compilations are not worth a file.
    _SHORTEST: 0.1,
}
_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
# The programs of a training run on a CPU have 700 to 4,400 memory maps (PyramidNet 8 and 110), and
# 100 maps take 5 MB. Linux allows 65,530 maps.
_MOST_MAPS = 10_000
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _Unusable(Exception):
    """The cache cannot be trusted. The text has the reason and the remedy."""


def enable() -> None:
    """Lets JAX keep compiled programs under the user's cache directory.

    Must be called before JAX compiles.

    JAX loads a compiled program, which is machine code, without a check. Therefore a folder that
    other users can change is not used, and one line on standard error reports this. Child processes
    inherit the choice. A `JAX_COMPILATION_CACHE_DIR` that the user set does not change, but also
    keeps programs that compile in less than a second, unless JAX is told otherwise.
    """
    if _VARIABLE in os.environ:
        # How large a folder of the user may become is up to the user.
        if os.environ[_VARIABLE] and _SHORTEST.upper() not in os.environ:
            set_options({_SHORTEST: _LIMITS[_SHORTEST]})
        return
    os.environ[_VARIABLE] = ""  # no cache, including in child processes
    try:
        folder = _private_folder()
    except (OSError, RuntimeError):
        return  # no home directory, or a read-only one; compiling again is the only cost
    except _Unusable as error:
        remedy = f"or set {_VARIABLE} to a folder that only you can write"
        say_again(f"jaxdp: compiled programs are not kept: {error}, {remedy}")
        return
    # A failing cache, for example on a full disk, costs only a compilation, so no warning is
    # printed.
    failure = "Error (reading|writing) persistent compilation cache|Cache value for key"
    warnings.filterwarnings("ignore", failure)
    limits = {name: value for name, value in _LIMITS.items() if name.upper() not in os.environ}
    set_options({_VARIABLE.lower(): str(folder), **limits})


def release_programs() -> None:
    """Clears all compiled programs of JAX if this process has many memory maps.

    Many training runs, e.g. of folds, then neither fill the memory nor exceed the limit of Linux.
    `jax.pmap` (0.10 to 0.12) keeps the programs of deleted functions. A program that is called
    again is compiled again, or read from the cache.
    """
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        import jax

        jax.clear_caches()


def set_options(options: Mapping[str, str | float]) -> None:
    """Sets options of JAX, whether or not it has been imported, and also for child processes."""
    os.environ.update({name.upper(): str(value) for name, value in options.items()})
    if "jax" in sys.modules:  # it read the environment when it was imported
        import jax

        for name, value in options.items():
            jax.config.update(name, value)


def _private_folder() -> pathlib.Path:
    """Returns the folder for programs of this kind of CPU, without unfinished files of killed
    processes.

    Machines with different CPUs may share a home directory, but a program runs only on one kind of
    CPU.

    Raises:
        _Unusable: if another user can have changed the folder or a parent of it.
        OSError: if the folder cannot be made or written.
        RuntimeError: if the user has no home directory.
    """
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # With links resolved, JAX opens exactly the folder that is checked here.
    folder = pathlib.Path(os.path.realpath(home / "jaxdp" / f"compiled-{_cpu_hash()}"))
    # Starts at the root. If all parents pass the check, only the user and root can exchange a
    # folder.
    for parent in reversed(folder.parents):
        _check_folder(parent, (os.geteuid(), 0), "correct that")
    _check_folder(folder, (os.geteuid(),), "remove it")
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _Unusable(f"other users can open {folder}; remove it")
    # Removes programs that a killed process left unfinished. JAX writes the time of use of a
    # program last, and stores no new program while that file is missing. A program that another
    # process is writing now is only compiled again.
    for program in folder.glob("*-cache"):
        if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
            program.unlink(missing_ok=True)
    return folder


def _check_folder(folder: pathlib.Path, owners: tuple[int, ...], remedy: str) -> None:
    """Creates a missing folder, and raises _Unusable for a folder that another user can change."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in owners:
        raise _Unusable(f"{folder} belongs to another user; {remedy}")
    # In a folder with the sticky bit, such as /tmp, only the owner of an entry can exchange it, and
    # the entry is checked next.
    if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
        raise _Unusable(f"other users can write {folder}; {remedy}")


def _cpu_hash() -> str:
    """Returns a digest that differs between CPUs with different instructions."""
    description = os.uname().machine.encode()
    with contextlib.suppress(OSError):  # Linux only
        text = pathlib.Path("/proc/cpuinfo").read_bytes()
        for pattern in (rb"model name.*", rb"flags.*"):
            description += b"".join(re.findall(rb"^" + pattern, text, re.MULTILINE)[:1])
    return hashlib.sha256(description).hexdigest()[:8]
