"""Defines the measurements of gpu_check.py, each in its own process.

python -m gpu.cells NAME JSON        prints what it finds, as lines of JSON
"""

import importlib
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import versus_torch

from gpu import roofline

Record = dict[str, Any]
WARM_UP, REPEATS, SECONDS, MOST_STEPS = 3, 3, 1.0, 1000
# Between two ways to round on a CPU weights differ by 1e-6 then, and by 1e-5 if each update is off
# by a hundredth. At ten times this rate they differ by 2e-5 from rounding alone: where a maximum
# changes sides, later steps move apart.
LEARNING_RATE = 0.001
OWNERS = (1, 2, 4, 8)  # of the slices of a batch
ENDLESS = 10**6  # steps: the pipeline must not come to its end


def main() -> int:
    name, arguments = sys.argv[1:]
    cells: dict[str, Callable[..., Record]] = {
        "device": device,
        "agreement": agreement,
        "jaxdp": jaxdp_step,
        "torch": torch_step,
        "predict": predict,
        "compare": compare,
        "bits": bits,
    }
    print(json.dumps(cells[name](**json.loads(arguments))))
    return 0


def device() -> Record:
    """Returns what JAX finds, and for which target of `jaxdp.plan` that is."""
    from jaxdp.runtime import platform

    platform.configure(None)
    import jax

    from jaxdp.runtime.targets import CHIPS

    kind, platform_name = jax.devices()[0].device_kind, jax.devices()[0].platform
    chips = [
        chip.name
        for chip in CHIPS.values()
        if chip.platform == "cuda" and chip.name in kind.lower()
    ]
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return {
        "kind": kind,
        "platform": platform_name,
        "memory_bytes": limit,
        "target": f"cuda:{chips[0]}:1" if chips else None,
    }


def agreement(name: str, kwargs: Record, size: int) -> Record:
    """Returns how far three steps on the accelerator and on the CPU are apart."""
    from jaxdp.runtime import platform

    platform.configure(None)
    import jax

    # On GPUs float32 products are rounded to fewer bits by default, which is no fault.
    jax.config.update("jax_default_matmul_precision", "highest")
    here, cpu = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    return differences(three_steps(name, kwargs, size, here), three_steps(name, kwargs, size, cpu))


def bits(steps: int) -> Record:
    """Returns the SHA-256 of the state after steps of `exact` with deterministic kernels, by the
    number of owners that the eight slices of a batch are divided among.

    One device computes the slices of one owner after the other, and adds all in their order.
    """
    from jaxdp.runtime import platform

    platform.configure(None, deterministic=True, strategy="exact")
    import numpy as np

    from jaxdp.build.setup import create_setup
    from jaxdp.config import TrainConfig
    from jaxdp.sharding import slices
    from jaxdp.step.state import fingerprint

    settings = {"model_kwargs": {"depth": 8, "alpha": 6, "dropout": 0.1}, "batch_norm": "group:8"}
    settings |= {"dataset": "digits", "global_batch_size": 64, "steps": steps, "devices": 1}
    setup = create_setup(TrainConfig.of(model="pyramidnet", strategy="exact", **settings))
    strategy, constants = setup.strategy, setup.constants
    compute = slices.compute(strategy.mesh, setup.step_config)
    add, add_last = (slices.add(strategy.mesh, last=last) for last in (False, True))
    update = slices.update(strategy.mesh, setup.step_config)
    digests = {}
    for owners in OWNERS:
        state = strategy.restore(setup.create_state())
        for batch in setup.batches.placed(0):
            needed, results = slices.read_by_gradients(state), {}
            for owner in range(owners):
                for number in range(owner, len(batch), owners):
                    results[number] = compute(needed, batch[number], constants)
            total = None
            for number in range(len(batch)):
                program = add_last if number + 1 == len(batch) else add
                total = program(total, results[number], np.ones(1, bool))
            count = np.float32(len(batch))
            state, _ = update(state, total, count, constants.learning_rates)
        digests[str(owners)] = fingerprint(state)
    return {"slices": strategy.shards, "steps": steps, "digests": digests}


def three_steps(
    name: str, kwargs: Record, size: int, device: Any, learning_rate: float = LEARNING_RATE
) -> tuple[list[Any], list[Any]]:
    """Returns the parameters before and after three training steps on a batch of eight."""
    import jax
    import numpy as np

    from jaxdp.sharding.strategy import create_strategy
    from jaxdp.step.state import Constants

    setup = create_setup(name, kwargs, size, 8, "float32")
    strategy = create_strategy("single", setup.step_config, [device])
    arrays = strategy.shard_batch(jax.tree.map(np.asarray, next(setup.batches.placed(0))))
    constants = strategy.replicate(Constants.create([learning_rate] * 3, seed=0))
    state = strategy.restore(setup.create_state())
    before = jax.tree.leaves(strategy.gather(state.params))
    for _ in range(3):
        state, _ = strategy.train_step(state, arrays, constants)
    return before, jax.tree.leaves(strategy.gather(state.params))


def differences(here: tuple[list[Any], list[Any]], cpu: tuple[list[Any], list[Any]]) -> Record:
    """Returns the largest difference of a weight as a fraction of the largest weight, and the norm
    of all differences as a fraction of the norm of the updates.
    """
    import numpy as np

    pairs = list(zip(here[1], cpu[1], strict=True))
    largest = max(np.abs(there).max() for _, there in pairs)
    apart = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in pairs))
    moved = math.sqrt(
        sum(float(np.square(after - before).sum()) for before, after in zip(*cpu, strict=True))
    )
    return {
        "of_weights": float(max(np.abs(a - b).max() for a, b in pairs) / largest),
        "of_updates": apart / moved,
    }


