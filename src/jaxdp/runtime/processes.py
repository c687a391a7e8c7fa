"""Connects the processes of a run, synchronizes their compilation, and ends a process that
fails.
"""

import contextlib
import functools
import itertools
import os
import re
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Generator
from typing import Any

from jaxdp.cli import streams
from jaxdp.cli.exit_codes import EXIT_USAGE_ERROR
from jaxdp.config import ProcessConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import clusters, coordinator, cpu_backend
from jaxdp.runtime.free_memory import check_memory
from jaxdp.runtime.group import Group, runtime_state
from jaxdp.text.console import say_again
from jaxdp.text.flags import for_command
from jaxdp.text.messages import one_line

PROG = "jaxdp.train"
# Texts of errors that are usually caused by the death of another process.
_LOSS = re.compile("Gloo .* failed|NCCL|by peer")
_LOST = "another process died or cannot be reached; the same command continues"
_runs = itertools.count()  # of this process, because the keys of two runs must differ
_MARGIN_SECONDS = 60  # by which JAX waits longer for the others than this process
# The variables in which a script finds its place among the processes of a run.
LAUNCHED = ("JAXDP_COORDINATOR", "JAXDP_NUM_PROCESSES", "JAXDP_PROCESS_ID")
_EXPLICIT = ("coordinator", "num_processes", "process_id")
_group = Group()
_has_announced = False  # the addresses of the processes to each other
_compiled: Any = weakref.WeakKeyDictionary()  # shapes for which each function was compiled


def start(config: ProcessConfig) -> Group:
    """Connects this process with the others, if there are any.

    Must be called before the first JAX computation.

    Raises:
        ConfigError: if settings and cluster do not determine the index of this process, or if the
            coordinator cannot be reached.
    """
    global _group
    _group = _connect(config)
    return _group


def join_launched() -> None:
    """Connects a script that `jaxdp.launch` has started, before the script uses JAX."""
    _join(_take_place(), None)


def _take_place() -> ProcessConfig:
    """Returns the place that `jaxdp.launch` gives a script in its environment, and removes it from
    there: a process that the script starts has another.
    """
    address, count, index = (os.environ.pop(variable) for variable in LAUNCHED)
    return ProcessConfig(coordinator=address, num_processes=int(count), process_id=int(index))


def compile_then_barrier(function: Any, *args: Any) -> Any:
    """Calls a step that all processes call. After compilation, all processes wait for each other.

    One process may find a program in the cache that another process compiles for minutes, and
    communication fails after 30 seconds (XLA's Gloo).

    Args:
        function: the result of `jax.jit` or `jax.pmap`. Any other function is only called.
        *args: the state, which always has the same shapes, and further arguments.

    Raises:
        TooLarge: if a CPU does not have the memory.
    """
    if hasattr(function, "lower"):
        import jax

        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(args[1:]))
        if shapes not in (known := _compiled.setdefault(function, set())):
            program = function.lower(*args).compile()  # the call finds it
            if jax.default_backend() == "cpu":  # Linux would end the process
                sharing = len(jax.tree.leaves(args)[0].sharding.addressable_devices)
                check_memory(sharing * program.memory_analysis().temp_size_in_bytes)
            _group.barrier()
            known.add(shapes)
    return function(*args)


def notify_peers_of_exit(
    error: BaseException, code: int, message: str | None, prog: str = PROG
) -> None:
    """Reports to the other processes why this process ends, and ends it at once. Returns if this
    process is the only one.

    A normal exit would hang, because JAX would wait for the others, which wait for this process.

    Args:
        message: None to print a traceback.
    """
    if _group.count == 1:
        return
    try:
        if _follows_from_a_loss(error):
            code, message = 1, f"{_LOST} after the last checkpoint"
            with contextlib.suppress(Exception):  # process 0 may be the process that is gone
                for index, left in _group.exit_reasons().items():
                    message = f"{_group.members[index]} has left: {left['message']}"
                    break
        _group.post_exit_reason(message or f"{type(error).__name__}: {error}", code)
        if message is None:
            traceback.print_exception(error)
        else:
            print(f"{prog}: error: {message}", file=sys.stderr, flush=True)
    finally:
        _group.leave(code)


