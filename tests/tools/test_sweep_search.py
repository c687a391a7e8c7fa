"""A search proposes what Optuna does, stops runs that are worse than the median, and goes on where
it was stopped.
"""

import contextlib
import json
import pathlib
import sqlite3
import sys
from typing import Any

import optuna
import pytest
from sqlalchemy.pool import NullPool
from test_sweep import FLAGS, RATE, run

from jaxdp import sweep
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.sweep_grid import Trial
from jaxdp.sweep_search import Search, parse_search


def saved_study() -> Any:
    storage = optuna.storages.RDBStorage(
        "sqlite:///out/study.db", engine_kwargs={"poolclass": NullPool}
    )
    return optuna.load_study(study_name="sweep", storage=storage)


def search(count: int, *words: str, **settings: Any) -> Search:
    return Search(
        [str(count), *(words or (RATE,))],
        TrainConfig.of(validation="0.1", **settings),
        (),
        pathlib.Path("out"),
    )


def evaluated(cell: Trial, accuracies: list[float], *, done: bool = True) -> None:
    """Writes what a run would, evaluated every 10 steps."""
    directory = cell.run
    directory.path.mkdir(exist_ok=True)
    rows = [
        {"step": 10 * (index + 1), "split": "validation", "accuracy": each}
        for index, each in enumerate(accuracies)
    ]
    directory.file("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done:
        best = {"name": "accuracy", "larger_is_better": True}
        directory.write(
            "summary.json",
            {
                "status": "done",
                "steps": 10 * len(accuracies),
                "best_metric": best,
                "best": None,
                "metrics": {"validation": {"accuracy": accuracies[-1], "loss": 1.0}},
            },
        )


def next_of(found: Search) -> Trial:
    trial = found.next()
    assert trial is not None
    return trial


def proposed(found: Search, count: int) -> list[Trial]:
    """Runs so many to their end; the closer to 0.1, the better."""
    cells = []
    for _ in range(count):
        cell = next_of(found)
        accuracy = 1 / (1 + abs(cell.config.learning_rate - 0.1))
        evaluated(cell, [accuracy / 2, accuracy])
        assert not found.end(cell, 0)
        cells.append(cell)
    return cells


def test_the_space() -> None:
    words = [
        "3",
        "learning-rate=log(1e-4,1)",
        "weight_decay=uniform(0,0.1)",
        "model_kwargs.width=int(4,16)",
        "optimizer=sgd,adam",
    ]
    count, space = parse_search(words)
    assert count == 3
    assert {name: dimension.distribution for name, dimension in space.items()} == {
        "learning_rate": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
        "weight_decay": optuna.distributions.FloatDistribution(0.0, 0.1),
        "model_kwargs.width": optuna.distributions.IntDistribution(4, 16),
        "optimizer": optuna.distributions.CategoricalDistribution(["sgd", "adam"]),
    }
    cell = next_of(Search(words, TrainConfig.of(model="cnn"), (), pathlib.Path("out")))
    rate, width = cell.settings["learning_rate"], cell.settings["model_kwargs.width"]
    assert 1e-4 <= rate <= 1
    assert rate == float(f"{rate:.4g}")  # the folder is named after it
    assert isinstance(width, int)
    assert cell.name.startswith(f"learning_rate={rate},weight_decay=")
    assert cell.config.model_kwargs == {"width": width}


def test_without_optuna_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep.main(["--trials", "3", RATE]) == 2
    assert (
        capsys.readouterr().err
        == "jaxdp.sweep: error: --trials: a search needs Optuna: pip install 'jaxdp[optuna]'\n"
    )


def test_a_search_that_was_stopped_proposes_what_it_would_have() -> None:
    whole = [cell.name for cell in proposed(search(14), 14)]
    assert len({*whole}) == 14
    pathlib.Path("out").rename("whole")
    first = [cell.name for cell in proposed(search(14), 4)]
    interrupted = search(14)
    begun = next_of(interrupted)  # a signal stops it, and nobody tells how it ended
    again = search(14)
    assert again.count == 10
    assert first + [cell.name for cell in proposed(again, 10)] == whole
    assert again.next() is None
    assert begun.name == whole[4]
    # Optuna reads the same from the file, and finds the optimum.
    study = saved_study()
    assert study.best_trial.values == [
        max(trial.value for trial in study.trials if trial.value is not None)
    ]
    assert study.best_value > 0.9
    more = search(15)
    assert more.count == 1
    with pytest.raises(
        ConfigError, match=r"output=out: holds a search with seed 0, not 1; give another output"
    ):
        search(15, seed=1)
    with pytest.raises(ConfigError, match="holds a search with trials"):
        search(15, "learning_rate=log(1e-3,0.5)")


def test_what_is_worse_than_the_median_is_pruned() -> None:
    found = search(8)
    proposed(found, 5)  # Optuna does not prune before
    cell = next_of(found)
    evaluated(cell, [0.99], done=False)
    assert not found.should_stop(cell)
    evaluated(cell, [0.99, 0.99], done=True)
    assert not found.end(cell, 0)
    cell = next_of(found)
    evaluated(cell, [0.01], done=False)
    assert found.should_stop(cell)
    assert not found.should_stop(cell)  # once
    cell.reason = "stopped"
    assert not found.end(cell, 75)
    assert cell.pruned
    diverged = next_of(found)
    diverged.reason = "the loss is nan"
    assert not found.end(diverged, 3)  # a result
    ends = [(each.reason, each.pruned, each.last_step) for each in search(8).results()[5:]]
    assert ends == [("", False, 20), ("", True, 10), ("the loss is nan", False, None)]
    # As Optuna documents its tables.
    with contextlib.closing(sqlite3.connect("out/study.db")) as database, database:
        states = [row[0] for row in database.execute("SELECT state FROM trials ORDER BY number")]
    assert states == ["COMPLETE"] * 6 + ["PRUNED"] * 2


def test_errors_larger_is_worse_and_failures_run_again() -> None:
    found = search(3)
    cell = next_of(found)
    cell.reason = "no space left"
    assert found.end(cell, 1)
    again = search(3)
    assert again.count == 3
    retried = next_of(again)
    assert retried.name == cell.name
    other = next_of(again)
    assert other.name != cell.name
    other.reason = "diverged"
    assert not again.end(other, 3)
    again = search(3)  # the first of two at once was interrupted, the second was not
    retried = next_of(again)
    assert retried.name == cell.name
    evaluated(retried, [2.0])
    summary = cell.run.read("summary.json") | {
        "best_metric": {"name": "mse", "larger_is_better": False},
        "metrics": {"validation": {"mse": 2.0, "loss": 2.0}},
    }
    cell.run.write("summary.json", summary)
    assert not again.end(retried, 0)
    study = saved_study()
    assert study.best_value == -2.0


def test_few_values_are_not_trained_twice() -> None:
    found = search(6, "optimizer=adam,sgd")
    cells = []
    while (cell := found.next()) is not None:
        evaluated(cell, [0.5])
        assert not found.end(cell, 0)
        cells.append(cell.name)
    assert sorted(cells) == ["optimizer=adam", "optimizer=sgd"]
    assert [cell.name for cell in found.results()] == cells


@pytest.mark.slow
def test_a_search_trains_and_goes_on() -> None:
    command = [
        *FLAGS,
        *"--steps 4 --eval-every 2 --validation 0.1 --output out --at-a-time 2".split(),
    ]
    code, out, err = run(*command, "--trials", "2", RATE)
    assert code == 0, err
    assert "ranked by validation data" in out
    assert len([line for line in out.splitlines() if "at step" in line]) == 2
    code, out, err = run(*command, "--trials", "3", RATE)
    assert code == 0, err
    assert "[1/1] learning_rate=" in err
    assert len([line for line in out.splitlines() if "at step" in line]) == 3
    study = saved_study()
    for trial in study.trials:
        (folder,) = [
            path
            for path in pathlib.Path("out").iterdir()
            if path.name.endswith(f"={trial.params['learning_rate']:.4g}")
        ]
        assert (
            trial.value
            == json.loads((folder / "summary.json").read_text())["metrics"]["validation"][
                "accuracy"
            ]
        )
        assert list(trial.intermediate_values) == [2, 4]
