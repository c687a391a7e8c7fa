"""Prints images per second of the same training steps in jaxdp and PyTorch, and their ratios.

    python benchmarks/versus_torch.py [--rounds N] [--seconds N] [--rows NAME ...]
        [--write FILE [--place NAME]]

Models (from tests/reference, where logits and gradients agree), batches, loss and optimizer are the
same, in float32, on this machine's CPU, with the same allocator. jaxdp runs on one device and on
two simulated ones. PyTorch runs eagerly and with torch.compile, channels first and last, with as
many threads as cores, and compiled with DistributedDataParallel in two processes of half the
threads. Each side of a row is a process that compiles once and then waits for its turns, since a
machine's speed drifts; a turn counts if the cores share a cache before and after it, for which it
waits up to 20 minutes in all. A ratio is the median over rounds of the ratios within one round; the
best of a side may change from round to round. Before a row is measured, both models must have the
same number of parameters and, given the same weights, the same logits.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import cores
import tables

from jaxdp.runtime import malloc

ROWS = {
    "PyramidNet 20 α48, 32x32, batch 64": ("pyramidnet", {"depth": 20, "alpha": 48}, 32, 64),
    # All sides of a row at once fit 24 GB.
    "PyramidNet 110 α48, 32x32, batch 64": ("pyramidnet", {"depth": 110, "alpha": 48}, 32, 64),
    "VGG 11, 32x32, batch 128": ("vgg", {"depth": 11}, 32, 128),
    "ResNet 18, 32x32, batch 128": ("resnet", {"depth": 18, "stem": "cifar"}, 32, 128),
    "U-Net base 16, 128x128, batch 8": ("unet", {"base_channels": 16}, 128, 8),
}
OURS = ("jaxdp single", "jaxdp pmap, 2 devices")
EAGER = ("torch eager, channels first", "torch eager, channels last")
COMPILED = (
    "torch.compile, channels first",
    "torch.compile, channels last",
    "torch.compile, DDP, 2 processes",
)
THEIRS = (*EAGER, *COMPILED)
CLASSES = {"pyramidnet": 10, "resnet": 10, "vgg": 10, "cnn": 10, "unet": 5}
SECONDS, WARM_UP = 4.0, 2
FEWEST_STEPS = 3  # of a measurement
REFERENCE = pathlib.Path(__file__).parents[1] / "tests" / "reference"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long a measurement takes at least"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--place", default="versus_torch", help="name of that place")
    parser.add_argument(
        "--rows", nargs="*", default=list(ROWS), help="parts of the names of the rows to measure"
    )
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--check", metavar="ROW", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        check_same_model(*ROWS[arguments.check][:3])
        return
    if arguments.one:
        row, side = arguments.one
        serve(create(ROWS[row], side), ROWS[row][3], arguments.seconds)
        return
    lines = [
        "| training step | "
        + " | ".join((*OURS, *THEIRS))
        + " | best / best eager | best / best | first step: jaxdp, torch.compile |",
        "|---" * (len(OURS) + len(THEIRS) + 4) + "|",
    ]
    near = cores.Near()
    for row in [name for name in ROWS if any(word in name for word in arguments.rows)]:
        subprocess.run([sys.executable, __file__, "--check", row], check=True)
        cells = cells_of(*measure(row, arguments.rounds, arguments.seconds, near))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    heading = (
        f"Images per second, medians of {arguments.rounds} rounds{near.note()}; first step: seconds"
        " to import, compile without a cache and run it. Written by `nox -s bench -- versus_torch`."
    )
    text = "\n".join([f"{heading} {tables.machine('jax', 'flax', 'torch')}", "", *lines, ""])
    print(text)
    if arguments.write:
        tables.write(arguments.write, arguments.place, text)


def measure(
    row: str, rounds: int, seconds: float, near: cores.Near
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns images per second of each side in each round, and seconds to its first step."""
    speeds: dict[str, list[float]] = {side: [] for side in (*OURS, *THEIRS)}
    with contextlib.ExitStack() as cleanup:
        sides = {side: cleanup.enter_context(Side(row, side, seconds)) for side in speeds}
        for number in range(rounds):
            for side, process in sides.items():
                speeds[side].append(near.measure(process.turn))
                print(
                    f"round {number + 1}: {row}, {side} {speeds[side][-1]:.1f} images/s",
                    file=sys.stderr,
                )
        return speeds, {side: process.first_step for side, process in sides.items()}


