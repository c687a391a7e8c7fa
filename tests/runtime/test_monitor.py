"""Rows tell of each device's memory and, where NVIDIA's package is installed, of its utilization.

Neither ever ends a run.
"""

import json
import pathlib
import struct
import sys
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tensorboardX.proto import event_pb2

from jaxdp import train
from jaxdp.runtime import monitor
from jaxdp.runtime.monitor import Monitor
from jaxdp.runtime.processes import Group
from jaxdp.training.reader import MEASURED

UUIDS = ["GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd"]
ALONE = Group()


class FakeNvml:
    """Four GPUs, busy 10, 20, 30 and 40 percent of the time.

    The names are those of nvidia-ml-py.
    """

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.kinds, self.calls = ["NVIDIA H200"] * 4, []

    def nvmlInit(self) -> None:
        self.calls.append("init")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.kinds)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.kinds):
            raise self.NVMLError("Invalid Argument")
        return UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in UUIDS and not uuid.startswith("MIG-"):
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self.kinds[UUIDS.index(handle)]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG-"):
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=10 * (UUIDS.index(handle) + 1), memory=0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # pyright: ignore[reportArgumentType]
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return fake


def gpus(*numbers: int, statistics: Any = None) -> list[Any]:
    return [
        SimpleNamespace(
            platform="gpu",
            local_hardware_id=number,
            memory_stats=lambda number=number: statistics and statistics(number),
        )
        for number in numbers
    ]


def memory(number: int) -> dict[str, int]:
    return {"bytes_in_use": 1000 + number, "peak_bytes_in_use": 2000 + number, "bytes_limit": 9000}


def test_the_names_are_those_of_the_real_package() -> None:
    real = pytest.importorskip("pynvml")
    assert issubclass(real.NVMLError, Exception)
    names = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    assert len(names) == 7
    assert all(callable(getattr(real, name)) for name in names)
    assert [field for field, _ in real.c_nvmlUtilization_t._fields_] == ["gpu", "memory"]


@pytest.mark.parametrize(
    ("visible", "numbers", "expected"),
    [
        (None, (0, 1, 2, 3), [0.1, 0.2, 0.3, 0.4]),
        ("2,0", (0, 1), [0.3, 0.1]),
        ("2, 0", (1,), [0.1]),  # --devices 1 of another process, or a part of what is visible
        ("GPU-dd,GPU-bb", (0, 1), [0.4, 0.2]),
        ("GPU-d", (0,), None),  # CUDA takes the beginning of a UUID, NVML does not
        ("MIG-12", (0,), None),
        ("7", (0,), None),
        ("2", (0, 1), None),  # one too few, which cannot be
    ],
)
def test_jax_devices_are_found_again(
    visible: str | None,
    numbers: tuple[int, ...],
    expected: list[float] | None,
    nvml: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Monitor(gpus(*numbers), ALONE, 1.0).read().get("device_utilization") == expected


def test_numbers_say_nothing_where_kinds_are_mixed(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA then counts in an order of its own."""
    nvml.kinds[3] = "NVIDIA T400"
    assert "device_utilization" not in Monitor(gpus(0, 1), ALONE, 1.0).read()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-dd,GPU-aa")
    assert Monitor(gpus(0, 1), ALONE, 1.0).read()["device_utilization"] == [0.4, 0.1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert Monitor(gpus(0, 1), ALONE, 1.0).read()["device_utilization"] == [0.4, 0.2]


def test_what_cannot_be_asked_is_left_out(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise nvml.NVMLError("GPU is lost")

    watching = Monitor(gpus(0, 1, statistics=memory), ALONE, 1.0)
    assert watching.read()["device_utilization"] == [0.1, 0.2]
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", refuse)
    found = watching.read()
    assert found.keys() == {"device_memory_bytes", "device_peak_memory_bytes", "host_memory_bytes"}
    watching.close()
    assert nvml.calls == ["init", "shutdown"]
    monkeypatch.setattr(nvml, "nvmlInit", refuse)  # no driver
    Monitor(gpus(0), ALONE, 1.0).close()
    assert nvml.calls == ["init", "shutdown"]
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert "device_utilization" not in Monitor(gpus(0), ALONE, 1.0).read()

    def cannot(number: int) -> Any:
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: memory statistics")

    assert monitor.read_memory(gpus(0, 1, statistics=cannot)) == {}
    assert (
        monitor.read_memory(gpus(0, 1, statistics=lambda number: memory(0) if number else None))
        == {}
    )


def test_a_cpu_is_not_asked_for_its_utilization(nvml: FakeNvml) -> None:
    found = Monitor(jax.devices(), ALONE, 1.0).read()
    assert list(found) == ["host_memory_bytes"]
    assert nvml.calls == []


class FakeGroup(Group):
    """Processes whose store is a dict."""

    store: dict[str, str]

    def put(self, key: str, value: str, *, overwrite: bool = True) -> None:
        self.store[key] = value

    def get_all(self, name: str) -> dict[int, str]:
        return {
            int(key.rpartition("/")[2]): value
            for key, value in self.store.items()
            if key.startswith(f"{name}/")
        }

    def all_gather_text(self, name: str, value: str, timeout_seconds: float) -> list[str]:
        self.put(f"{name}/{self.index}", value)
        return []


def test_process_0_has_the_figures_of_all(nvml: FakeNvml) -> None:
    store: dict[str, str] = {}
    groups = [FakeGroup(index, 2) for index in range(2)]
    for group in groups:
        group.store = store
    second = Monitor(gpus(2, 3, statistics=memory), groups[1], 1.0)
    first = Monitor(gpus(0, 1, statistics=memory), groups[0], 1.0)
    found = first.read()
    assert found["device_memory_bytes"] == [1000, 1001, 1002, 1003]
    assert found["device_peak_memory_bytes"] == [2000, 2001, 2002, 2003]
    assert found["device_utilization"] == [0.1, 0.2, 0.3, 0.4]
    assert len(found["host_memory_bytes"]) == 2
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=100)  # pyright: ignore[reportAttributeAccessIssue]
    assert second.read() == {}  # it writes no rows
    assert first.read()["device_utilization"] == [1, 1, 1, 1]
    without = Monitor(gpus(2, 3), groups[1], 1.0)
    assert without.read() == {}
    assert first.read().keys() == {"device_utilization", "host_memory_bytes"}
    store.clear()  # process 1 is unheard of
    assert first.read() == {}


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


def test_rows_and_events_of_a_run(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = gpus(0, 1, statistics=memory)
    monkeypatch.setattr(
        monitor, "Monitor", lambda devices, group, seconds: Monitor(fakes, group, seconds)
    )
    assert train.main(FLAGS) == 0
    lines = pathlib.Path("run", "metrics.jsonl").read_text().splitlines()
    *rows, evaluated = [json.loads(line, parse_constant=refuse_constant) for line in lines]
    assert [row["split"] for row in rows] == ["train", "train"]
    assert not set(MEASURED) & set(evaluated)
    expected = {
        "device_memory_bytes": [1000, 1001],
        "device_peak_memory_bytes": [2000, 2001],
        "device_utilization": [0.1, 0.2],
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
    assert nvml.calls == ["init", "shutdown"]
