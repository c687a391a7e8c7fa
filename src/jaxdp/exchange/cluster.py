"""Starts Ray, or connects to a cluster that is there; nothing listens beyond this machine unless an address is given.

Ray executes whatever it is sent. A cluster that is started here listens on the loopback device alone and wants a token.
"""

import contextlib
import importlib.util
import ipaddress
import os
import pathlib
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from jaxdp.registry import ConfigError

# What Ray's processes read when they start.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # tells nobody
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # "a cluster of this machine alone", on Linux too: it listens on loopback
    "RAY_prestart_worker_first_driver": "0",  # what is started beforehand is not used
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no accelerator: leave the environment as it is
}
_AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def require() -> None:
    """Raises ConfigError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("", "", "workers of their own need Ray; install it: pip install 'jaxdp[ray]'")


@contextlib.contextmanager
def connected(address: str | None, *, cpus: int) -> Iterator[Any]:
    """Provides Ray until the block ends, connected; a cluster that was started for it is gone then.

    Args:
        address: `auto` or HOST:PORT of a cluster; None to start one of this machine. One to which this process is connected
            already is used as it is.
        cpus: how many workers the machine is to take at a time.

    Raises:
        ConfigError: if there is no cluster at the address.
    """
    require()
    with contextlib.ExitStack() as cleanup:
        if address is None:
            if "ray" not in sys.modules and not _AUTHENTICATION.keys() & os.environ.keys():
                os.environ.update(_AUTHENTICATION)  # for good, since Ray reads them but once
            cleanup.enter_context(_environment(_SETTINGS))
        import ray

        if not ray.is_initialized():
            cleanup.callback(ray.shutdown)
            cleanup.enter_context(_silent(ray))
            with _handlers_kept(), warnings.catch_warnings():
                # Ray's processes replace what was forked at once.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                _start(ray, address, cpus, cleanup)
        yield ray


def _start(ray: Any, address: str | None, cpus: int, cleanup: contextlib.ExitStack) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise ConfigError("ray_address", address, f"no Ray cluster answers there: {said}") from error
        return
    # It was read when Ray was imported, which may have been before; not a public name, so that the outcome is checked below.
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    # Its sockets are in this folder, and their paths must be short.
    folder = tempfile.mkdtemp(prefix=f"jaxdp-ray-{os.getpid()}-", dir="/tmp" if pathlib.Path("/tmp").is_dir() else None)
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    cleanup.callback(ray.shutdown)  # before its folder goes
    ray.init(address="local", num_cpus=cpus, num_gpus=0, include_dashboard=False, _temp_dir=folder, **quiet)
    if not ipaddress.ip_address(host := ray.util.get_node_ip_address()).is_loopback:
        remedy = f"Ray {ray.__version__} would listen on {host}; start a cluster yourself and give its address"
        raise ConfigError("ray_address", "", remedy)


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Keeps Ray from telling on standard output, which is for results, that a worker has died: the history of the run does."""
    module, name = ray._private.worker, "print_to_stdstream"
    said = getattr(module, name)
    setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(module, name, said)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Gives back the handler of SIGTERM, which Ray takes."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