def seconds_per_step(step: Callable[[], None], wait: Callable[[], Any]) -> float:
    """Returns the median over repetitions of about a second.

    Args:
        step: starts one; the device may be steps behind, as it is in training.
        wait: until all are done.
    """

    def timed(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - start) / count

    timed(WARM_UP)  # compiles
    count = min(math.ceil(SECONDS / timed(1)), MOST_STEPS)
    return statistics.median(timed(count) for _ in range(REPEATS))


def create_setup(
    name: str, kwargs: Record, size: int, batch: int, precision: str, target: Any = None
) -> Any:
    """Returns a run of the trainer on random images; its batch norm takes the whole batch together,
    as PyTorch's does.
    """
    import numpy as np

    from jaxdp.build import setup
    from jaxdp.build.inputs import Inputs
    from jaxdp.config import TrainConfig
    from jaxdp.data import from_arrays

    dense, classes = name == "unet", versus_torch.CLASSES[name]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, size, size, 3), np.uint8)
    targets = rng.integers(0, classes, (batch, size, size) if dense else batch).astype(
        np.uint8 if dense else np.int32
    )
    dataset = from_arrays(images, targets, test=(images[:1], targets[:1]), num_classes=classes)
    config = TrainConfig.of(
        model=name,
        model_kwargs=kwargs,
        precision=precision,
        batch_norm="global",
        strategy="single",
        global_batch_size=batch,
        data_placement="host",
        validation="none",
        steps=ENDLESS,
    )
    return setup.create_setup(config, Inputs(dataset=dataset), target=target)


def jaxdp_step(
    name: str, kwargs: Record, size: int, batch: int, precision: str, target: str | None
) -> Record:
    """Measures training steps on a batch on the device, and plans the same program.

    Args:
        target: the accelerator with the data sheet that bounds the time; None for none.
    """
    from jaxdp.runtime import platform

    platform.configure(None)
    import jax

    from jaxdp.sharding import memory

    setup = create_setup(name, kwargs, size, batch, precision)
    place = setup.strategy.devices[0]
    start = time.perf_counter()
    compiled, planned = memory.compile_step(setup.strategy, setup.abstract_step, batch)
    compile_seconds = time.perf_counter() - start
    found: Record = {
        "compile_seconds": compile_seconds,
        "planned_bytes": planned.total,
        "compiling_peak_bytes": peak_bytes(place),
    }
    if target is not None:
        least, bound = roofline.bound(target, precision, planned.flops, planned)
        found |= {"predicted_ms": least, "bound": bound}
    print(json.dumps(found), flush=True)  # known even if memory is out now
    arrays, constants, sums = next(setup.batches.placed(0)), setup.constants, None
    state = setup.strategy.restore(setup.create_state())

    def step() -> None:
        nonlocal state, sums
        state, sums = compiled(state, arrays, constants)

    seconds = seconds_per_step(step, lambda: jax.block_until_ready((state, sums)))
    loss = float(setup.strategy.gather(sums)["loss"])
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}")
    return found | {
        "ms": 1e3 * seconds,
        "images_per_second": batch / seconds,
        "peak_bytes": peak_bytes(place),
    }


def peak_bytes(device: Any) -> int | None:
    """Returns the most bytes that a device has held so far, where the backend reports it."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def torch_step(name: str, kwargs: Record, size: int, batch: int, precision: str) -> Record:
    """Measures training steps of the same model in PyTorch: compiled, channels last, with autocast
    for bfloat16.
    """
    torch: Any = importlib.import_module("torch")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # it chooses kernels by timing them, as XLA does
    torch.set_default_device(device)
    model = versus_torch.torch_model(name, kwargs).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.randint(
        0, versus_torch.CLASSES[name], (batch, size, size) if name == "unet" else (batch,)
    )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-4,
        fused=device == "cuda",
    )
    run, loss = torch.compile(model), torch.zeros(())

    def step() -> None:
        nonlocal loss
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = torch.nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()

    seconds = seconds_per_step(step, torch.cuda.synchronize if device == "cuda" else lambda: None)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}")
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {
        "ms": 1e3 * seconds,
        "images_per_second": batch / seconds,
        "peak_bytes": peak,
        "version": torch.__version__,
    }


def predict(
    name: str, kwargs: Record, size: int, batch: int, precision: str, target: str
) -> Record:
    """Returns the memory that `jaxdp.plan --target` plans, which compiles for a description of the
    device and touches none, and the roofline's bound on that program.
    """
    from jaxdp.runtime import platform

    platform.describe_only()
    from jaxdp.runtime.targets import Target
    from jaxdp.sharding import memory

    setup = create_setup(name, kwargs, size, batch, precision, Target.parse(target))
    _, planned = memory.compile_step(setup.strategy, setup.abstract_step, batch)
    alone = create_setup(name, kwargs, size, batch, precision)
    lowered = alone.strategy.train_step.lower(*alone.abstract_step(batch))
    flops = lowered.cost_analysis()["flops"]  # compilers for GPUs that are not here count none
    least, bound = roofline.bound(target, precision, flops, planned)
    return {"predicted_ms": least, "predicted_bytes": planned.total, "bound": bound}


def compare(first: str, second: str, step: int) -> Record:
    """Returns which arrays of a checkpoint differ between two runs, in any bit."""
    from jaxdp.checkpoint.restore import SavedCheckpoints

    folders = (pathlib.Path(run, "checkpoints") for run in (first, second))
    left, right = (SavedCheckpoints(folder, best_metric=None).arrays(step) for folder in folders)
    if set(left) != set(right):
        raise ValueError("the checkpoints hold different arrays")
    return {
        "arrays": len(left),
        "differ": [name for name in left if left[name].tobytes() != right[name].tobytes()],
    }


if __name__ == "__main__":
    sys.exit(main())
