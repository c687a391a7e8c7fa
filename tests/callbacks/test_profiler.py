"""A trace that an example records holds the steps that were asked for, and the compiled step names
its parts.
"""

import pathlib
import re

import pytest
from jax.profiler import ProfileData

from jaxdp import train
from jaxdp.build.setup import create_setup
from jaxdp.config import TrainConfig

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "profile_steps.py"
FLAGS = "--model cnn --global-batch-size 64 --devices 2 --steps 6 --run-dir run".split()


def traced_steps(folder: pathlib.Path) -> set[int]:
    (file,) = folder.glob("**/*.xplane.pb")
    events = [
        event
        for plane in ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
    ]
    assert any(event.name == "waiting for input" for event in events)
    return {int(dict(event.stats)["step_num"]) for event in events if event.name == "train"}


@pytest.mark.usefixtures("registries")
def test_the_steps_that_were_asked_for_are_recorded() -> None:
    flags = ["--plugins", str(EXAMPLE), "--callbacks", "profiler:first=3,last=4"]
    assert train.main([*FLAGS, *flags]) == 0
    assert traced_steps(pathlib.Path("run/profile")) == {3, 4}


def test_the_parts_of_a_step_have_names() -> None:
    setup = create_setup(
        TrainConfig.of(
            model="cnn", global_batch_size=64, devices=2, strategy="shard_map", augment=("flip",)
        )
    )
    text = setup.strategy.train_step.lower(*setup.abstract_step(64)).as_text(debug_info=True)
    for part in ("input", "augment", "forward", "backward", "reduce", "update"):
        assert re.search(rf"[\"/]{part}/", text), part