def cells_of(speeds: dict[str, list[float]], first_step: dict[str, float]) -> list[str]:
    """Returns the cells of a row: medians over the rounds of the speeds, and of their ratios within
    a round, and seconds to the first step.
    """

    def ratio(theirs: tuple[str, ...]) -> str:
        count = len(speeds[OURS[0]])
        each = [
            max(speeds[side][i] for side in OURS) / max(speeds[side][i] for side in theirs)
            for i in range(count)
        ]
        return f"**{statistics.median(each):.2f}**"

    medians = [f"{statistics.median(values):.1f}" for values in speeds.values()]
    seconds = f"{first_step[OURS[0]]:.0f} s, {first_step[COMPILED[0]]:.0f} s"
    return [*medians, ratio(EAGER), ratio(THEIRS), seconds]


class Side(contextlib.AbstractContextManager):
    """A process that has one side of a row ready, and measures it whenever it is its turn."""

    def __init__(self, row: str, side: str, seconds: float) -> None:
        command = [sys.executable, __file__, "--one", row, side, "--seconds", str(seconds)]
        self._name = f"{row}, {side}"
        # Both sides compile anew.
        self._caches = tempfile.TemporaryDirectory()
        caches = {
            "JAX_COMPILATION_CACHE_DIR": self._caches.name,
            "TORCHINDUCTOR_CACHE_DIR": self._caches.name,
        }
        environment = os.environ | caches
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()  # one after the other: a process that compiles would slow another down
        self.first_step = time.perf_counter() - start
        self._read()

    def turn(self) -> float:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: ended with exit code {self._process.wait()}")
        return float(line)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._caches.cleanup()


def serve(step: Callable[[], None], batch: int, seconds: float) -> None:
    """Warms a step up, and measures it for each line that comes in.

    Prints images per second, before them 0 after the first step and when ready.
    """
    for steps in (1, WARM_UP):
        for _ in range(steps):
            step()
        print(0, flush=True)
    for _ in sys.stdin:
        step()  # fills the caches again after the other side's turn
        print(images_per_second(step, batch, seconds), flush=True)


def create(row: tuple, side: str) -> Callable[[], None]:
    """Returns what runs one step of a side and waits for it."""
    name, kwargs, size, batch = row
    if side in OURS:
        return jaxdp_step(name, kwargs, size, batch, devices=1 + OURS.index(side))
    if side == COMPILED[2]:
        return torch_ddp(name, kwargs, size, batch)
    last, compiled = side.endswith("last"), side in COMPILED
    return torch_step(name, kwargs, size, batch, channels_last=last, compiled=compiled)


def images_per_second(step: Callable[[], None], batch: int, seconds: float) -> float:
    """Runs a step again and again for so long."""
    start, steps = time.perf_counter(), 0
    while steps < FEWEST_STEPS or time.perf_counter() - start < seconds:
        step()
        steps += 1
    return steps * batch / (time.perf_counter() - start)


