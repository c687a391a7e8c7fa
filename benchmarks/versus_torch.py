"""How fast is a training step beside the same one in PyTorch? Prints a table of images per second and their ratios.

    python benchmarks/versus_torch.py [--rounds N] [--output FILE] [--write FILE] [--rows NAME ...]

The same models (those of the tests in tests/reference, whose logits and gradients agree), batches, loss and optimizer, in
float32, on this machine's CPU: jaxdp on one device and on two simulated ones, PyTorch eager with as many threads as cores,
channels first and last, and DistributedDataParallel with two processes of half the threads. Each measurement is a process of its
own, and they take turns, since a machine's speed drifts; a ratio is the median over rounds of the ratios within one round."""

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import tables

ROWS = {
    "PyramidNet 20 α48, 32x32, batch 64": ("pyramidnet", {"depth": 20, "alpha": 48}, 32, 64),
    "PyramidNet 110 α48, 32x32, batch 128": ("pyramidnet", {"depth": 110, "alpha": 48}, 32, 128),
    "VGG 11, 32x32, batch 64": ("vgg", {"depth": 11}, 32, 64),
    "U-Net base 16, 128x128, batch 8": ("unet", {"base_channels": 16}, 128, 8),
}
OURS = ("jaxdp single", "jaxdp pmap, 2 devices")
THEIRS = ("torch channels first", "torch channels last", "torch DDP, 2 processes")
CLASSES = {"pyramidnet": 10, "resnet": 10, "vgg": 10, "cnn": 10, "unet": 5}
SECONDS, WARM_UP = 5.0, 2
VGG_11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # widths, 0 for a pool
REFERENCE = pathlib.Path(__file__).parents[1] / "tests" / "reference"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--output", type=pathlib.Path, help="Markdown file for the table alone")
    parser.add_argument("--write", type=pathlib.Path, help="Markdown file with a place for the table")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="parts of the names of the rows to measure")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        row, side = arguments.one
        print(json.dumps(measure(ROWS[row], side)))
        return
    lines = [
        "| training step | " + " | ".join((*OURS, *THEIRS)) + " | single / best eager | pmap / DDP |",
        "|---" * (len(OURS) + len(THEIRS) + 3) + "|",
    ]
    for row in [name for name in ROWS if any(word in name for word in arguments.rows)]:
        speeds: dict[str, list[float]] = {side: [] for side in (*OURS, *THEIRS)}
        for number in range(arguments.rounds):
            for side in speeds:
                print(f"round {number + 1}: {row}, {side}", end=" ", flush=True, file=sys.stderr)
                speeds[side].append(in_process(row, side))
                print(f"{speeds[side][-1]:.1f} images/s", file=sys.stderr)
        rounds = range(arguments.rounds)
        eager = statistics.median(speeds[OURS[0]][i] / max(speeds[side][i] for side in THEIRS[:2]) for i in rounds)
        parallel = statistics.median(speeds[OURS[1]][i] / speeds[THEIRS[2]][i] for i in rounds)
        cells = [f"{statistics.median(values):.1f}" for values in speeds.values()]
        lines.append(f"| {row} | " + " | ".join(cells) + f" | **{eager:.2f}** | **{parallel:.2f}** |")
    heading = f"Images per second, medians of {arguments.rounds} rounds, written by `nox -s versus_torch`."
    text = "\n".join([f"{heading} {tables.machine('jax', 'flax', 'torch')}", "", *lines, ""])
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    if arguments.write:
        tables.write(arguments.write, "versus_torch", text)


