"""How is a run saved and found again? Orbax, one folder a step, complete or not there at all."""

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as orbax

from jaxdp.registry import ConfigError
from jaxdp.training.state import TrainState

Position = dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: the newest few and the best one stay.

    A checkpoint holds the state as plain NumPy arrays named by their path, e.g. `params/head/kernel`: it restores on any number
    of devices, and the names tell what is in it. Beside them stands the position: what the loop needs to go on as if nothing
    had happened.

    Args:
        directory: its subfolders are named by step.
        keep: how many of the newest stay; None for all, to read only.
        best_metric: name of the figure that ranks checkpoints, and whether larger is better.
    """

    def __init__(self, directory: pathlib.Path, *, keep: int | None, best_metric: tuple[str, bool]) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax reports each of its phases there
        self._metric, self._larger_is_better = best_metric
        training: Any = orbax.training  # its annotations are narrower than what it takes
        policies = training.preservation_policies
        best = policies.BestN(
            get_metric_fn=self._rank, reverse=False, n=1, keep_checkpoints_without_metrics=False
        )  # ascending: the last one is kept
        self._orbax: Any = training.Checkpointer(
            directory.absolute(),
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            cleanup_tmp_directories=keep is not None,  # what a killed save left; a reader might meet one under way
        )

    def _rank(self, metrics: Mapping[str, float]) -> float:
        return metrics[self._metric] if self._larger_is_better else -metrics[self._metric]

    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns step and test figures of the best checkpoint that has any; of equals the newest."""
        ranked = [(self._rank(item.metrics), item.step, item.metrics) for item in self._orbax.checkpoints if item.metrics]
        return max(ranked, key=lambda item: item[:2])[1:] if ranked else None

    def save(self, step: int, state: TrainState, position: Position, figures: Mapping[str, float] | None) -> None:
        """Starts to save a state that is on the host and returns; waits first for an earlier save.

        Args:
            figures: of an evaluation of this very state, if there was one.
        """
        metrics = dict(figures) if figures else None
        self._orbax.save_async(step, flatten(state), force=True, metrics=metrics, custom_metadata=position)

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint by name.

        Raises:
            ConfigError: if there is no such step.
        """
        if step not in self.steps():
            known = ", ".join(map(str, sorted(self.steps()))) or "none"
            raise ConfigError("step", step, f"there is no such checkpoint in {self._orbax.directory}; there are: {known}")
        return self._orbax.load(step)

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, Position]:
        """Returns the saved state in the structure of `like`, as NumPy arrays, and the position.

        Raises:
            ConfigError: if there is no such step, or the arrays in it are not those of `like`.
        """
        saved, expected = self.arrays(step), flatten(like)
        wrong = sorted(set(saved) ^ set(expected))
        wrong += [name for name in expected if name in saved and np.shape(saved[name]) != np.shape(expected[name])]
        if wrong:
            remedy = f"the checkpoint does not fit this model and optimizer: {len(wrong)} arrays differ, e.g. {wrong[0]}"
            raise ConfigError("resume", step, remedy)
        position = self._orbax.metadata(step).custom_metadata
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        return jax.tree.unflatten(structure, [np.asarray(saved[_name(path)]) for path, _ in paths]), dict(position or {})

    def wait(self) -> None:
        """Waits until everything is on disk; raises what a save in the background raised."""
        self._orbax.wait()

    def close(self) -> None:
        self._orbax.close()


def flatten(state: TrainState) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
