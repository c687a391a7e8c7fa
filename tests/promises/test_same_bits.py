"""With `--strategy exact`, devices and processes change no bit; tests/workers has the workers.

The digest of a run is the `arrays_sha256` of its summary: all arrays of its last state.
"""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flax import nnx
from process_group import environment
from runs import assert_same_run, rows, run_train, summary

import jaxdp
from jaxdp import check
from jaxdp.callbacks.progress import Progress
from jaxdp.runtime import platform
from jaxdp.sharding import exact, slices
from jaxdp.sharding.communication import Communication

pytestmark = pytest.mark.usefixtures("no_pictures")
SHORT = "--strategy exact --steps 4 --log-every 1 --eval-every 2 --checkpoint-every 2"
# Whatever draws numbers, averages or skips. The six slices divide over 1, 2 and 3 devices only.
PYRAMIDNET = (
    f"{SHORT} --model-kwargs depth=8 alpha=6 shake_drop=0.5 dropout=0.2 --augment shift:1 mixup"
    " --global-batch-size 48 --batch-norm group:8 --ema-decay 0.9 --clip-norm 0.5 --optimizer adamw"
    " --on-divergence skip"
)
CNN = (
    f"{SHORT} --model cnn --model-kwargs width=4 hidden=16 dropout=0.2 --global-batch-size 48"
    " --batch-norm group:8"
)


def trained(flags: str, folder: str) -> str:
    assert run_train(f"{flags} --run-dir {folder}") == 0
    digest = summary(folder)["arrays_sha256"]
    assert len(digest) == 64
    return digest


def digests(flags: str, counts: tuple[int, ...]) -> set[str]:
    """Returns the digests of runs on these numbers of devices, after comparing their files."""
    found = {trained(f"{flags} --devices {count}", f"on-{count}") for count in counts}
    for count in counts[1:]:
        assert_same_run(f"on-{counts[0]}", f"on-{count}", 4)
    return found


def test_devices_change_no_bit() -> None:
    assert len(digests(PYRAMIDNET, (1, 2, 3, 4, 8))) == 1


@pytest.mark.parametrize(
    "flags",
    [
        "--accumulate-steps 2 --class-weights balanced --augment flip",
        pytest.param("--precision bfloat16 --ema-decay 0.9", marks=pytest.mark.half_precision),
        pytest.param("--freeze encoder --ema-decay 0.9 --slices 2", marks=pytest.mark.slow),
        pytest.param("--data-placement host", marks=pytest.mark.slow),
    ],
)
def test_devices_change_no_bit_of_a_u_net(flags: str) -> None:
    small = "--model unet --model-kwargs levels=2 base_channels=4 --dataset cells"
    small += " --global-batch-size 16 --batch-norm group:4"
    assert len(digests(f"{SHORT} {small} {flags}", (1, 3, 8))) == 1


def test_processes_change_no_bit() -> None:
    """Two processes, with one device and with two devices each, of which two have no slice in the
    second round.
    """
    expected = trained(f"{CNN} --devices 1", "alone")
    for devices in (1, 2):
        folder = f"two-of-{devices}"
        words = f"{CNN} --devices {devices} --run-dir {folder}".split()
        command = [sys.executable, "-m", "jaxdp.launch", "-n", "2", "--", "train", *words]
        subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=300)
        assert summary(folder)["processes"] == 2
        assert summary(folder)["arrays_sha256"] == expected
        assert_same_run("alone", folder, 4)


