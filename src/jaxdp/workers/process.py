"""The process of a worker or a server, which Ray starts."""

import importlib
import os
from typing import Any

_ONE_THREAD = "xla_cpu_multi_thread_eigen"


def launch(ray: Any, kind: str, precision: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Starts a process, and returns its actor and a reference to what `Process.start` returns.

    Args:
        ray: the module, connected.
        kind: class of the object in the process, as MODULE:NAME.
        precision: format of the computation.
        *arguments: of the class.
        **options: of the actor.
    """
    actor = ray.remote(Process).options(**options).remote()
    return actor, actor.start.remote(kind, precision, os.getcwd(), *arguments)


class ServerLost(OSError):
    """A parameter server has died, and its share of the state with it."""

    def __init__(self) -> None:
        super().__init__("a parameter server has died")


def results(ray: Any, refs: list[Any]) -> list[Any]:
    """Returns what calls of processes return.

    Raises:
        ServerLost: if a call was to read what a server had, which has died.
        ray.exceptions.RayError: if a process that was called has died.
        Exception: that a call raised.
    """
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):
            raise ServerLost from error
        raise error.cause from error


class Process:
    """An object in a process of its own, which calls its methods one after the other.

    One thread computes, so that as many processes as cores do not disturb each other, and no result
    depends on the number of cores. XLA reads that when it starts: nothing before may compute.
    """

    def start(self, kind: str, precision: str, folder: str, *arguments: Any) -> dict[str, Any]:
        """Creates the object, and returns where this process is.

        Args:
            kind, precision, arguments: as for `launch`.
            folder: to work in, if this machine has it.
        """
        from jaxdp.runtime import platform

        if os.path.isdir(folder):
            os.chdir(folder)
        os.environ.update({"JAX_PLATFORMS": "cpu", "NPROC": "1", "PJRT_NPROC": "1"})
        flags = os.environ.get("XLA_FLAGS", "")
        if _ONE_THREAD not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} --{_ONE_THREAD}=false".strip()
        platform.configure(None, precision=precision)
        module, _, name = kind.partition(":")
        self._object = getattr(importlib.import_module(module), name)(*arguments)
        return {"pid": os.getpid(), "host": os.uname().nodename}

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object."""
        return getattr(self._object, method)(*arguments)
