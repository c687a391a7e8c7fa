"""Addresses of several processes: where the coordinator, process 0, listens, and of this host."""

import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Sequence

from jaxdp.config import ProcessConfig
from jaxdp.parsing import is_count
from jaxdp.registry import ConfigError

_ANY_PORT = 9  # nothing is sent there


def check(config: ProcessConfig) -> str | None:
    """Checks the coordinator's address: JAX aborts a process that cannot reach it.

    Returns:
        for process 0 the address at which to listen: the given one if it belongs to this host.
        Otherwise None, for all addresses of this host: behind an address translation there is none
        to listen at. A host's own name may be a loopback address here, as in Debian, and another
        address elsewhere.

    Raises:
        ConfigError: for an address of another form or without an answer, or a port in use.
    """
    address = config.coordinator or ""
    count, index = config.num_processes or 0, config.process_id or 0
    if index >= count:
        raise ConfigError("process_id", index, f"must be below --num-processes, which is {count}")
    parts = split_address(address)
    if parts is None:
        remedy = "must be HOST:PORT of process 0, e.g. 10.0.0.1:1234"
        raise ConfigError("coordinator", address, remedy)
    if index == 0:
        return _listening_address(config, *parts)
    _wait_for(config, *parts)
    return None


def split_address(address: str) -> tuple[str, int] | None:
    """Returns host and port of HOST:PORT, None for another form."""
    host, _, port = address.rpartition(":")
    if host and is_count(port) and 0 < int(port) < 2**16:
        return host.strip("[]"), int(port)
    return None


def hold_port() -> socket.socket:
    """Returns a socket bound to a free port, so that the system gives the port to no one else.

    A second run with the same port would end both. A process that asks for the port by number can
    listen there, since this socket does not listen.
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held


def own_address(coordinator: str) -> str:
    """Returns this host's address on the route to the coordinator, "" if there is no route.

    Nothing is sent.

    Args:
        coordinator: HOST:PORT.
    """
    return _address_towards(coordinator.rpartition(":")[0].strip("[]"))


def announced_address(own: str, all_own: Sequence[str]) -> str:
    """Returns the address at which other processes can reach this one.

    The route of process 0 to itself may be a loopback address, by the name of its host. It then
    takes the route to a process on another host, if there is one.

    Args:
        own: the result of `own_address` here.
        all_own: its result in each process.
    """
    if not own or not _is_loopback(own):
        return own
    others = [each for each in all_own if each and not _is_loopback(each)]
    return _address_towards(others[0]) if others else own


def _listening_address(config: ProcessConfig, host: str, port: int) -> str | None:
    for address in _own_addresses(host, port):
        with _opened(config, address, port):
            return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    with _opened(config, "", port):
        return None


def _own_addresses(host: str, port: int) -> Iterator[str]:
    """Yields the addresses of a name that belong to this host, without unwanted loopback ones."""
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:  # JAX listens there
        return
    wants_loopback = host == "localhost" or (_is_address(host) and _is_loopback(host))
    with contextlib.suppress(socket.gaierror):
        for family, _, _, _, (address, *_) in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            address = str(address)
            if _is_loopback(address) and not wants_loopback:
                continue
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                try:
                    tried.bind((address, 0))
                except OSError:  # another host's
                    continue
            yield address


@contextlib.contextmanager
def _opened(config: ProcessConfig, address: str, port: int) -> Iterator[None]:
    try:
        server = socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
    except OSError as error:
        reason = error.strerror or errno.errorcode.get(error.errno or 0, str(error))
        remedy = f"its port cannot be opened here ({reason}); choose another"
        raise ConfigError("coordinator", config.coordinator, remedy) from error
    with server:
        yield


def _wait_for(config: ProcessConfig, host: str, port: int) -> None:
    limit = config.distributed_timeout
    deadline, reason = time.monotonic() + limit, "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=min(limit, 5)):
                return
        except socket.gaierror as error:
            reason = error.strerror or str(error)
            time.sleep(0.5)  # the name may appear once its machine is up
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(0.1)
    remedy = (
        f"cannot be reached within --distributed-timeout {limit:g} s ({reason}); is process 0"
        " running there?"
    )
    raise ConfigError("coordinator", config.coordinator, remedy)


def _address_towards(host: str) -> str:
    with contextlib.suppress(OSError):  # a name that is unknown here, or no route
        family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as route:
            route.connect(target)
            return str(route.getsockname()[0])
    return ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
