"""Processes on hosts with addresses of their own find each other, train as one process does, and
miss one that is cut off.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import network
import pytest
from process_group import LISTENING, Processes, listening, slow_steps
from test_process_faults import AGAIN
from test_processes import CNN, COMMON, differences

from jaxdp import train

FLAGS = [*COMMON, *CNN.split(), "--run-dir", "run", "--distributed-timeout", "60"]
SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print(flush=True)
while True:
    peer, _ = server.accept()
    peer.sendall(peer.recv(1))
    peer.close()
"""
ASK = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5000), timeout=1)
peer.sendall(b'x')
print(peer.recv(1))
"""
RESOLVE = """
import socket
print(socket.gethostname(), *map(socket.gethostbyname, ['host-0', 'host-1', 'localhost']))
"""


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-S", "-c", program, *words]


def test_hosts_are_a_network_of_their_own() -> None:
    with network.hosts(2) as (one, other):
        names = [host.run(python(RESOLVE)).stdout.split() for host in (one, other)]
        assert names == [
            ["host-0", "127.0.1.1", other.address, "127.0.0.1"],
            ["host-1", one.address, "127.0.1.1", "127.0.0.1"],
        ]
        outside = other.run(
            python("import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"),
            check=False,
        )
        assert "Network is unreachable" in outside.stderr
        server = one.popen(python(SERVE, one.address), stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        assert other.run(python(ASK, one.address)).stdout == "b'x'\n"
        other.pull_cable()
        assert "timed out" in other.run(python(ASK, one.address), check=False).stderr
        other.plug_in()
        assert other.run(python(ASK, one.address)).stdout == "b'x'\n"
        assert one.pids() == [server.pid]
        paths = one._paths
    assert not any(map(os.path.exists, paths))


# What Debian does to the names of hosts must not matter, whatever the coordinator is called.
@pytest.mark.slow
@pytest.mark.parametrize("coordinator", [None, "host-0"])
def test_processes_on_two_hosts_train_as_one(coordinator: str | None) -> None:
    with network.hosts(2) as hosts:
        group = Processes(
            common=FLAGS,
            hosts=hosts,
            coordinator=coordinator,
            preludes={0: LISTENING, 1: LISTENING},
        )
        group.end_with(0, 0)
        if coordinator is None:
            assert [listening(group.output(index)) for index in (0, 1)] == [
                {host.address} for host in hosts
            ]
        else:  # the coordinator at all addresses, since its name does not tell which
            assert listening(group.output(0)) == {hosts[0].address, "::"}
    assert group.error_lines(0) == group.error_lines(1) == []
    assert train.main([*FLAGS, "--devices", "2", "--run-dir", "one"]) == 0
    assert differences("run", "one", 1e-5) == []


@pytest.mark.slow
def test_without_an_address_of_their_own_they_do_not_connect() -> None:
    """The mutant: Gloo announces what the host's name stands for."""
    unaware = "from jaxdp.runtime import cpu_backend\ncpu_backend.announce = lambda *args: None\n"
    with network.hosts(2) as hosts:
        group = Processes(common=FLAGS, hosts=hosts, preludes={0: unaware, 1: unaware})
        assert 0 not in group.codes()
    assert "Gloo" in group.errors(0) + group.errors(1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_whose_cable_is_pulled_is_missed_and_named(
    victim: int, record_fault: Callable[..., None]
) -> None:
    heartbeat = 8.0
    flags = f"--steps 1000 --heartbeat-timeout {heartbeat} --global-batch-size 24".split()
    with network.hosts(3) as hosts:
        group = Processes(
            *flags,
            common=FLAGS,
            count=3,
            hosts=hosts,
            preludes=dict.fromkeys(range(3), slow_steps(0.1)),
        )
        group.wait_for("step 7/")
        hosts[victim].pull_cable()
        began = time.monotonic()
        survivors = [index for index in range(3) if index != victim]
        for index in survivors:
            assert group.running[index].wait(timeout=60) == 1, group.errors(index)
        seconds = time.monotonic() - began
        assert group.codes(60) == [1, 1, 1]  # to the one that is cut off, the others are gone
        pids = [process.pid for process in group.running]
    assert seconds < heartbeat + 5
    for index in survivors:
        (line,) = group.error_lines(index)
        assert line.startswith(
            f"jaxdp.train: error: process {victim} (pid {pids[victim]} on host-{victim})"
        ), line
        assert line.endswith(AGAIN)
    what = "process 0" if victim == 0 else "another process"
    outcome = "the others name it and leave with 1 within the heartbeat timeout"
    record_fault(f"cable of the host of {what} pulled", 1, outcome)
