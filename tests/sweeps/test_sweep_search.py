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
from jaxdp.errors import ConfigError
from jaxdp.sweeps.search import Search
from jaxdp.sweeps.trials import Space, Trial


def saved_study() -> Any:
    storage = optuna.storages.RDBStorage(
        "sqlite:///out/study.db", engine_kwargs={"poolclass": NullPool}
    )
    return optuna.load_study(study_name="sweep", storage=storage)


def search(count: int, *words: str, **settings: Any) -> Search:
    config = TrainConfig.of(validation="0.1", **settings)
    space = Space(words or (RATE,), "trials", config, (), pathlib.Path("out"))
    search = Search(str(count), space)
    search.begin()
    return search


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


def proposed(found: Search, count: int) -> list[Trial]:
    """Runs so many to their end; the closer to 0.1, the better."""
    cells = []
    for _ in range(count):
        cell = next(found.waiting)
        accuracy = 1 / (1 + abs(cell.settings["learning_rate"] - 0.1))
        evaluated(cell, [accuracy / 2, accuracy])
        assert not found.end(cell, 0)
        cells.append(cell)
    return cells


def test_the_space() -> None:
    words = [
        "learning-rate=log(1e-4,1)",
        "weight_decay=uniform(0,0.1)",
        "model_kwargs.width=int(4,16)",
        "optimizer=sgd,adam",
    ]
    found = search(3, *words, model="cnn")
    cell = next(found.waiting)
    assert found.count == 3
    assert saved_study().trials[0].distributions == {
        "learning_rate": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
        "weight_decay": optuna.distributions.FloatDistribution(0.0, 0.1),
        "model_kwargs.width": optuna.distributions.IntDistribution(4, 16),
        "optimizer": optuna.distributions.CategoricalDistribution(["sgd", "adam"]),
    }
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
        == "jaxdp.sweep: error: --trials: a search needs Optuna: pip install '.[optuna]'\n"
    )


def test_a_search_that_was_stopped_proposes_what_it_would_have() -> None:
    whole = [cell.name for cell in proposed(search(14), 14)]
    assert len({*whole}) == 14
    pathlib.Path("out").rename("whole")
    first = [cell.name for cell in proposed(search(14), 4)]
    interrupted = search(14)
    begun = next(interrupted.waiting)  # a signal stops it, and nobody tells how it ended
    again = search(14)
    assert again.count == 10
    assert first + [cell.name for cell in proposed(again, 10)] == whole
    assert next(again.waiting, None) is None
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
        ConfigError, match="output=out: holds a search with other ranges or settings"
    ):
        search(15, seed=1)
    with pytest.raises(ConfigError, match="holds a search with other"):
        search(15, "learning_rate=log(1e-3,0.5)")


def test_what_is_worse_than_the_median_is_pruned() -> None:
    found = search(8)
    proposed(found, 5)  # Optuna does not prune before
    cell = next(found.waiting)
    evaluated(cell, [0.99], done=False)
    assert not found.should_stop(cell)
    evaluated(cell, [0.99, 0.99], done=True)
    assert not found.end(cell, 0)
    cell = next(found.waiting)
    evaluated(cell, [0.01], done=False)
    assert found.should_stop(cell)
    assert not found.should_stop(cell)  # once
    assert not found.end(cell, 75)
    diverged = next(found.waiting)
    diverged.note = "failed: the loss is nan"
    assert not found.end(diverged, 3)  # a result
    notes = ["", "pruned at step 10", "failed: the loss is nan"]
    assert [each.note for each in search(8).trials()[5:]] == notes
    # As Optuna documents its tables.
    with contextlib.closing(sqlite3.connect("out/study.db")) as database, database:
        states = [row[0] for row in database.execute("SELECT state FROM trials ORDER BY number")]
    assert states == ["COMPLETE"] * 6 + ["PRUNED"] * 2


def test_errors_larger_is_worse_and_failures_run_again() -> None:
    found = search(3)
    cell = next(found.waiting)
    cell.note = "no space left"
    assert found.end(cell, 1)
    again = search(3)
    assert again.count == 3
    retried = next(again.waiting)
    assert retried.name == cell.name
    other = next(again.waiting)
    assert other.name != cell.name
    other.note = "diverged"
    assert not again.end(other, 3)
    again = search(3)  # the first of two at once was interrupted, the second was not
    retried = next(again.waiting)
    assert retried.name == cell.name
    evaluated(retried, [2.0])
    retried.run.file("metrics.jsonl").unlink()
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
    for cell in found.waiting:
        evaluated(cell, [0.5])
        assert not found.end(cell, 0)
        cells.append(cell.name)
    assert sorted(cells) == ["optimizer=adam", "optimizer=sgd"]
    assert [cell.name for cell in found.trials()] == cells


@pytest.mark.slow
def test_a_search_trains_and_goes_on() -> None:
    command = [
        *FLAGS,
        *"--steps 4 --eval-every 2 --validation 0.1 --output out --at-a-time 2".split(),
    ]
    code, out, err = run(*command, "--trials", "2", RATE)
    assert code == 0, err
    assert "ranked by validation data" in out
    code, out, err = run(*command, "--trials", "3", RATE)
    assert code == 0, err
    assert "[1/1] learning_rate=" in err
    trials = saved_study().trials
    assert len(trials) == 3
    for trial in trials:
        (file,) = pathlib.Path("out").glob(f"*={trial.params['learning_rate']:.4g}/summary.json")
        metrics = json.loads(file.read_text())["metrics"]
        assert trial.value == metrics["validation"]["accuracy"]
        assert list(trial.intermediate_values) == [2, 4]
