"""Is it right, and how fast is it, on this accelerator? One table, in under ten minutes; experiments/gpu_check.sh calls it.

    python benchmarks/gpu_check.py [--minutes N] [--tiny]

First three training steps of small models on the accelerator and on the CPU, which must agree. Then images per second of whole
training steps over models, precisions and batch sizes, and of the same in PyTorch where it is installed: compiled, channels last,
with autocast for bfloat16. Each cell is a process of its own; out of memory is a result. What does not fit into the minutes is
named and left out, so the cells that matter most come first.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import tables
import versus_torch

CELLS: tuple[tuple[str, str, dict[str, Any], int, tuple[int, ...]], ...] = (
    ("PyramidNet 110 α48, 32x32", "pyramidnet", {"depth": 110, "alpha": 48}, 32, (128, 1024)),
    ("U-Net base 64, 256x256", "unet", {}, 256, (16, 64)),
    ("VGG-16, 32x32", "vgg", {"depth": 16}, 32, (256, 2048)),
    ("PyramidNet 110 α270, 32x32", "pyramidnet", {"depth": 110, "alpha": 270}, 32, (128, 512)),
)
TINY = (
    ("PyramidNet 8 α6, 16x16", "pyramidnet", {"depth": 8, "alpha": 6}, 16, (16,)),
    ("VGG-11, 32x32", "vgg", {"depth": 11}, 32, (4,)),
)
PRECISIONS = ("bfloat16", "float32")
TOLERANCE = 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5, help="start no cell that would end later")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script itself on any machine")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return 0
    deadline, longest = time.monotonic() + 60 * arguments.minutes, 0.0
    differences = agreement()
    for name, difference in differences.items():
        print(f"{name}: three steps here and on the CPU differ by {difference:.1e} of the largest weight")
    sides = ("jaxdp", "torch") if versus_torch.has_torch() else ("jaxdp",)
    print("\n| training step | precision | batch | " + " | ".join(f"{side}, images/s" for side in sides) + " | ratio |")
    print("|---" * (4 + len(sides)) + "|")
    left_out = []
    for batch_number in (0, 1):
        for precision in PRECISIONS:
            for title, name, kwargs, size, batches in TINY if arguments.tiny else CELLS:
                if batch_number >= len(batches):
                    continue
                batch = batches[batch_number]
                label = f"{title} | {precision} | {batch}"
                if time.monotonic() + longest > deadline:
                    left_out.append(label.replace(" | ", ", "))
                    continue
                started = time.monotonic()
                found = [
                    in_process({"side": side, "name": name, "kwargs": kwargs, "size": size, "batch": batch, "precision": precision})
                    for side in sides
                ]
                longest = max(longest, time.monotonic() - started)
                figures = [value if isinstance(value, str) else f"{value:,.0f}" for value in found]
                both = len(found) == 2 and all(isinstance(value, float) for value in found)
                ratio = f"{found[0] / found[1]:.2f}" if both else ""  # pyright: ignore[reportOperatorIssue]
                print(f"| {label} | " + " | ".join(figures) + f" | {ratio} |", flush=True)
    if left_out:
        print("\nNo time was left for: " + "; ".join(left_out))
    print("\n" + tables.machine("jax", "flax", *sides[1:]))
    return int(any(not difference <= TOLERANCE for difference in differences.values()))


def in_process(cell: dict[str, Any]) -> float | str:
    """Returns images per second, or what went wrong."""
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(cell)], capture_output=True, text=True)
    if done.returncode == 0:
        return float(done.stdout.splitlines()[-1])
    if done.returncode == -9 or any(word in done.stderr for word in ("RESOURCE_EXHAUSTED", "OutOfMemory", "out of memory")):
        return "OOM"
    print(done.stderr[-2000:], file=sys.stderr)
    return "failed"


def measure(side: str, name: str, kwargs: dict[str, Any], size: int, batch: int, precision: str) -> float:
    if side == "jaxdp":
        return versus_torch.jaxdp_step(name, kwargs, size, batch, devices=1, precision=precision)
    kwargs = {"base_channels": 64} | kwargs if name == "unet" else kwargs
    return versus_torch.torch_step(name, kwargs, size, batch, channels_last=True, precision=precision, compiles=True)


def agreement() -> dict[str, float]:
    """Returns by how much weights differ after three steps on the accelerator and on the CPU, as a share of the largest one."""
    from jaxdp.runtime import platform

    platform.configure(None)
    import jax
    import numpy as np

    # On GPUs float32 products are rounded to fewer bits by default, which is no mistake.
    jax.config.update("jax_default_matmul_precision", "highest")
    here, cpu = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    differences = {}
    for name, kwargs, size in (
        ("cnn", {}, 16),
        ("pyramidnet", {"depth": 8, "alpha": 6}, 16),
        ("unet", {"base_channels": 4, "levels": 2}, 16),
    ):
        ends = []
        for device in (here, cpu):
            step, strategy, state = versus_torch.create_step(name, kwargs, size, 8, [device], learning_rate=0.01)
            for _ in range(3):
                state, _ = step(state)
            ends.append(jax.tree.leaves(strategy.gather(state.params)))
        scale = max(np.abs(leaf).max() for leaf in ends[1])
        differences[name] = float(max(np.abs(a - b).max() for a, b in zip(*ends, strict=True)) / scale)
    return differences


if __name__ == "__main__":
    sys.exit(main())
