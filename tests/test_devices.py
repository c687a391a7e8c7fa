"""The bytes on each device agree with sizes that are computed from shapes alone."""

import json
import math
import pathlib
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp import devices
from jaxdp.config import TrainConfig
from jaxdp.devices import bytes_by_device
from jaxdp.training.setup import create_setup

MODEL: dict[str, Any] = {
    "model_kwargs": {"depth": 8, "alpha": 6},
    "ema_decay": 0.5,
    "optimizer": "adam",
}
FLAGS = (
    "--model-kwargs depth=8 alpha=6 --ema-decay 0.5 --optimizer adam --global-batch-size 64".split()
)


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert devices.main([*flags, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def bytes_of(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_without_a_run_it_shows_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    (process,) = found["processes"]
    assert [(device["id"], device["platform"]) for device in process["devices"]] == [
        (number, "cpu") for number in range(8)
    ]
    assert all(0 <= device["bytes_in_use"] < device["bytes_limit"] for device in process["devices"])
    assert "holds" not in process["devices"][0]
    (process,) = shown(capsys, "--devices", "3")["processes"]
    assert [device["id"] for device in process["devices"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("strategy", "count"), [("single", 1), ("pmap", 8), ("shard_map", 4), ("sharded", 8)]
)
@pytest.mark.parametrize("data_placement", ["host", "device"])
def test_each_device_holds_what_shapes_say(
    strategy: str, count: int, data_placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--strategy", strategy, "--devices", str(count), "--data-placement", data_placement]
    found = shown(capsys, *FLAGS, *flags)
    setup = create_setup(
        TrainConfig.of(strategy=strategy, devices=count, global_batch_size=64, **MODEL)
    )
    state = jax.eval_shape(setup.create_state)
    dataset: Any = setup.dataset
    examples, pixels = len(dataset.train), math.prod(dataset.image_shape)
    rows = [device["holds"] for device in found["processes"][0]["devices"]]
    assert len(rows) == count
    for row in rows:
        for name in ("params", "batch_stats", "ema"):
            assert row[name] == bytes_of(getattr(state, name))
        assert row["opt_state"] == bytes_of((state.opt_state, state.step)) > 2 * row["params"]
        # number and weight of an example, 4 bytes each; streamed also its pixels and its label
        assert row["batch"] == 64 // count * (8 + (pixels + 4 if data_placement == "host" else 0))
        assert (row["dataset"] >= examples * pixels) == (data_placement == "device")
    assert list(pathlib.Path().iterdir()) == []


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main([*FLAGS, "--data-placement", "host"]) == 0
    text = capsys.readouterr().out
    assert "opt_state" in text
    assert "CPU devices share the machine's memory" in text


@pytest.mark.parametrize(
    ("spec", "held"),
    [((), 512), (("rows",), 256), ((None, "columns"), 128), (("rows", "columns"), 64)],
)
def test_each_device_holds_its_shards(spec: tuple[Any, ...], held: int) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("rows", "columns"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    kernel = jax.device_put(np.zeros((16, 8), np.float32), sharding)
    assert bytes_by_device({"dense": {"kernel": kernel}}) == dict.fromkeys(range(8), held)


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
        (
            "--devices 8 --global-batch-size 100",
            "--global-batch-size 100: 8 devices do not divide it",
        ),
        ("--model pyramidnett", "--model pyramidnett: unknown model; did you mean pyramidnet?"),
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