def test_a_run_continues_on_other_devices_bitwise(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(f"{CNN} --devices 1", "whole")
    for step, devices in enumerate((8, 3, 2), start=1):

        def stop(self: Progress, run: Any, event: Any, last: int = step) -> None:
            if event.step == last:
                signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(Progress, "on_step_end", stop)
            assert run_train(f"{CNN} --devices {devices} --run-dir parts") == 75
    assert trained(f"{CNN} --devices 1", "parts") == expected
    assert_same_run("whole", "parts", 4)


class Noisy(nnx.Module):
    """Draws from streams of its own, as Flax's layers do without keys."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dropout, self.head = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        return self.head(self.dropout(images.reshape(len(images), -1)))


def test_devices_change_no_bit_of_a_model_that_draws_by_itself() -> None:
    settings: dict[str, Any] = {"strategy": "exact", "steps": 3, "progress": False}
    weights = [
        jaxdp.Trainer(Noisy(nnx.Rngs(0)), "digits", devices=count, **settings).fit().state.params
        for count in (1, 3)
    ]
    np.testing.assert_array_equal(*(np.asarray(each["head"]["kernel"]) for each in weights))


@pytest.mark.parametrize("mutant", ["order", "last slice", "devices"])
def test_the_comparison_can_tell(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants that add in the order of arrival, leave out the last slice of an uneven division, or
    compile the number of devices into the program of a slice.
    """
    before = trained(f"{CNN} --devices 4", "right")
    if mutant == "order":
        scatter = Communication.scatter
        monkeypatch.setattr(
            Communication, "scatter", lambda self, vector: scatter(self, vector)[::-1]
        )
    elif mutant == "last slice":
        monkeypatch.setattr(exact.Exact, "_rounds", property(lambda self: 1))
    else:
        compute = slices.step.accumulate_gradients

        def scaled(state: Any, batch: Any, constants: Any, **kwargs: Any) -> Any:
            (grads, *rest), sums = compute(state, batch, constants, **kwargs)
            factor = 1 + 1e-6 * slices.jax.lax.axis_size("data")
            grads = slices.jax.tree.map(lambda leaf: leaf * factor, grads)
            return (grads, *rest), sums

        monkeypatch.setattr(slices.step, "accumulate_gradients", scaled)
    changed = {trained(f"{CNN} --devices {count}", f"wrong-{count}") for count in (1, 4)}
    assert len({*changed, before}) > 1


def test_check_prints_the_digest_of_each_number_of_devices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--bits --devices 1,3 --steps 2 --model cnn --model-kwargs width=4 hidden=16".split()
    assert check.main(words) == 0
    *lines, passed = capsys.readouterr().out.splitlines()
    assert lines[0].split(": ")[1] == lines[1].split(": ")[1]
    assert passed.startswith("passed: states after 2 steps, with jaxlib ")
    scatter = Communication.scatter
    monkeypatch.setattr(
        Communication, "scatter", lambda self, vector: len(rows := scatter(self, vector)) * rows
    )
    assert check.main(words) == 1
    assert "FAILED" in capsys.readouterr().out


def test_another_number_of_threads_is_warned_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr(platform, "threads", lambda: 12)
    jaxdp.Trainer("cnn", "digits", strategy="exact", progress=False)
    line = "JAX has 12 threads instead of 8, and bits depend on them; set NPROC=12"
    assert line in capsys.readouterr().err


def test_a_gpu_without_deterministic_kernels_is_warned_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup = jaxdp.Trainer("cnn", "digits", strategy="exact", progress=False).setup
    setup.strategy.devices = [SimpleNamespace(platform="gpu")]
    setup.strategy.check(setup.config, lambda: setup.shapes)
    assert (
        "a GPU may choose other kernels in each run; use deterministic" in capsys.readouterr().err
    )


def test_devices_without_a_slice_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"strategy": "exact", "global_batch_size": 64, "progress": False}
    jaxdp.Trainer("pyramidnet", "digits", devices=8, **settings)
    line = 'a batch has 2 slices, so only 2 of 8 devices compute; use e.g. batch_norm="group:8"'
    assert line in capsys.readouterr().err
    jaxdp.Trainer("pyramidnet", "digits", devices=8, batch_norm="group:8", **settings)
    assert "slices" not in capsys.readouterr().err


def test_the_command_prints_the_digest(capsys: pytest.CaptureFixture[str]) -> None:
    digest = trained(f"{CNN} --devices 2", "run")
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first == f"SHA-256 {digest}"
    assert last.endswith(summary("run")["same_bits_with"])
    assert f"{os.environ.get('NPROC') or 8} threads" in last
    assert rows("run")
