"""Starts the process of a worker with Ray."""

import importlib
import os
from typing import Any

_ONE_THREAD = "xla_cpu_multi_thread_eigen"


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
    return actor, actor.start.remote(kind, precision, os.getcwd(), *arguments)


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

    One thread computes, so that one process per core does not disturb the others, and no result
    depends on the number of cores. XLA reads this setting when it starts, so nothing may compute
    before.
    """

    def start(self, kind: str, precision: str, folder: str, *arguments: Any) -> dict[str, Any]:
        """Creates the object, and returns the location of this process.

        Args:
            kind, precision, arguments: as for `launch`.
            folder: working folder, if this machine has it.
        """
        from jaxdp.runtime import platform

        if os.path.isdir(folder):
            os.chdir(folder)
        os.environ["JAX_PLATFORMS"] = "cpu"
        platform.configure(None, precision=precision, strategy="exact")
        module, _, name = kind.partition(":")
        self._object = getattr(importlib.import_module(module), name)(*arguments)
        return {"pid": os.getpid(), "host": os.uname().nodename}

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object."""
        return getattr(self._object, method)(*arguments)
