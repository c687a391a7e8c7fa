"""Saves the states that a run hands out."""

from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.events import Run, Saving


class CheckpointWriter:
    """Starts to save a state; the writing goes on during training.

    Args:
        checkpoints: of the run.
    """

    every_process = True  # all of them take part in a checkpoint

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def on_save(self, run: Run, event: Saving) -> None:
        """Waits for an earlier save only."""
        self._checkpoints.save(
            event.step, event.state, dict(event.position), event.metrics, shapes=run.setup.shapes
        )
