"""A run of thousands of steps takes as much memory, threads and open files at its end as after its
first epoch, and compiles nothing on the way.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

STEPS, STEPS_PER_EPOCH, BATCH = 5_000, 500, 8
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --devices 1 --dataset npz:set.npz"
    f" --global-batch-size {BATCH} --steps {STEPS} --ema-decay 0.9 --eval-every 250"
    " --checkpoint-every 250 --log-every 50 --run-dir run"
).split()
# Steps and evaluations take nothing: 0.2 MB in 2,500 steps. What grows is Orbax, 0.1 to 0.5 MB a
# save, of which there are 18 here.
MOST_GROWTH_MB = 24
MOST_NEW = 12
# A process of its own: pytest's has other tests' memory and compilations. Samples are taken at the
# end of each epoch.
PROGRAM = """
import json, os, resource, sys, threading
from jaxdp import train
from jaxdp.callbacks.progress import Progress
compilations, samples = [], []

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def advance(self, run, event):
    step = event.step
    if step == 1:
        import jax
        def listen(event, duration, **_):
            if event.endswith("backend_compile_duration"):
                compilations.append(event)
        jax.monitoring.register_event_duration_secs_listener(listen)
    if step % int(sys.argv[1]) == 0:
        files = len(os.listdir("/proc/self/fd"))
        sample = {"step": step, "megabytes": megabytes(), "compilations": len(compilations)}
        samples.append(sample | {"threads": threading.active_count(), "files": files})

Progress.on_step_end = advance
code = train.main(sys.argv[2:])
with open("samples.json", "w") as file:
    json.dump(samples, file)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="reads its memory from /proc"
)
@pytest.mark.parametrize("placement", ["device", "host"])
def test_thousands_of_steps_neither_grow_nor_compile(placement: str) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (STEPS_PER_EPOCH * BATCH + 100, 8, 8, 1), np.uint8)
    labels = (images.mean((1, 2, 3)) > 127.5).astype(np.int32)
    np.savez(
        "set.npz",
        train_images=images[:-100],
        train_labels=labels[:-100],
        test_images=images[-100:],
        test_labels=labels[-100:],
    )
    # The tests' own says 8 devices.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(STEPS_PER_EPOCH),
        *FLAGS,
        "--data-placement",
        placement,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    samples = json.loads(pathlib.Path("samples.json").read_text())
    for sample in samples:
        print(", ".join(f"{name} {value:.0f}" for name, value in sample.items()))
    first, last = samples[0], samples[-1]
    assert (first["step"], last["step"]) == (STEPS_PER_EPOCH, STEPS)
    # They are seen at all: that of the evaluation comes after step 1.
    assert first["compilations"] > 0
    assert last["compilations"] == first["compilations"]
    # A save under way has a few of each. A thread and three files a save would be those of an Orbax
    # response nobody waited for.
    assert last["threads"] < first["threads"] + MOST_NEW
    assert last["files"] < first["files"] + MOST_NEW
    growth = last["megabytes"] - first["megabytes"]
    print(
        f"{placement}: {first['megabytes']:.1f} MB after the first epoch, {growth:+.1f} MB at the"
        f" end; {MOST_GROWTH_MB} allowed"
    )
    assert growth < MOST_GROWTH_MB
    assert json.loads(pathlib.Path("run", "summary.json").read_text())["steps"] == STEPS
