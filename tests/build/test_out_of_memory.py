"""An allocation that fails ends in one line, with settings that take less."""

import pathlib
from typing import Any

import numpy as np
import pytest

import jaxdp
from jaxdp import data, train
from jaxdp.errors import ConfigError
from jaxdp.runtime import free_memory
from jaxdp.sharding.forward import Forward

RNG = np.random.default_rng(0)


def test_a_step_that_does_not_fit_is_refused_in_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, masks = RNG.integers(0, 256, (8, 136, 140), np.uint8), np.tri(136, 140, dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=pixels, masks=np.stack([masks] * 8))
    flags = ["--model", "unet", "--model-kwargs", "base_channels=2", "levels=1", "--devices", "1"]
    flags += [
        "--dataset",
        f"npz:{tmp_path / 'set.npz'}",
        "--global-batch-size",
        "7",
        "--steps",
        "1",
    ]
    flags += ["--run-dir", str(tmp_path / "run"), "--augment", "flip"]
    monkeypatch.setattr(free_memory, "_UNNOTICED_BYTES", 2**20)  # data take less

    def refused(free: int) -> str:
        monkeypatch.setattr(free_memory, "available_memory_bytes", lambda: free)
        assert train.main(flags) == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith(
            "jaxdp.train: error: a training step of 7 images of 136x140 does not fit the memory"
            " (it would take "
        )
        return line

    assert "; try --augment crop:128 --global-batch-size 1; python -m jaxdp.plan" in refused(1)
    taken = float(refused(1).partition("it would take ")[2].partition(" MiB")[0]) * 2**20
    assert "; try --augment crop:128 --global-batch-size 2; " in refused(int(taken / 2.5))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."), "allocating 99"),
        (MemoryError("Unable to allocate 9 TiB"), "allocate 9 TiB"),
    ],
)
def test_an_allocation_that_fails_is_one_line(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = RNG.integers(0, 256, (8, 24, 20, 1), np.uint8)
    dataset = data.from_arrays(
        pixels, pixels[..., 0] // 128, test=(pixels[:3], pixels[:3, ..., 0] // 128)
    )
    settings: dict[str, Any] = {"model_kwargs": {"base_channels": 1, "levels": 1}, "steps": 1}
    settings |= {"global_batch_size": 4, "devices": 1, "progress": False}
    trainer = jaxdp.Trainer("unet", dataset, **settings)

    def fail(*_: object, **__: object) -> None:
        raise error

    result = trainer.fit()
    evaluates = trainer.setup.evaluator
    strategy = evaluates.examples.strategy
    with monkeypatch.context() as patched:
        patched.setattr(strategy, "train_step", fail)
        message = rf"^a training step of 4 images of 24x20 .*{words}.*; try global_batch_size=2;"
        with pytest.raises(ConfigError, match=message):
            trainer.fit()
    with monkeypatch.context() as patched:
        patched.setattr(strategy, "eval_step", fail)
        with pytest.raises(ConfigError, match=rf"^evaluating 3 images of 24x20 .*{words}"):
            result.evaluate(split="test")
    monkeypatch.setattr(Forward, "__call__", fail)
    with pytest.raises(ConfigError, match=rf"^predicting images .*{words}.*smaller tile"):
        list(result.predictor()([np.zeros((24, 20, 1), np.uint8)]))


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = jaxdp.Trainer("cnn", "digits", steps=1, progress=False)

    def fail(*_: object) -> None:
        raise RuntimeError("INTERNAL: no")

    monkeypatch.setattr(trainer.setup.strategy, "train_step", fail)
    with pytest.raises(RuntimeError, match="INTERNAL"):
        trainer.fit()