def create_step(name: str, kwargs: dict, size: int, batch: int, devices: list) -> tuple:
    """Returns a training step on a batch that lies on the devices, its strategy, and the first
    state.
    """
    import numpy as np
    import optax
    from flax import nnx

    from jaxdp import models, tasks
    from jaxdp.config import TrainConfig
    from jaxdp.data.augment import Preprocess
    from jaxdp.sharding.strategy import create_strategy
    from jaxdp.step import optim
    from jaxdp.step.state import Constants, create_train_state
    from jaxdp.step.step import StepConfig

    dense, classes = name == "unet", CLASSES[name]
    task = tasks.create(
        "segmentation" if dense else "classification",
        num_classes=classes,
        class_names=tuple("0123456789"[:classes]),
    )
    optimizer = functools.partial(optim.create_optimizer, TrainConfig())
    unchanged = Preprocess((0.0,) * 3, (1.0,) * 3)
    step_config = StepConfig(task=task, optimizer=optimizer, preprocess=unchanged)
    strategy = create_strategy("single" if len(devices) == 1 else "pmap", step_config, devices)
    model = models.create(name, num_classes=classes, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    rng = np.random.default_rng(0)
    placed = strategy.shard_batch(
        {
            "images": rng.standard_normal((batch, size, size, 3), np.float32),
            "masks" if dense else "labels": (
                rng.integers(0, classes, (batch, size, size) if dense else batch).astype(np.int32)
            ),
            "weights": np.ones(batch, np.float32),
            "indices": np.arange(batch, dtype=np.int32),
        }
    )
    constants = strategy.replicate(Constants.create([0.1], seed=0))
    state = strategy.init(
        lambda: create_train_state(model, optimizer(optax.constant_schedule(0.0)))
    )
    return lambda state: strategy.train_step(state, placed, constants), strategy, state


def jaxdp_step(
    name: str, kwargs: dict, size: int, batch: int, *, devices: int
) -> Callable[[], None]:
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

    return step


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def torch_model(name: str, kwargs: dict):
    """Returns a model of tests/reference."""
    sys.path.insert(0, str(REFERENCE))
    if name == "unet":
        return importlib.import_module("test_unet_torch").Reference(
            kwargs["base_channels"], 4, bilinear=False
        )
    if name == "vgg":
        return importlib.import_module("test_vgg_torch").Reference(
            kwargs.get("width", 64), False, True
        )
    if name == "resnet":  # 50 layers where none are named
        depth, large_stem = kwargs.get("depth", 50), kwargs.get("stem") != "cifar"
        units = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]
        return importlib.import_module("test_resnet_torch").Reference(
            kwargs.get("width", 64), units, depth >= 50, large_stem
        )
    return importlib.import_module("test_pyramidnet_torch").Reference(
        kwargs["depth"], kwargs["alpha"], bottleneck=False
    )


def torch_step(
    name: str,
    kwargs: dict,
    size: int,
    batch: int,
    *,
    channels_last: bool,
    compiled: bool,
    threads: int | None = None,
    wrap: Callable = lambda model: model,
) -> Callable[[], None]:
    torch: Any = importlib.import_module("torch")

    malloc.keep_freed()  # as jaxdp does
    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = wrap(torch_model(name, kwargs).to(memory_format=layout))
    images = torch.randn(batch, 3, size, size).to(memory_format=layout)
    labels = torch.randint(0, CLASSES[name], (batch, size, size) if name == "unet" else (batch,))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    if compiled:
        model = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)

    return step


def torch_ddp(name: str, kwargs: dict, size: int, batch: int) -> Callable[[], None]:
    """Each of two processes computes half of the batch, compiled, with channels last."""
    multiprocessing: Any = importlib.import_module("torch.multiprocessing")

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    others = [theirs for _, theirs in ends]
    multiprocessing.spawn(
        ddp_process,
        (port, others, name, kwargs, size, batch // 2),
        nprocs=2,
        join=False,
        daemon=True,
    )

    def step() -> None:
        for ours, _ in ends:  # two messages of 50 microseconds are in the time of a step
            ours.send(None)
        for ours, _ in ends:
            ours.recv()

    return step


def ddp_process(
    rank: int, port: int, ends: list, name: str, kwargs: dict, size: int, batch: int
) -> None:
    torch: Any = importlib.import_module("torch")

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    wrap = torch.nn.parallel.DistributedDataParallel
    threads = max((os.cpu_count() or 2) // 2, 1)
    layout: dict = {"channels_last": True, "compiled": True}
    step = torch_step(name, kwargs, size, batch, **layout, threads=threads, wrap=wrap)
    with contextlib.suppress(EOFError):  # the parent has left
        while True:
            ends[rank].recv()
            step()
            ends[rank].send(None)


def check_same_model(name: str, kwargs: dict, size: int) -> None:
    """Raises AssertionError unless both models have as many parameters, and from the same weights
    the same logits.
    """
    torch: Any = importlib.import_module("torch")
    import numpy as np
    from flax import nnx
    from reference_state import load_reference_weights

    from jaxdp import models

    theirs = torch_model(name, kwargs)
    ours: Any = models.create(
        name, num_classes=CLASSES[name], in_channels=3, rngs=nnx.Rngs(0), **kwargs
    )
    assert models.parameter_count(ours) == sum(
        parameter.numel() for parameter in theirs.parameters()
    )
    state = {key: tensor.numpy() for key, tensor in theirs.state_dict().items()}
    load_reference_weights(ours, state)
    images = torch.randn(2, 3, size, size)
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        expected = np.moveaxis(theirs(images).numpy(), 1, -1)
    found = nnx.jit(lambda model, x: model(x))(ours, images.numpy().transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
