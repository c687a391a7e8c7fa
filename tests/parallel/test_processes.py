"""Two processes of two devices train as one process of four does."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import json, sys
from jaxdp.parallel import platform
platform.configure(int(sys.argv[2]))
import jax
processes, index, port, strategy = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[1]
if processes > 1:
    jax.distributed.initialize(f"localhost:{port}", processes, index)
from jaxdp.config import TrainConfig
from jaxdp.training.setup import create_setup
config = TrainConfig(model_kwargs={"depth": 8, "alpha": 6}, strategy=strategy, steps=3, global_batch_size=32, batch_norm="group:4")
setup = create_setup(config)
assert setup.strategy.num_devices == 4
state, losses = setup.strategy.init(setup.create_state), []
for batch in setup.train_batches(0):
    state, sums = setup.strategy.train_step(state, batch)
    losses.append(float(setup.strategy.gather(sums)["loss"]))
test = setup.evaluate(state)
params = setup.strategy.gather(state.params)
total = sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(params))
print(json.dumps({"losses": losses, "params": total, "test": test}))
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run(strategy: str, devices: int, processes: int) -> list[dict]:
    port = str(free_port())
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # this one's says 8 devices
    command = [sys.executable, "-c", PROGRAM, strategy, str(devices), str(processes)]
    running = [
        subprocess.Popen([*command, str(index), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for index in range(processes)
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_two_processes_agree_with_one(strategy: str) -> None:
    (expected,) = run(strategy, devices=4, processes=1)
    for result in run(strategy, devices=2, processes=2):
        np.testing.assert_allclose(result["losses"], expected["losses"], rtol=1e-5)
        assert result["params"] == pytest.approx(expected["params"], rel=1e-6)
        assert result["test"]["examples"] == 360
        assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], rel=1e-4)
