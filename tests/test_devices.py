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
    assert "xla_force_host_platform_device_count=8" in process["environment"]["XLA_FLAGS"]
    assert found["placement"] is None
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
    examples, pixels = len(dataset.train) + len(dataset.test), math.prod(dataset.image_shape)
    rows = [device["holds"] for device in found["processes"][0]["devices"]]
    assert len(rows) == count
    for row in rows:
        for name in ("params", "batch_stats", "ema"):
            assert row[name] == bytes_of(getattr(state, name))
        assert row["opt_state"] == bytes_of((state.opt_state, state.step)) > 2 * row["params"]
        # number and weight of an example, 4 bytes each; streamed also its pixels and its label
        assert row["batch"] == 64 // count * (8 + (pixels + 4 if data_placement == "host" else 0))
        resident = row["dataset"] >= examples * pixels
        assert resident == (data_placement == "device")
    placed = found["placement"]
    assert (
        placed.items()
        >= {
            "strategy": strategy,
            "global_batch_size": 64,
            "data_placement": data_placement,
        }.items()
    )
    assert placed["parameters"] == sum(
        math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)
    )
    assert list(pathlib.Path().iterdir()) == []


def test_padding_is_no_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts = (
        shown(capsys, *FLAGS, "--strategy", "sharded", *more)["placement"]
        for more in ([], ["--shard-params"])
    )
    assert parts["parameters"] == whole["parameters"]


def test_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert devices.main([*FLAGS, "--data-placement", "host"]) == 0
    text = capsys.readouterr().out
    assert (
        "pyramidnet on digits, pmap, 64 examples a step: bytes on each device, activations left out"
        in text
    )
    assert "CPU devices share the machine's memory" in text
    assert "dataset" not in text


@pytest.mark.parametrize(
    ("spec", "held"),
    [((), 512), (("rows",), 256), ((None, "columns"), 128), (("rows", "columns"), 64)],
)
def test_each_device_holds_its_shards(spec: tuple[Any, ...], held: int) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("rows", "columns"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    kernel = jax.device_put(np.zeros((16, 8), np.float32), sharding)
    assert bytes_by_device({"dense": {"kernel": kernel}}) == dict.fromkeys(range(8), held)


def test_what_an_accelerator_tells_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = {"bytes_in_use": 2_500_000_000, "bytes_limit": 10_000_000_000}

    def chip(kind: str, place: int, stats: dict[str, int] | None) -> SimpleNamespace:
        facts = {"id": 4 + place, "platform": "tpu", "device_kind": kind, "slice_index": place}
        return SimpleNamespace(**facts, coords=(0, place, 0), memory_stats=lambda: stats)

    chips = [chip("TPU", 0, None), chip("TPU v4", 1, stats)]
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(devices.platform, "select_devices", lambda count: chips)
    assert devices.main([]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "TPU v4" in line]
    for text in ("│ 5 ", "[0, 1, 0]", "│ 1 ", "2.3 GiB", "7.0 GiB", "9.3 GiB"):
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
