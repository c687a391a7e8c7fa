"""Gives JAX's CPU backend what it lacks where several processes run: an address that others reach,
a cache of programs for each.

Both are reached through names of JAX that are not public. Where a version has other ones, the
backend is as JAX makes it.
"""

import contextlib
import inspect
from typing import Any


def announce(address: str) -> None:
    """Lets other processes reach this one's CPU devices at an address of this host.

    Call it before JAX starts its backends.

    Without it Gloo, which connects them, announces what the host's own name stands for, in Debian a
    loopback address. JAX has no setting for the host name that the collectives take.
    """
    import jax
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]
    from jax.extend import backend

    settings: Any = jax.config
    if not address or settings.jax_cpu_collectives_implementation != "gloo":
        return
    if "collectives" not in inspect.signature(xla_bridge.make_cpu_client).parameters:
        return

    def create_client() -> Any:
        client = distributed.global_state.client
        try:
            collectives = _jax.make_gloo_tcp_collectives(
                distributed_client=client, hostname=address
            )
        except (AttributeError, TypeError):  # of another version
            return xla_bridge.make_cpu_client()
        return xla_bridge.make_cpu_client(collectives=collectives)

    backend.register_backend_factory("cpu", create_client, priority=0, fail_quietly=False)


def keep_programs_of_every_process() -> None:
    """Lets each process write what it compiles for a CPU to the cache of compiled programs, if
    there is one.

    JAX writes what process 0 compiles. That serves all processes on a GPU; on a CPU the key of a
    program depends on the process, and only process 0 would ever find one.
    """
    import jax
    from jax._src import compilation_cache, compiler

    settings: Any = jax.config
    write = getattr(compiler, "_cache_write", None)
    put = getattr(compilation_cache, "put_executable_and_time", None)
    if write is None or put is None:
        return
    signature = inspect.signature(write)
    if not {"cache_key", "compile_time_secs", "module_name", "backend", "executable"} <= set(
        signature.parameters
    ):
        return

    def write_own(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        seconds = given["compile_time_secs"]
        if (
            given["backend"].platform != "cpu"
            or given.get("host_callbacks")
            or jax.process_index() == 0
        ):
            write(*args, **kwargs)
        elif seconds >= settings.jax_persistent_cache_min_compile_time_secs:
            with contextlib.suppress(Exception):  # compiling again is all that it costs
                put(
                    given["cache_key"],
                    given["module_name"],
                    given["executable"],
                    given["backend"],
                    int(seconds),
                )

    compiler._cache_write = write_own
