"""Connects the processes of a run, and lets each learn what the others do.

JAX's distributed runtime connects them and notices when one dies. Its key-value store, on process
0, carries the rest: the settings, the progress of each process, who asked to stop, why one left.
Nothing here computes on a device by itself.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from jaxdp.config import ProcessConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import clusters, coordinator, cpu_backend, native_output

PROG = "jaxdp.train"
_GRACE_SECONDS = 3.0  # for the others to read why process 0 leaves: the store ends with it
_runs = itertools.count()  # of this process: the keys of two runs must differ
_heartbeat_timeout = 0.0
# So many processes ask after every step: process 0 answers some thousand questions a second.
_ASKING = 64
_NO_LIMIT_MILLISECONDS = 7 * 24 * 3600 * 1000


@dataclasses.dataclass
class Group:
    """The processes of a run, this one among them.

    Attributes:
        members: the name of each process in messages, e.g. "process 1 (pid 77 on node-b)".
    """

    index: int = 0
    count: int = 1
    members: tuple[str, ...] = ("process 0",)
    _stop_step: int | None = None
    _asked: int = 0  # the last step after which it was time to ask whether to stop
    _prefix: str = ""
    _meetings: int = 0

    def put(self, key: str, value: str, *, overwrite: bool = True) -> None:
        _client().key_value_set(f"{self._prefix}/{key}", value, allow_overwrite=overwrite)

    def get(self, key: str) -> str | None:
        try:
            return _client().key_value_try_get(f"{self._prefix}/{key}")
        except Exception as error:  # the runtime's only class of errors; a missing key is one
            if "NOT_FOUND" in str(error):
                return None
            raise

    def get_all(self, name: str) -> dict[int, str]:
        """Returns what the processes have put at `name/INDEX` so far, by index."""
        found = _client().key_value_dir_get(f"{self._prefix}/{name}/")
        return {int(key.rpartition("/")[2]): value for key, value in found}

    def meet(self) -> None:
        """Waits until all processes are here, which all must call equally often.

        One that dies meanwhile ends the others.
        """
        if self.count > 1:
            self._meetings += 1
            _client().wait_at_barrier(
                f"{self._prefix}/meeting/{self._meetings}", _NO_LIMIT_MILLISECONDS
            )

    def leave_word(self, message: str, *, hangs: bool = False) -> None:
        """Tells the other processes why this one leaves, if they can still be reached."""
        with contextlib.suppress(Exception):
            self.put(
                f"left/{self.index}",
                json.dumps({"message": message, "hangs": hangs}),
                overwrite=False,
            )

    def last_words(self) -> dict[int, dict[str, Any]]:
        """Returns why the other processes that have left did so, by index."""
        return {
            index: json.loads(text)
            for index, text in self.get_all("left").items()
            if index != self.index
        }

    def exchange(self, name: str, value: str, timeout_seconds: float) -> list[str]:
        """Puts this process's value and returns that of each process; waits for all.

        Raises:
            ConfigError: if one does not put its value in time.
        """
        if self.count == 1:
            return [value]
        self.put(f"{name}/{self.index}", value)
        try:
            # Then one answer holds them all: process 0 could not answer N questions of each of N
            # processes.
            _client().wait_at_barrier(f"{self._prefix}/{name}", int(timeout_seconds * 1000))
        except Exception as error:
            there = self.get_all(name)
            missing = next((index for index in range(self.count) if index not in there), None)
            if missing is None:
                raise
            remedy = (
                f"timed out after {timeout_seconds:g} s waiting for {self.members[missing]} to send"
                f" {name!r}; see its output"
            )
            raise ConfigError("distributed_timeout", timeout_seconds, remedy) from error
        values = self.get_all(name)
        return [values[index] for index in range(self.count)]

    def stops_at(self, step: int, *, wanted: bool, margin: int) -> bool:
        """Whether to stop after this step; all processes give the same answer at the same step.

        The one that is asked to stop names a step that no other can have passed: none can be more
        than `margin` - 1 steps ahead of the slowest, because it waits for results that take all
        processes.
        """
        if self.count == 1:
            return wanted
        # All see the same steps, so that all ask at the same ones, of which the step that is named
        # is one.
        every = 1 + self.count // _ASKING
        due = every == 1 or step // every > self._asked // every
        self._asked = step
        if self._stop_step is None and (due or wanted):
            named = self.get("stop")
            if named is None and wanted:
                with contextlib.suppress(Exception):  # another process was first
                    self.put("stop", str(-(-(step + margin) // every) * every), overwrite=False)
                named = self.get("stop")
            self._stop_step = int(named) if named is not None else None
        return self._stop_step is not None and step >= self._stop_step

    def check_equal(self, what: dict[str, Any], timeout_seconds: float) -> None:
        """Checks that all processes are about to do the same.

        Raises:
            ConfigError: for the first difference, with the name of the other process.
        """
        own = json.dumps(what, default=str)
        self.put(f"checked/{self.index}", own)
        digest = hashlib.sha256(own.encode()).hexdigest()
        digests = self.exchange("checks", digest, timeout_seconds)
        for index in (index for index in range(self.count) if digests[index] != digest):
            theirs = json.loads(self.get(f"checked/{index}") or "{}")
            for name, ours in json.loads(own).items():
                if theirs.get(name) != ours:
                    other = self.members[index]
                    remedy = (
                        f"differs between processes: {other} has {theirs.get(name)!r}; start all"
                        " with the same"
                    )
                    raise ConfigError(name, ours, remedy)


_group = Group()
_compiled: set[tuple[Any, ...]] = set()


def start(config: ProcessConfig) -> Group:
    """Connects this process with the others, if there are any.

    Call it before the first JAX computation.

    Raises:
        ConfigError: if the settings or the cluster do not tell which process this is, or the
            coordinator cannot be reached.
    """
    global _group, _heartbeat_timeout
    _heartbeat_timeout = config.heartbeat_timeout
    _group = _start(config)
    return _group


def call_together(function: Any, *args: Any) -> Any:
    """Calls a step that all processes call: where it is compiled for these arguments, all wait for
    each other before it runs.

    One process may find in the cache what another compiles for minutes, and communication fails
    after 30 seconds (XLA's Gloo).

    Args:
        function: what `jax.jit` or `jax.pmap` returned; anything else is only called.
        *args: the state, which always has the same shapes, and others.
    """
    if _group.count > 1 and hasattr(function, "lower"):
        import jax

        shapes = (function, *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(args[1:])))
        if shapes not in _compiled:
            function.lower(*args).compile()  # the call finds it
            _group.meet()
            _compiled.add(shapes)
    return function(*args)


def leave(error: BaseException, code: int, message: str | None, prog: str = PROG) -> None:
    """Ends this process at once, if it is one of several, and tells the others why.

    Does nothing otherwise.

    A normal exit would hang, since JAX waits for the others there, and they wait for this one.

    Args:
        message: None to print a traceback.
    """
    if _group.count == 1:
        return
    try:
        if any(
            type(each).__name__ == "JaxRuntimeError" or "by peer" in str(each)
            for each in _causes(error)
        ):
            # An error in a step or while saving is most often due to the death of another process:
            # wait for its last words.
            news, deadline = None, time.monotonic() + _heartbeat_timeout + _GRACE_SECONDS
            while news is None and time.monotonic() < deadline:
                time.sleep(0.5)
                # Process 0 may be the one that is gone; the runtime will name it.
                with contextlib.suppress(Exception):
                    for index, left in _group.last_words().items():
                        code, news = 1, f"{_group.members[index]} has left: {left['message']}"
            message = news or message
        _group.leave_word(message or f"{type(error).__name__}: {error}")
        if message is None:
            traceback.print_exception(error)
        else:
            print(f"{prog}: error: {message}", file=sys.stderr, flush=True)
        native_output.forward()
        native_output.said_why()
        if _group.index == 0:
            time.sleep(_GRACE_SECONDS)
    finally:
        os._exit(code)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes: saving wraps the errors of its threads several times."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _start(config: ProcessConfig) -> Group:
    import jax

    timeout = config.distributed_timeout
    if not jax.distributed.is_initialized():
        explicit = {
            name: getattr(config, name) for name in ("coordinator", "num_processes", "process_id")
        }
        missing = [name for name, value in explicit.items() if value is None]
        if config.distributed == "off":
            return Group()
        cluster = clusters.detect(config) if len(missing) == 3 else None
        if len(missing) == 3 and config.distributed == "auto" and cluster is None:
            return Group()
        if 0 < len(missing) < 3:
            raise ConfigError(
                missing[0],
                "",
                "is missing; give --coordinator, --num-processes and --process-id together",
            )
        if config.num_processes == 1:
            return Group()
        if len(missing) == 3 and cluster is None:
            remedy = (
                "no Slurm step, Open MPI job, Kubernetes indexed job or TPU pod was detected; give"
                " --coordinator HOST:PORT"
            )
            raise ConfigError("distributed", "on", remedy)
        _initialize(
            config,
            jax,
            cluster,
            coordinator.check(config) if config.coordinator is not None else None,
        )
        _prepare_cpu(timeout)
    group = Group(jax.process_index(), jax.process_count(), _prefix=f"jaxdp/{next(_runs)}")
    if group.count > 1:
        group.members = tuple(f"process {index}" for index in range(group.count))
        me = f"process {group.index} (pid {os.getpid()} on {socket.gethostname()})"
        group.members = tuple(group.exchange("members", me, timeout))
        native_output.name_processes(group.members)
    return group


def _initialize(
    config: ProcessConfig, jax: Any, cluster: str | None, listening: str | None
) -> None:
    # JAX's own handler would swallow SIGTERM; the flag that the loop looks at works for one process
    # and for many.
    jax.config.update("jax_enable_preemption_service", False)
    native_output.capture(config.distributed_timeout)
    explicit: dict[str, Any] = {}
    if config.coordinator is not None:
        explicit = {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
            "coordinator_bind_address": listening,
        }
    try:
        jax.distributed.initialize(
            **explicit,
            initialization_timeout=round(config.distributed_timeout),
            heartbeat_timeout_seconds=round(config.heartbeat_timeout),
            shutdown_timeout_seconds=round(config.distributed_timeout),
        )
    except Exception as error:  # from the cluster's variables JAX raises whatever reading them does
        native_output.release()
        if cluster is None:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = (
            f"{cluster} was detected, but JAX cannot connect its processes ({reason});"
            f" {clusters.ALTERNATIVES}"
        )
        raise ConfigError("distributed", config.distributed, remedy) from error


def _prepare_cpu(timeout_seconds: float) -> None:
    """Settles what the CPU's backend needs of the others before it starts.

    `jax.process_index` starts it.
    """
    state = _runtime()
    members = tuple(f"process {index}" for index in range(state.num_processes))
    all_processes = Group(state.process_id, state.num_processes, members, _prefix="jaxdp/start")
    own = coordinator.own_address(state.coordinator_address)
    cpu_backend.announce(
        coordinator.announced_address(
            own, all_processes.exchange("addresses", own, timeout_seconds)
        )
    )
    cpu_backend.keep_programs_of_every_process()


def _runtime() -> Any:
    # JAX has no public access to its key-value store; Orbax uses this one as well.
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    return _runtime().client
