"""Checks before the first step that all processes are about to train the same run."""

import dataclasses
import hashlib

from jaxdp.build.setup import Setup
from jaxdp.runtime.processes import Group
from jaxdp.step.state import TrainState, fingerprint
from jaxdp.training import summary


def check_agreement(
    setup: Setup, group: Group, state: TrainState, start: int, folder: object
) -> None:
    """Compares settings, data, initial arrays and the first batch of all processes. Without this
    check, a difference would lead to a hang or to wrong results.

    Raises:
        ConfigError: for the first difference.
    """
    if group.count == 1:
        return
    first_batch = setup.batches.order[min(start, setup.intervals.total_steps - 1)]
    what = setup.config.replace(process_id=None, run_dir=str(folder)).plain() | {
        "versions": summary.versions(),
        "dataset_description": dataclasses.asdict(setup.description),
        "resumed_step": start,
        "initial_arrays": fingerprint(state),
        "first_batch": hashlib.sha256(first_batch.tobytes()).hexdigest(),
    }
    group.check_equal(what, setup.config.distributed_timeout)
