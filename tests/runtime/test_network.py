"""Processes on hosts with addresses of their own find each other, train as one process does, and
miss one that is cut off.
"""

import time
from collections.abc import Callable

import network
import pytest
from process_group import LISTENING, Processes, listening, slow_steps
from test_process_faults import assert_missed
from test_processes import CNN, COMMON, differences

from jaxdp import train

FLAGS = [*COMMON, *CNN.split(), "--run-dir", "run", "--distributed-timeout", "60"]


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
        else:  # a name leaves open at which address to listen
            assert listening(group.output(0)) == {hosts[0].address, "::"}
    assert group.error_lines(0) == group.error_lines(1) == []
    assert train.main([*FLAGS, "--devices", "2", "--run-dir", "one"]) == 0
    assert differences("run", "one", 1e-5) == []


@pytest.mark.slow
def test_processes_that_another_program_has_connected_train_as_one() -> None:
    connected = (
        "import jax, sys\n"
        "place = sys.argv[sys.argv.index('--coordinator') :]\n"
        "jax.distributed.initialize(place[1], int(place[3]), int(place[5]))\n"
    )
    with network.hosts(2) as hosts:
        group = Processes(common=FLAGS, hosts=hosts, preludes=dict.fromkeys((0, 1), connected))
        group.end_with(0, 0)
    assert train.main([*FLAGS, "--devices", "2", "--run-dir", "one"]) == 0
    assert differences("run", "one", 1e-5) == []


@pytest.mark.slow
def test_without_an_address_of_their_own_they_do_not_connect() -> None:
    """The mutant: Gloo announces what the host's name stands for."""
    unaware = "from jaxdp.runtime import cpu_backend\ncpu_backend.announce = lambda *args: None\n"
    with network.hosts(2) as hosts:
        group = Processes(common=FLAGS, hosts=hosts, preludes={0: unaware, 1: unaware})
        assert 0 not in group.codes()
    assert "gloo" in (group.errors(0) + group.errors(1)).lower()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_with_a_cut_network_link_is_missed(
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
        hosts[victim].cut_link()
        began = time.monotonic()
        survivors = [index for index in range(3) if index != victim]
        for index in survivors:
            group.running[index].wait(timeout=60)
        seconds = time.monotonic() - began
        codes = group.codes(60)  # to the one that is cut off, the others are gone
    assert seconds < heartbeat + 5
    for index in range(3):
        assert_missed(group, index, codes[index])
    what = "process 0" if victim == 0 else "another process"
    outcome = "all say that one is lost and end within the heartbeat timeout"
    record_fault(f"network link of the host of {what} cut", 1, outcome)
