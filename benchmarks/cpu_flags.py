"""Chooses XLA's flags for the installed jaxlib on a CPU, and writes them into the table of jaxdp.

    python benchmarks/cpu_flags.py [--rounds N] [--seconds N] [--rows NAME ...]

Each candidate trains the steps of versus_torch.py, in turns. Its speed in a row is the highest of
all rounds, because other work and distant cores only slow a process down. The first candidate whose
geometric mean is within 3% of the best is chosen, and "none" is the first. In 16 bits, YNNPACK also
computes no reductions, which give NaN on some processors, and a PyramidNet trains some steps. The
choice goes into src/jaxdp/runtime/cpu_flags.toml of the jaxdp that Python imports, where each
candidate is tried, too. Only the whole test suite says whether it may stay there: `nox -s flags --
VERSION` runs both.
"""

import argparse
import importlib.metadata
import pathlib
import re
import statistics
import subprocess
import sys

import versus_torch

from jaxdp.runtime import platform

TABLE = pathlib.Path(platform.__file__).with_name("cpu_flags.toml")
NO_CONVOLUTION = "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution"
LATE_BARRIERS = "--xla_disable_hlo_passes=cse_barrier_expander,small-while-loop-hoisting"
CANDIDATES: dict[str, list[str]] = {
    "none": [],
    "no convolution by YNNPACK": [NO_CONVOLUTION],
    "nor product of matrices": [f"{NO_CONVOLUTION},-individual_dot"],
    "no convolution by YNNPACK, late barriers": [NO_CONVOLUTION, LATE_BARRIERS],
    "nor product, late barriers": [f"{NO_CONVOLUTION},-individual_dot", LATE_BARRIERS],
}
LEAST_GAIN = 1.03
SIDE = versus_torch.OURS[0]
# Ends with an error unless all losses in bfloat16 are finite.
HALF = """
import jaxdp

settings = {"precision": "bfloat16", "steps": 20, "devices": 1, "progress": False}
result = jaxdp.Trainer("pyramidnet", "digits", **settings).fit()
raise SystemExit(result.status != "done")
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=versus_torch.SECONDS)
    parser.add_argument("--rows", nargs="*", default=list(versus_torch.ROWS))
    arguments = parser.parse_args()
    rows = [name for name in versus_torch.ROWS if any(word in name for word in arguments.rows)]
    speeds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for row in rows:
        for name, found in measure(row, arguments.rounds, arguments.seconds).items():
            speeds[name].append(max(found))
    means = {name: statistics.geometric_mean(found) for name, found in speeds.items()}
    print(f"| images per second | {' | '.join(rows)} | of no flags |")
    print("|---" * (len(rows) + 2) + "|")
    for name, found in speeds.items():
        cells = [f"{each:.1f}" for each in found]
        print(f"| {name} | {' | '.join(cells)} | {means[name] / means['none']:.2f} |")
    least = max(means.values()) / LEAST_GAIN
    chosen = CANDIDATES[next(name for name in CANDIDATES if means[name] >= least)]
    half = without_reductions(chosen or [NO_CONVOLUTION])
    if not computes_half(half):
        sys.exit(f"bfloat16 gives NaN with {half}: find flags for half_precision by hand")
    write(chosen, half)
    print(entry(chosen, half))


def measure(row: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns images per second of each candidate in each round."""
    found: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for number in range(rounds):
        for name, flags in CANDIDATES.items():
            write(flags, flags)
            with versus_torch.Side(row, SIDE, seconds) as side:
                found[name].append(side.turn())
            print(f"round {number + 1}: {row}, {name}: {found[name][-1]:.1f}", file=sys.stderr)
    return found


def without_reductions(flags: list[str]) -> list[str]:
    """Returns the flags with which YNNPACK also computes no reductions."""
    return [f"{flag},-reduce" if flag.startswith(NO_CONVOLUTION) else flag for flag in flags]


def computes_half(flags: list[str]) -> bool:
    """Returns whether losses in bfloat16 are finite with these flags."""
    write(flags, flags)
    return subprocess.run([sys.executable, "-c", HALF], check=False).returncode == 0


def entry(flags: list[str], half: list[str]) -> str:
    """Returns the part of the table for the installed jaxlib."""
    lines = [f'["{importlib.metadata.version("jaxlib")}"]', f"flags = {listed(flags)}"]
    lines += [f"half_precision = {listed(half)}"] if half != flags else []
    return "\n".join(lines) + "\n"


def listed(flags: list[str]) -> str:
    return "[" + ", ".join(f'"{flag}"' for flag in flags) + "]"


def write(flags: list[str], half: list[str]) -> None:
    """Puts the part of the installed jaxlib into the table, in the place of an earlier one."""
    parts = re.split(r'(?m)^(?=\[")', TABLE.read_text())
    head = f'["{importlib.metadata.version("jaxlib")}"]'
    others = [part.rstrip() + "\n" for part in parts if not part.startswith(head)]
    # A known defect of this jaxlib stays known.
    own = "".join(part for part in parts if part.startswith(head))
    defects = re.findall(r"(?m)^defect = .*\n", own)
    TABLE.write_text("\n".join([*others, entry(flags, half) + "".join(defects)]))


if __name__ == "__main__":
    main()