def _follows_from_a_loss(error: BaseException | None) -> bool:
    """Returns whether an error, or one of its causes, is usually caused by the death of another
    process.
    """
    while error is not None:
        if _LOSS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _connect(config: ProcessConfig) -> Group:
    import jax

    if not jax.distributed.is_initialized():
        missing = [name for name in _EXPLICIT if getattr(config, name) is None]
        if config.distributed == "off":
            return Group()
        if 0 < len(missing) < len(_EXPLICIT):
            raise ConfigError(missing[0], "", f"is missing; {clusters.EXPLICIT} together")
        cluster = clusters.detect() if missing else None
        if config.num_processes == 1 or (config.distributed == "auto" and missing and not cluster):
            return Group()
        if missing and not cluster:
            remedy = (
                "no Slurm step, Open MPI job, Kubernetes indexed job or TPU pod was detected; give"
                f" {flag('coordinator', 'HOST:PORT')}"
            )
            raise ConfigError("distributed", "on", remedy)
        _join(config, cluster)
    elif not _has_announced:  # another program has connected the processes
        _announce(config)
    group = Group(jax.process_index(), jax.process_count(), _prefix=f"jaxdp/{next(_runs)}")
    if group.count > 1:
        group.members = tuple(f"process {index}" for index in range(group.count))
        me = f"process {group.index} (pid {os.getpid()} on {socket.gethostname()})"
        group.members = tuple(group.all_gather_text("members", me, config.distributed_timeout))
    return group


def _join(config: ProcessConfig, cluster: str | None) -> None:
    """Connects the processes, before `jax.process_index` starts the CPU's backend."""
    _initialize(config, cluster)
    _announce(config)


def _announce(config: ProcessConfig) -> None:
    global _has_announced
    _has_announced = True
    state = runtime_state()
    members = tuple(f"process {index}" for index in range(state.num_processes))
    start = Group(state.process_id, state.num_processes, members, _prefix="jaxdp/start")
    gather = functools.partial(
        start.all_gather_text, "addresses", timeout_seconds=config.distributed_timeout
    )
    cpu_backend.announce(state.coordinator_address, gather)


def _initialize(config: ProcessConfig, cluster: str | None) -> None:
    """Connects the processes by the settings, or by JAX's detection of a cluster."""
    import jax

    explicit: dict[str, Any] = {}
    if cluster is None:
        explicit = {
            "coordinator_bind_address": coordinator.check(config),
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
        }
    # JAX's own handler would swallow SIGTERM. The flag that the loop checks works for one process
    # and for many.
    jax.config.update("jax_enable_preemption_service", False)
    streams.keep_libraries_out()
    if config.process_id == 0:
        seconds = f"up to {config.distributed_timeout:g} s"
        say_again(f"waiting {seconds} for {config.num_processes} processes")
    try:
        with _ending_after(config.distributed_timeout, cluster):
            jax.distributed.initialize(
                **explicit,
                initialization_timeout=round(config.distributed_timeout + _MARGIN_SECONDS),
                heartbeat_timeout_seconds=round(config.heartbeat_timeout),
                shutdown_timeout_seconds=round(config.distributed_timeout),
            )
    except Exception as error:  # JAX raises any exception of reading the cluster's variables
        if cluster is None:
            raise
        reason = one_line(f"{type(error).__name__}: {error}")
        remedy = (
            f"{cluster} was detected, but JAX cannot connect its processes ({reason});"
            f" {clusters.ALTERNATIVES}"
        )
        raise ConfigError("distributed", config.distributed, remedy) from error


@contextlib.contextmanager
def _ending_after(seconds: float, cluster: str | None) -> Generator[None]:
    """Ends this process with one line if the block takes longer, because JAX, which waits in the
    block for the other processes, would abort this process.
    """

    def end() -> None:
        remedy = f"not all processes have connected; {clusters.start_all(cluster)}"
        error = ConfigError("distributed_timeout", f"{seconds:g}", remedy)
        print(f"{PROG}: error: {for_command(error)}", file=sys.stderr, flush=True)
        os._exit(EXIT_USAGE_ERROR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
