"""Chooses and checks the address at which the coordinator, process 0, listens."""

import contextlib
import errno
import ipaddress
import socket
import time
from typing import Any

from jaxdp.config import ProcessConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime.running_time import running_seconds
from jaxdp.text.parsing import is_count

_TAKEN = (errno.EADDRINUSE, errno.EACCES)  # the address belongs to this host


def check(config: ProcessConfig) -> str | None:
    """Checks the coordinator's address, because JAX aborts a process that cannot reach it.

    Returns:
        For process 0, the address at which to listen, which is the given address if it belongs to
        this host. Otherwise None, for all addresses of this host, because behind an address
        translation there is no such address. A host's own name may stand for a loopback address on
        the host, as in Debian, and for another address elsewhere.

    Raises:
        ConfigError: for an address of another form, an address that does not answer, or a port in
            use.
    """
    address = config.coordinator or ""
    count, index = config.num_processes or 0, config.process_id or 0
    if index >= count:
        remedy = f"must be below {flag('num_processes')}, which is {count}"
        raise ConfigError("process_id", index, remedy)
    parts = split_address(address)
    if parts is None:
        remedy = "must be HOST:PORT of process 0, e.g. 10.0.0.1:1234"
        raise ConfigError("coordinator", address, remedy)
    if index == 0:
        return _listening_address(config, *parts)
    limit = config.distributed_timeout
    if reason := unreachable(parts, limit):
        remedy = (
            f"cannot be reached within {flag('distributed_timeout', f'{limit:g}', quote='')} s"
            f" ({reason}); is process 0 running there?"
        )
        raise ConfigError("coordinator", address, remedy)
    return None


def split_address(address: str) -> tuple[str, int] | None:
    """Returns host and port of HOST:PORT; None for another form."""
    host, _, port = address.rpartition(":")
    if host and is_count(port) and 0 < int(port) < 2**16:
        return host.strip("[]"), int(port)
    return None


def unreachable(address: tuple[str, int], seconds: float) -> str:
    """Tries to connect for this time, and returns why it failed, or "" if it succeeded."""
    deadline, reason = running_seconds() + seconds, "no answer"
    while running_seconds() < deadline:
        try:
            socket.create_connection(address, timeout=min(seconds, 5)).close()
            return ""
        except (
            OSError
        ) as error:  # including an unknown name, which may become known when its machine is up
            reason = error.strerror or str(error)
            time.sleep(0.1)
    return reason


def hold_port() -> socket.socket:
    """Returns a socket bound to a free port, so that the system gives the port to no other process.

    A second run with the same port would end both runs. A process that requests the port by number
    can listen at it, because this socket does not listen.
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held


def is_loopback(address: str) -> bool:
    """Returns whether an IP address is reachable only from its own host."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _listening_address(config: ProcessConfig, host: str, port: int) -> str | None:
    results = list[Any]()
    with contextlib.suppress(socket.gaierror):
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, *_, target in results:
        address = str(target[0])
        if is_loopback(address) and host not in (address, "localhost"):
            continue
        try:
            socket.create_server(target[:2], family=family).close()
        except OSError as error:
            if error.errno not in _TAKEN:
                continue  # an address of another host
            remedy = f"its port cannot be opened here ({error.strerror}); choose another"
            raise ConfigError("coordinator", config.coordinator, remedy) from error
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return None
