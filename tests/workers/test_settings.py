"""What goes together with workers, and the message for the rest; Ray is not started."""

import importlib.util
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml

import jaxdp
from jaxdp import config
from jaxdp.config import TrainConfig, deprecation, run_hash
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime import ray_connection
from jaxdp.sharding.exact import Exact

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'"
)


def test_a_setting_of_one_fit_is_checked_too() -> None:
    trainer = jaxdp.Trainer("cnn", "digits", strategy="exact", progress=False)
    with pytest.raises(ConfigError, match='steps_per_execution=2: strategy="exact" has a'):
        trainer.fit(steps_per_execution=2)


def test_other_commands_start_no_workers() -> None:
    trainer = jaxdp.Trainer("cnn", "digits", strategy="exact", workers=2, progress=False)
    with pytest.raises(ConfigError, match="strategy=exact: computes on workers, which only"):
        trainer.setup.batches.placed(0)
    assert 0 <= jaxdp.Result.untrained(trainer.setup).evaluate()["accuracy"] <= 1


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[ray\]'"):
        ray_connection.require()


def test_ray_is_not_imported_without_workers() -> None:
    code = (
        "import sys, jaxdp; jaxdp.Trainer('cnn', 'digits', progress=False); print('ray' in"
        " sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "exact", "workers": 7, "slices": 4},
    ],
)
def test_the_same_command_finds_the_folder_of_version_0_2(settings: dict[str, Any]) -> None:
    """Version 0.2 computed this hash for both; there the second was `--exchange exact`."""
    run = TrainConfig.of(model="cnn", dataset="digits", epochs=3, **settings)
    assert run_hash(run) == "28e351de"


@pytest.mark.parametrize(("servers", "notes"), [(None, 0), (2, 1)])
def test_a_run_with_servers_is_read(
    servers: int | None, notes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers held shares of the state and changed nothing in it."""
    pathlib.Path("run").mkdir()
    settings = {"model": "cnn", "strategy": "exact", "workers": 3}
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump(settings | {"servers": servers}))
    run = RunDirectory(pathlib.Path("run"))
    assert run.load_config() == TrainConfig.of(**settings)
    line = "has servers: 2, which was removed after 0.3.0: leave it out; the process of the command"
    assert capsys.readouterr().err.count(line) == notes


def test_a_run_of_version_0_2_has_the_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    name = "exact"
    pathlib.Path("run").mkdir()
    names = [name for name in deprecation.REMOVED if " " not in name]
    defaults: dict[str, Any] = {name: deprecation.LAST_DEFAULTS.get(name) for name in names}
    old = {"model": "cnn", "strategy": "pmap", "workers": 3, **defaults, "exchange": name}
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump(old))
    run = RunDirectory(pathlib.Path("run"))
    assert run.load_config() == TrainConfig.of(model="cnn", strategy=name, workers=3)
    assert run.changes_text(TrainConfig.of(model="cnn", strategy=name, workers=3)) == ""
    assert config.load("run/config.yaml")["strategy"] == name
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "lines", [{"strategy": "async", "staleness": 3}, {"strategy": "pmap", "exchange": "async"}]
)
def test_a_run_of_asynchronous_workers_is_read_as_one_on_devices(
    lines: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are evaluated and used, and the same folder goes on with another strategy."""
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump({"model": "cnn", **lines}))
    assert RunDirectory(pathlib.Path("run")).load_config() == TrainConfig.of(model="cnn")
    err = capsys.readouterr().err
    assert "has strategy: async, which was removed after 0.3.0: use" in err
    assert err.count("\n") == 1 + ("staleness" in lines)


@pytest.mark.parametrize(
    ("settings", "slices"),
    [
        ({"strategy": "exact"}, 4),
        ({"strategy": "exact", "batch_norm": "group:8"}, 16),
        ({"strategy": "exact", "batch_norm": "group:2"}, 16),
        ({"strategy": "exact", "batch_norm": "group:8", "slices": 8}, 8),
        ({"strategy": "exact", "batch_norm": "global", "slices": 1}, 1),
        ({"strategy": "exact", "accumulate_steps": 4, "batch_norm": "group:16"}, 8),
        ({"strategy": "exact", "workers": 3}, 4),
    ],
)
def test_slices_are_whole_groups(settings: dict[str, Any], slices: int) -> None:
    setup = jaxdp.Trainer("cnn", "digits", progress=False, **settings).setup
    assert isinstance(setup.strategy, Exact)
    assert setup.strategy.slices == slices
