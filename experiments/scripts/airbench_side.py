"""Runs airbench's own training of CIFAR-10 on a CPU, and prints a line of JSON.

    python airbench_side.py SCRIPT IMAGES [--seed N]

SCRIPT is airbench94_muon.py of github.com/KellerJordan/cifar10-airbench, which is read and not
changed on disk. IMAGES is the archive that cifar10_94.py writes. What a CPU requires is exchanged
in memory: the device, float32 for the network's half precision, and the clock. There is one run,
without another before it that only compiles. Each exchange must find its text, so that another
version of the script ends in an error.

The seconds are those of the script's own timer, which leaves out the evaluation after each epoch;
compilation counts, and so do imports here.
"""

import argparse
import json
import pathlib
import re
import sys
import time

START = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from jaxdp.runtime import malloc  # noqa: E402

# Text or pattern, and what takes its place.
EXCHANGES = {
    r'torch\.device\("cuda"\)': 'torch.device("cpu")',
    r"self\.images\.half\(\)": "self.images.float()",
    r"mod\.half\(\)": "mod.float()",
    r", fused=True": "",
    r"torch\.cuda\.Event\(enable_timing=True\)": "Clock()",
    r"torch\.cuda\.synchronize\(\)": "pass",
    r"CifarNet\(\)\.cuda\(\)": "CifarNet()",
    r'main\("warmup", model\)': "pass",
    r"torch\.tensor\(\[main\(run, model\) for run in range\(200\)\]\)": (
        "torch.tensor([main(0, model)])"
    ),
    r"with open\(sys\.argv\[0\]\) as f:\n    code = f\.read\(\)": "code = ''",
    r"    return tta_val_acc": "    return report(tta_val_acc, time_seconds)",
    r'log_dir = os\.path\.join\("logs".*': "sys.exit(0)",
}


class Clock:
    """Takes the place of an event of CUDA."""

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, other: "Clock") -> float:
        return 1e3 * (other.time - self.time)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", type=pathlib.Path)
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    malloc.keep_freed()
    torch.manual_seed(given.seed)
    code = given.script.read_text()
    for pattern, text in EXCHANGES.items():
        code, count = re.subn(pattern, text, code)
        if count == 0:
            sys.exit(f"{given.script} has no text {pattern}")
    folder = pathlib.Path("cifar10")  # where the script looks
    folder.mkdir(exist_ok=True)
    with np.load(given.images) as file:
        for split in ("train", "test"):
            images, labels = (torch.from_numpy(file[f"{split}_{name}"]) for name in NAMES)
            torch.save(
                {"images": images, "labels": labels.long(), "classes": CLASSES},
                folder / f"{split}.pt",
            )
    imported = time.perf_counter() - START

    def report(accuracy: float, seconds: float) -> float:
        times = {"total": round(imported + seconds, 1)}
        print(json.dumps({"accuracy": accuracy, "seconds": times}), flush=True)
        return accuracy

    names = {"__name__": "__main__", "Clock": Clock, "report": report}
    exec(compile(code, str(given.script), "exec"), names)


NAMES = ("images", "labels")
CLASSES = [str(number) for number in range(10)]

if __name__ == "__main__":
    main()
