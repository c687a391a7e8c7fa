"""A run that a callback ends has a row of its last training steps, and counts each example once."""

import json
import pathlib
from typing import Any

import pytest
from example_files import noise, refused, write

import jaxdp
from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset


class Stops:
    def __init__(self, step: int, *, everywhere: bool) -> None:
        self._step, self.every_process = step, everywhere

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == self._step:
            run.stop("enough")


@pytest.mark.parametrize(("step", "everywhere"), [(5, False), (8, False), (8, True)])
def test_the_last_steps_of_a_run_that_ends_early_are_a_row(
    step: int, everywhere: bool, no_pictures: None
) -> None:
    settings: dict[str, Any] = {
        "model_kwargs": {"width": 4, "hidden": 8},
        "global_batch_size": 64,
        "log_every": 4,
        "eval_every": 5,
        "devices": 1,
        "progress": False,
        "run_dir": "run",
    }
    stops = Stops(step, everywhere=everywhere)
    trainer = jaxdp.Trainer("cnn", "digits", callbacks=[stops], **settings)
    assert trainer.fit(steps=12).summary["ended_early"]["reason"] == "enough"

    def rows() -> list[tuple[int, int]]:
        lines = map(json.loads, pathlib.Path("run", "metrics.jsonl").read_text().splitlines())
        return [(row["step"], row["examples"]) for row in lines if row["split"] == "train"]

    expected = {5: [(4, 256), (5, 64)], 8: [(4, 256), (8, 256)]}[step]
    assert rows() == expected
    assert pathlib.Path("run", "checkpoints", str(step)).is_dir()
    jaxdp.Trainer("cnn", "digits", **settings).fit(steps=16)
    assert sum(examples for _, examples in rows()) == 16 * 64


def test_a_rare_class_is_named_by_its_name() -> None:
    counts = {"cat": 6, "dog": 6, "lynx": 1}
    write(
        {f"{name}/{n}.png": noise(n, 8, 8) for name, count in counts.items() for n in range(count)}
    )
    with refused("validation=0.3: leaves no validation example of class lynx, which has 1;"):
        open_dataset(DataConfig.of(dataset="folder:set", validation="0.3"))
