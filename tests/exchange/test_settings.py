"""What goes together with an exchange, and what is said of the rest; Ray is not started."""

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

import jaxdp
from jaxdp.config import TrainConfig, run_hash
from jaxdp.exchange import servers, session
from jaxdp.registry import ConfigError
from jaxdp.runtime import ray_connection

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'jaxdp[ray]'"
)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"workers": 3},
            "--workers 3: is for --exchange exact and async and local, and this is allreduce",
        ),
        (
            {"exchange": "exact", "staleness": 3},
            "--staleness 3: is for --exchange async, and this is exact",
        ),
        (
            {"exchange": "async", "slices": 3},
            "--slices 3: is for --exchange exact and local, and this is async",
        ),
        ({"exchange": "exact", "workers": 0}, "--workers 0: must be greater than 0"),
        (
            {"exchange": "exact", "batch_norm": "replica"},
            "--batch-norm replica: depends on what one device computes",
        ),
        (
            {"exchange": "exact", "batch_norm": "global"},
            "--batch-norm global: depends on what one device computes",
        ),
        (
            {"exchange": "async", "batch_norm": "replica"},
            "--batch-norm replica: depends on what one device computes",
        ),
        (
            {"exchange": "exact", "slices": 8},
            "--slices 8: slices must be whole groups of 32 of the 128 examples of a batch; use 4",
        ),
        (
            {"exchange": "local", "workers": 3},
            "--workers 3: slices must be whole groups of 32 .* use --slices 2|4",
        ),
        (
            {"exchange": "exact", "strategy": "central"},
            "--strategy central: --exchange exact computes on its workers",
        ),
        ({"exchange": "exact", "devices": 4}, "--devices 4: --exchange exact takes --workers"),
        (
            {"exchange": "exact", "accumulate_steps": 2},
            "--accumulate-steps 2: does not go together with --exchange exact",
        ),
        ({"exchange": "local", "precision": "float16"}, "--precision float16: its loss scale"),
        (
            {"exchange": "async", "on_divergence": "skip"},
            "--on-divergence skip: --exchange async has no single update",
        ),
        ({"exchange": "async", "servers": 99}, "--servers 99: the model has 13 arrays"),
    ],
)
def test_what_does_not_go_together_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        jaxdp.Trainer("cnn", "digits", progress=False, **settings)
    assert "\n" not in str(error.value)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxdp\[ray\]'"):
        ray_connection.require()


def test_ray_is_not_imported_for_all_reduce() -> None:
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


def test_the_name_of_a_run_does_not_tell_its_exchange() -> None:
    before = run_hash(TrainConfig.of(model="cnn"))
    for settings in (
        {"exchange": "exact", "workers": 7, "slices": 4},
        {"exchange": "async", "servers": 2, "staleness": 1},
    ):
        assert run_hash(TrainConfig.of(model="cnn", **settings)) == before


@pytest.mark.parametrize(
    ("settings", "slices"),
    [
        ({"exchange": "exact"}, 4),
        ({"exchange": "exact", "batch_norm": "group:8"}, 16),
        ({"exchange": "exact", "batch_norm": "group:2"}, 16),
        ({"exchange": "exact", "batch_norm": "group:8", "slices": 8}, 8),
        ({"exchange": "local", "workers": 2}, 2),
        ({"exchange": "async"}, 1),
    ],
)
def test_slices_are_whole_groups(settings: dict[str, Any], slices: int) -> None:
    assert (
        session.number_of_slices(jaxdp.Trainer("cnn", "digits", progress=False, **settings).setup)
        == slices
    )


def test_servers_hold_about_as_much_each() -> None:
    sizes = [1000, 400, 300, 300, 200, 100, 100, 1, 1]
    owners = servers.owners_of(sizes, 3)
    held = [
        sum(size for size, owner in zip(sizes, owners, strict=True) if owner == server)
        for server in range(3)
    ]
    assert set(owners) == {0, 1, 2}
    assert max(held) <= 4 / 3 * max(max(sizes), -(-sum(sizes) // 3))
