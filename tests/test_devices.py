"""What `python -m jaxdp.devices` shows, and what it refuses."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdp import devices


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert devices.main([*flags, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_it_shows_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    (process,) = found["processes"]
    assert [(device["id"], device["platform"]) for device in process["devices"]] == [
        (number, "cpu") for number in range(8)
    ]
    assert all(0 <= device["bytes_in_use"] < device["bytes_limit"] for device in process["devices"])
    (process,) = shown(capsys, "--devices", "3")["processes"]
    assert [device["id"] for device in process["devices"]] == [0, 1, 2]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main([]) == 0
    text = capsys.readouterr().out
    assert "CPU devices share the machine's memory" in text


def test_the_memory_of_an_accelerator_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = {"bytes_in_use": 2_500_000_000, "bytes_limit": 10_000_000_000}
    chips = [
        SimpleNamespace(id=4, platform="tpu", device_kind="TPU", memory_stats=lambda: None),
        SimpleNamespace(id=5, platform="tpu", device_kind="TPU v4", memory_stats=lambda: stats),
    ]
    monkeypatch.setattr(devices.platform, "select_devices", lambda count: chips)
    assert devices.main([]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "TPU v4" in line]
    for text in ("│ 5 ", "2.3 GiB", "9.3 GiB"):
        assert text in row


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--devices 9", "--devices 9: there are 8 cpu devices"),
        ("--model cnn", "--model: was removed in 0.3.0: use python -m jaxdp.plan"),
        ("--address auto", "--address: was removed in 0.3.0: use Ray's own command, ray status"),
        ("--jsn", "--jsn: unknown flag; did you mean --json?"),
        ("--coordinator localhost:1", "--num-processes: is missing"),
    ],
)
def test_mistakes_are_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert devices.main(flags.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert line.startswith("jaxdp.devices: error: ")
    assert message in line
