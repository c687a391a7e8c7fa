"""Weights & Biases, for real: it writes its offline files."""

import pathlib
from typing import Any

import pytest

import jaxdp

SMALL: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 16},
    "devices": 1,
    "global_batch_size": 160,
    "log_every": 4,
    "progress": False,
}


def test_wandb_offline(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = jaxdp.Trainer(
        "cnn", "digits", **SMALL, callbacks=["wandb:project=test,mode=offline"], run_dir="run"
    )
    result = trainer.fit(steps=8)
    assert result.status == "done"
    identifier = pathlib.Path("run", "wandb-id.txt").read_text().strip()
    files = list(pathlib.Path("run").rglob(f"run-{identifier}.wandb"))
    assert len(files) == 1
    content = files[0].read_bytes()
    assert all(name in content for name in (b"train/loss", b"test/accuracy", b"global_batch_size"))
    trainer.fit(steps=16)
    assert pathlib.Path("run", "wandb-id.txt").read_text().strip() == identifier


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(
        jaxdp.ConfigError,
        match=r"callbacks=wandb: needs the package wandb: pip install '\.\[wandb\]'",
    ):
        jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=["wandb"])
