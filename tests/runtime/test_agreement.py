"""What processes exchange before they train: threads with connections of their own to a real
coordination service.
"""

import itertools
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jax._src.lib import _jax

from jaxdp.errors import ConfigError
from jaxdp.runtime import group as group_lib
from jaxdp.runtime.group import Group
from jaxdp.runtime.signals import StopSignals
from jaxdp.training import stopping

SECONDS = 20.0


def in_each(count: int, act: Callable[[Group], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns what each of so many processes returns, or the ConfigError that it raises."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, count, heartbeat_timeout=20)
    own = threading.local()
    monkeypatch.setattr(group_lib, "_client", lambda: own.client)

    def process(index: int) -> Any:
        own.client = _jax.get_distributed_runtime_client(
            address, index, init_timeout=20, heartbeat_timeout=20
        )
        own.client.connect()
        try:
            return act(
                Group(
                    index,
                    count,
                    tuple(f"process {number}" for number in range(count)),
                    _prefix="test",
                )
            )
        except ConfigError as error:
            return str(error)
        finally:
            own.client.shutdown()

    with ThreadPoolExecutor(count) as threads:
        found = list(threads.map(process, range(count)))
    service.shutdown()
    return found


def test_each_reads_what_all_told_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(group: Group) -> tuple[list[str], int]:
        values = group.all_gather_text("names", f"name {group.index}", SECONDS)
        group.check_equal({"learning_rate": 0.1, "steps": 3}, SECONDS)
        return values, len(group.all_gather_text("names of others", "x" * 100_000, SECONDS))

    assert in_each(12, act, monkeypatch) == [([f"name {index}" for index in range(12)], 12)] * 12


def test_what_differs_is_named_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(group: Group) -> None:
        group.check_equal({"steps": 3, "learning_rate": 0.2 if group.index == 2 else 0.1}, SECONDS)

    said = "learning_rate={}: differs between processes: process {} has {}; start all with the same"
    assert in_each(3, act, monkeypatch) == [
        said.format(0.1, 2, 0.2),
        said.format(0.1, 2, 0.2),
        said.format(0.2, 0, 0.1),
    ]


def test_one_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(group: Group) -> None:
        if group.index != 1:
            group.all_gather_text("names", "x", 1.0)

    said = (
        "distributed_timeout=1.0: timed out after 1 s waiting for process 1 to send 'names'; see"
        " its output"
    )
    assert in_each(3, act, monkeypatch) == [said, None, said]


@pytest.mark.parametrize(
    ("asking", "stride", "wanted_at", "stops"),
    [(64, 1, 5, 7), (1, 1, 5, 8), (1, 3, 6, 9), (1, 3, 9, 12)],
)
def test_all_stop_at_the_same_step(
    monkeypatch: pytest.MonkeyPatch, asking: int, stride: int, wanted_at: int, stops: int
) -> None:
    """Three processes, of which one is asked to stop.

    No other is ahead of it by more than a step.
    """
    monkeypatch.setattr(stopping, "_ASKING", asking)

    def act(group: Group) -> int:
        signals = StopSignals(())
        agreement = stopping.Stopping(signals, group)
        for step in itertools.count(stride, stride):
            group.all_gather_text(f"step {step}", "", 5.0)
            if group.index == 1 and step == wanted_at:
                signals._received.append(signal.SIGTERM)
            if agreement.after(step, margin=2):
                return step
        raise AssertionError

    assert in_each(3, act, monkeypatch) == [stops] * 3


def test_a_reason_that_comes_after_the_step_was_named_counts_in_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Process 1 is asked to stop, and reaches the named step before process 0's callback speaks.

    With a reason, process 0 would evaluate at that step, and wait for process 1 for ever.
    """

    def act(group: Group) -> tuple[int, str]:
        signals = StopSignals(())
        agreement = stopping.Stopping(signals, group)
        for step in itertools.count(1):
            group.all_gather_text(f"step {step}", "", 5.0)
            if group.index == 1 and step == 2:
                signals._received.append(signal.SIGTERM)
            if step == 4 and group.index == 0:
                group.all_gather_text("process 1 has stopped", "", 5.0)
                agreement.request("good enough", everywhere=False)
            ends = agreement.after(step, margin=2)
            if step == 4 and group.index == 1:
                group.all_gather_text("process 1 has stopped", "", 5.0)
            if ends:
                return step, agreement.reason
        raise AssertionError

    assert in_each(2, act, monkeypatch) == [(4, "")] * 2


def test_the_reason_of_a_callback_of_one_process_counts_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def act(group: Group) -> tuple[int, str]:
        agreement = stopping.Stopping(StopSignals(()), group)
        for step in itertools.count(1):
            group.all_gather_text(f"step {step}", "", 5.0)
            if group.index == 0 and step == 3:
                agreement.request("good enough", everywhere=False)
            if agreement.after(step, margin=2):
                return step, agreement.reason
        raise AssertionError

    assert in_each(2, act, monkeypatch) == [(5, "good enough")] * 2


@pytest.mark.parametrize(
    ("requests", "stops"),
    [
        ({3: ["mine"], 4: ["ours"]}, 4),
        ({3: ["mine", "ours"]}, 3),
        ({3: ["ours", "mine"]}, 3),
        ({2: ["mine"], 4: ["ours"]}, 4),  # also the step that process 0 has named
    ],
)
def test_all_have_one_reason_if_callbacks_of_one_process_and_of_all_have_one(
    monkeypatch: pytest.MonkeyPatch, requests: dict[int, list[str]], stops: int
) -> None:
    """Process 0 alone gives the reason `mine`, and every process the reason `ours`."""

    def act(group: Group) -> tuple[int, str]:
        agreement = stopping.Stopping(StopSignals(()), group)
        for step in itertools.count(1):
            group.all_gather_text(f"step {step}", "", 5.0)
            for reason in requests.get(step, []):
                if group.index == 0 or reason == "ours":
                    agreement.request(reason, everywhere=reason == "ours")
            if agreement.after(step, margin=2):
                return step, agreement.reason
        raise AssertionError

    first, second = in_each(2, act, monkeypatch)
    assert first == second
    assert first[0] == stops