def in_process(row: str, side: str) -> float:
    command = [sys.executable, __file__, "--one", row, side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(row: tuple, side: str) -> float:
    """Returns images per second."""
    name, kwargs, size, batch = row
    if side in OURS:
        return jaxdp_step(name, kwargs, size, batch, devices=1 + OURS.index(side))
    if side.startswith("torch DDP"):
        return torch_ddp(name, kwargs, size, batch)
    return torch_step(name, kwargs, size, batch, channels_last=side.endswith("last"))


def images_per_second(step, batch: int) -> float:
    """Args:
    step: runs one and waits for it.
    """
    for _ in range(WARM_UP):
        step()
    start, steps = time.perf_counter(), 0
    while steps < 3 or time.perf_counter() - start < SECONDS:
        step()
        steps += 1
    return steps * batch / (time.perf_counter() - start)


def create_step(name: str, kwargs: dict, size: int, batch: int, devices: list) -> tuple:
    """Returns a training step on a batch that lies on the devices, its strategy, and the first state."""
    import numpy as np
    import optax
    from flax import nnx

    from jaxdp import models, tasks
    from jaxdp.config import TrainConfig
    from jaxdp.sharding.strategy import create_strategy
    from jaxdp.step import optim
    from jaxdp.step.state import Constants, create_train_state
    from jaxdp.step.step import Recipe

    dense, classes = name == "unet", CLASSES[name]
    task = tasks.create(
        "segmentation" if dense else "classification", num_classes=classes, class_names=tuple("0123456789"[:classes])
    )
    optimizer = functools.partial(optim.create_optimizer, TrainConfig().optimization)
    unchanged: Any = lambda batch, keys: dict(batch)  # noqa: E731
    recipe = Recipe(task=task, optimizer=optimizer, preprocess=unchanged)
    strategy = create_strategy("single" if len(devices) == 1 else "pmap", recipe, devices)
    model = models.create(name, num_classes=classes, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    rng = np.random.default_rng(0)
    placed = strategy.shard_batch(
        {
            "images": rng.standard_normal((batch, size, size, 3), np.float32),
            "masks" if dense else "labels": rng.integers(0, classes, (batch, size, size) if dense else batch).astype(np.int32),
            "weights": np.ones(batch, np.float32),
            "indices": np.arange(batch, dtype=np.int32),
        }
    )
    constants = strategy.replicate(Constants.create([0.1], seed=0))
    state = strategy.init(lambda: create_train_state(model, optimizer(optax.constant_schedule(0.0))))
    return lambda state: strategy.train_step(state, placed, constants), strategy, state


def jaxdp_step(name: str, kwargs: dict, size: int, batch: int, *, devices: int) -> float:
    from jaxdp.runtime import platform as jaxdp_platform

    jaxdp_platform.configure(devices)
    import jax
    import numpy as np

    train_step, strategy, state = create_step(name, kwargs, size, batch, jax.devices()[:devices])

    def step() -> None:
        nonlocal state
        state, sums = train_step(state)
        jax.block_until_ready((state.params, sums))
        assert np.isfinite(strategy.gather(sums["loss"]))

    return images_per_second(step, batch)


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def torch_model(name: str, kwargs: dict):
    """Returns a model of tests/reference; VGG, which has names of its own there, is plain enough to be written here."""
    torch: Any = importlib.import_module("torch")

    sys.path.insert(0, str(REFERENCE))
    if name == "unet":
        return importlib.import_module("test_unet_torch").Reference(kwargs["base_channels"], 4, bilinear=False)
    if name == "vgg":
        layers, features = [], 3
        for width in VGG_11:
            if not width:
                layers.append(torch.nn.MaxPool2d(2))
                continue
            layers += [torch.nn.Conv2d(features, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
            features = width
        return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(512, 10))
    if name == "resnet":  # 50 layers
        return importlib.import_module("test_resnet_torch").Reference(kwargs.get("width", 64), (3, 4, 6, 3), True, True)
    return importlib.import_module("test_pyramidnet_torch").Reference(kwargs["depth"], kwargs["alpha"], bottleneck=False)


def torch_step(
    name: str, kwargs: dict, size: int, batch: int, *, channels_last: bool, threads: int | None = None,
    wrap: Callable = lambda model: model,
) -> float:  # fmt: skip
    torch: Any = importlib.import_module("torch")

    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = wrap(torch_model(name, kwargs).to(memory_format=layout))
    images = torch.randn(batch, 3, size, size).to(memory_format=layout)
    labels = torch.randint(0, CLASSES[name], (batch, size, size) if name == "unet" else (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)

    return images_per_second(step, batch)


def torch_ddp(name: str, kwargs: dict, size: int, batch: int) -> float:
    """Each of two processes computes half of the batch, with channels last, which is the faster layout."""
    multiprocessing: Any = importlib.import_module("torch.multiprocessing")

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(ddp_process, (port, queue, name, kwargs, size, batch // 2), nprocs=2)
    return 2 * min(queue.get(), queue.get())


def ddp_process(rank: int, port: int, queue, name: str, kwargs: dict, size: int, batch: int) -> None:
    torch: Any = importlib.import_module("torch")

    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    # A number of steps that both agree on: the clock alone would let one leave while the other waits for its gradients.
    global images_per_second
    images_per_second = fixed_steps
    wrap = torch.nn.parallel.DistributedDataParallel
    threads = max((os.cpu_count() or 2) // 2, 1)
    queue.put(torch_step(name, kwargs, size, batch, channels_last=True, threads=threads, wrap=wrap))
    torch.distributed.destroy_process_group()


def fixed_steps(step, batch: int, steps: int = 6) -> float:
    for _ in range(WARM_UP):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * batch / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
