"""Rows have the memory of each device, and reading it never ends a run."""

import json
import pathlib
import struct
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tensorboardX.proto import event_pb2

from jaxdp import train
from jaxdp.runtime import monitor
from jaxdp.training.reader import MEASURED


def gpus(*numbers: int, statistics: Any = None) -> list[Any]:
    return [
        SimpleNamespace(
            memory_stats=lambda number=number: statistics and statistics(number),
        )
        for number in numbers
    ]


def memory(number: int) -> dict[str, int]:
    return {"bytes_in_use": 1000 + number, "peak_bytes_in_use": 2000 + number, "bytes_limit": 9000}


def test_what_cannot_be_asked_is_left_out() -> None:
    assert list(monitor.read_memory(jax.devices())) == ["host_memory_bytes"]

    def cannot(number: int) -> Any:
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: memory statistics")

    assert list(monitor.read_memory(gpus(0, 1, statistics=cannot))) == ["host_memory_bytes"]
    one = gpus(0, 1, statistics=lambda number: memory(0) if number else None)
    assert list(monitor.read_memory(one)) == ["host_memory_bytes"]


def scalars(run_dir: str) -> dict[str, list[float]]:
    """Reads TensorBoard's events: length, its checksum, event, its checksum, and so on."""
    (path,) = pathlib.Path(run_dir, "tensorboard").iterdir()
    content, found = path.read_bytes(), {}
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        for value in event_pb2.Event.FromString(content[12 : 12 + size]).summary.value:  # pyright: ignore[reportAttributeAccessIssue]
            found.setdefault(value.tag, []).append(value.simple_value)
        content = content[16 + size :]
    return found


FLAGS = "--model cnn --model-kwargs width=4 hidden=16 --devices 1 --steps 2 --log-every 1 --run-dir run".split()


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def test_rows_and_events_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = gpus(0, 1, statistics=memory)
    read = monitor.read_memory
    monkeypatch.setattr(monitor, "read_memory", lambda devices: read(fakes))
    assert train.main(FLAGS) == 0
    lines = pathlib.Path("run", "metrics.jsonl").read_text().splitlines()
    *rows, evaluated = [json.loads(line, parse_constant=refuse_constant) for line in lines]
    assert [row["split"] for row in rows] == ["train", "train"]
    assert not set(MEASURED) & set(evaluated)
    expected = {
        "device_memory_bytes": [1000, 1001],
        "device_peak_memory_bytes": [2000, 2001],
    }
    found = scalars("run")
    for index, row in enumerate(rows):
        assert {name: row[name] for name in row if name.startswith("device_")} == expected
        (resident,) = row["host_memory_bytes"]
        assert 50e6 < resident < 100e9
        assert found["host/0/memory_bytes"][index] == pytest.approx(resident)
        for name, values in expected.items():
            for device, value in enumerate(values):
                tag = f"device/{device}/{name.removeprefix('device_')}"
                assert found[tag][index] == pytest.approx(value)
