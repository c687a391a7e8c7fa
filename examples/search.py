"""Searches for a learning rate and an optimizer with Optuna (pip install '.[optuna]').

python examples/search.py --trials 20

The study is in study.db. After an interruption, the same command continues it. Several processes
can share the study, each on its own GPU:

CUDA_VISIBLE_DEVICES=0 python examples/search.py &
CUDA_VISIBLE_DEVICES=1 python examples/search.py
"""

import argparse

import optuna
from optuna.trial import TrialState

import jaxdp
from jaxdp.callbacks.events import Evaluated, Run


class Report:
    """Reports each evaluation to a trial, and stops a run that is worse than the median."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.is_worse = trial, False

    def on_evaluate(self, run: Run, event: Evaluated) -> None:
        self.trial.report(event.metrics["accuracy"], event.step)
        self.is_worse = self.trial.should_prune()
        if self.is_worse:
            run.stop("worse than the median of the other runs")


def objective(trial: optuna.Trial, epochs: int) -> float:
    report = Report(trial)
    result = jaxdp.Trainer(
        "cnn",
        "digits",
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1, log=True),
        optimizer=trial.suggest_categorical("optimizer", ["nesterov", "adam"]),
        validation=0.1,
        seed=0,
        epochs=epochs,
        callbacks=[report],
        progress=False,
    ).fit()
    if result.status == "stopped":
        raise KeyboardInterrupt  # Optuna does not count this trial
    if report.is_worse or result.status == "diverged":
        raise optuna.TrialPruned
    return result.metrics["validation"]["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20, help="trials of the study in all")
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    study = optuna.create_study(
        storage="sqlite:///study.db", study_name="digits", direction="maximize", load_if_exists=True
    )
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    if len(study.get_trials(states=states)) < given.trials:
        enough = optuna.study.MaxTrialsCallback(given.trials, states=states)
        study.optimize(lambda trial: objective(trial, given.epochs), callbacks=[enough])
    print(f"best accuracy {study.best_value:.2%} with {study.best_params}")


if __name__ == "__main__":
    main()
