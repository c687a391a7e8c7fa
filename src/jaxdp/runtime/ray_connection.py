"""Starts Ray on this machine, or connects to a cluster.

Ray executes the code that it receives. A Ray that is started here listens only on the loopback
interface, requires a token, and has no dashboard and no usage statistics. The user is responsible
for a cluster of several machines, which must be in a trusted network.
"""

import atexit
import contextlib
import importlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.runtime.coordinator import is_loopback, split_address, unreachable
from jaxdp.runtime.platform import environment
from jaxdp.text.messages import one_line

# Variables that Ray's processes read when they start.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the history of the run names lost workers
    "RAY_prestart_worker_first_driver": "0",  # workers started in advance are not used
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a worker without its own GPU sees no GPU
}
# A cluster of this machine only, which listens on loopback. Despite its name, it works on Linux.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_CONNECT_SECONDS = 5.0
_AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


class HeadLost(OSError):
    """The head node, which coordinates the cluster, has died or cannot be reached."""


def require() -> None:
    """Raises ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("", "", "this needs Ray: pip install '.[ray]', on every node")


@contextlib.contextmanager
def connected(address: str | None, *, cpus: int = 0, field: str = "ray_address") -> Iterator[Any]:
    """Provides a connected Ray until the block ends. A cluster that was started here ends with the
    block.

    Args:
        address: `auto` or HOST:PORT of a cluster; None to start a cluster on this machine. If this
            process is already connected to a cluster, this cluster is used.
        cpus: minimum number of CPUs that Ray assigns, if it is started here.
        field: the setting with the address.

    Raises:
        ConfigError: if there is no cluster at the address.
    """
    require()
    if address not in (None, "auto"):
        # If no process listened at the address, Ray would try for minutes.
        parts = split_address(str(address))
        if parts is None:
            remedy = "must be auto or HOST:PORT of a head, e.g. 10.0.0.1:6379"
            raise ConfigError(field, address, remedy)
        if reason := unreachable(parts, _CONNECT_SECONDS):
            remedy = f"cannot be reached ({reason}); is the head of a Ray cluster running there?"
            raise ConfigError(field, address, remedy)
    is_new = address is None and "ray" not in sys.modules
    if is_new and not _AUTHENTICATION.keys() & os.environ.keys():
        os.environ.update(_AUTHENTICATION)  # permanently, because Ray reads them only once
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(environment(_SETTINGS | (_LOOPBACK if address is None else {})))
        import ray

        if not ray.is_initialized():
            # Otherwise, Ray would report lost workers on standard output, which is for results.
            worker: Any = importlib.import_module("ray._private.worker")
            cleanup.callback(setattr, worker, "print_to_stdstream", worker.print_to_stdstream)
            worker.print_to_stdstream = lambda *_, **__: None
            cleanup.callback(ray.shutdown)
            handler = signal.getsignal(signal.SIGTERM)
            with warnings.catch_warnings():
                # Ray's processes replace the forked process at once.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                _start(ray, address, cpus, field, cleanup)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
        try:
            yield ray
        except HeadLost:
            cleanup.pop_all()
            atexit.register(_leave)
            raise


def _leave() -> None:
    """Runs at exit, before Ray tries to reach the lost head for a minute, and aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _start(
    ray: Any, address: str | None, cpus: int, field: str, cleanup: contextlib.ExitStack
) -> None:
    quiet = {
        "log_to_driver": False,
        "logging_level": "error",
        "configure_logging": False,
        "namespace": "jaxdp",
    }
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises its own, gRPC's and Python's
            reason = one_line(error)[:200]
            remedy = f"no Ray cluster can be used there ({reason}); start one: ray start"
            raise ConfigError(field, address, remedy) from error
        return
    # Ray reads it at import, which may have happened earlier. The name is private, so the result is
    # checked below.
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    # The paths of Ray's sockets, which are in this folder, must be short.
    folder = tempfile.mkdtemp(prefix=f"jaxdp-ray-{os.getpid()}-", dir="/tmp")
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    cleanup.callback(ray.shutdown)  # before its folder is removed
    cpus = max(os.cpu_count() or 1, cpus)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder, **quiet)
    host = ray.util.get_node_ip_address()
    if not is_loopback(host):
        remedy = "start a cluster yourself and give its address"
        raise ConfigError(field, "", f"Ray {ray.__version__} would listen on {host}; {remedy}")
