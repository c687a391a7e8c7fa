"""Starts the process of a worker with Ray."""

import importlib
import os
from typing import Any

from jaxdp.runtime import platform


def launch(ray: Any, kind: str, precision: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Starts a process, and returns its actor and a reference to the result of `Process.start`.

    Args:
        ray: the module, connected.
        kind: class of the object in the process, as MODULE:NAME.
        precision: format of the computation.
        *arguments: of the class.
        **options: of the actor.
    """
    actor = ray.remote(Process).options(**options).remote()
    threads = str(platform.threads())
    return actor, actor.start.remote(kind, precision, os.getcwd(), threads, *arguments)


def result_of(ray: Any, call: Any) -> Any:
    """Returns the result of a call of a process.

    Raises:
        ray.exceptions.RayError: if the process has died, or could not read its arguments.
        Exception: the exception of the call.
    """
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


class Process:
    """An object in its own process, which calls its methods one after the other.

    XLA has as many threads as in the process that starts it, because bits depend on their number.
    XLA reads this setting when it starts, so nothing may compute before.
    """

    def start(
        self, kind: str, precision: str, folder: str, threads: str, *arguments: Any
    ) -> dict[str, Any]:
        """Creates the object, and returns the location of this process.

        Args:
            kind, precision, arguments: as for `launch`.
            folder: working folder, if this machine has it.
            threads: number of XLA's threads.
        """
        if os.path.isdir(folder):
            os.chdir(folder)
        os.environ.update({"JAX_PLATFORMS": "cpu", "NPROC": threads, "PJRT_NPROC": threads})
        platform.configure(None, precision=precision)
        module, _, name = kind.partition(":")
        self._object = getattr(importlib.import_module(module), name)(*arguments)
        return {"pid": os.getpid(), "host": os.uname().nodename}

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object."""
        return getattr(self._object, method)(*arguments)
