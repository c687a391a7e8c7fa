"""Help texts list what the registries have, without imports."""

import functools
import pathlib
from collections.abc import Collection
from typing import Any

import pytest

from jaxdp import callbacks, models, tasks
from jaxdp.config import TrainConfig, fields
from jaxdp.data import augment, sources
from jaxdp.plugins import listing
from jaxdp.sharding import strategy
from jaxdp.step.optim import OPTIMIZERS
from jaxdp.tasks import regression, segmentation


def own(registry: Any) -> set[str]:
    """Returns the names that jaxdp itself registers, without names of other tests."""
    things = {
        name: entry.func if isinstance(entry, functools.partial) else entry
        for name, entry in registry.names().items()
    }
    return {name for name, thing in things.items() if thing.__module__.startswith("jaxdp.")}


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("model", own(models)),
        ("dataset", own(sources)),
        ("augment", own(augment)),
        ("task", own(tasks)),
        ("loss", [*regression.LOSSES, *segmentation.LOSSES]),
        ("optimizer", OPTIMIZERS),
        ("strategy", own(strategy)),
        ("callbacks", own(callbacks)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_help_of_a_setting_lists_each_name(setting: str, names: Collection[str]) -> None:
    assert names
    help = fields(TrainConfig)[setting].help
    places = [place for match in listing._PLACE.findall(help) for place in match.split()]
    listed = [name for place in places for name in listing.names_in(place)]
    assert sorted(listed) == sorted(names)


def test_a_new_file_is_listed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_ROOT", tmp_path)
    monkeypatch.setattr(listing, "names_in", listing.names_in.__wrapped__)
    folder = tmp_path / "jaxdp" / "models"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text('@registry.register("one")\nclass One: ...\n')
    assert listing.with_names("a model: {jaxdp.models}") == "a model: one"
    (folder / "two.py").write_text('KEYS = {"a": 1}\n\n\n@register("two", 2)\ndef two(): ...\n')
    (folder / "three.py").write_text('# as @register("four") would\nKEYS: tuple = ("b", "c")\n')
    assert listing.with_names("{jaxdp.models}.") == "one or two."
    both = "{jaxdp.models.two:KEYS jaxdp.models.three:KEYS}"
    assert listing.with_names(both) == "a, b or c"
    with pytest.raises(LookupError):
        listing.with_names("{jaxdp.models.one:KEYS}")
