"""Shows a survey of devices: tables of what they have and hold, and pictures of how arrays are
divided among them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.table

from jaxdp.tools.device_survey import PARTS
from jaxdp.units import bytes_text

_TITLE_WIDTH = 22
_MAX_CELLS = 16  # in a row of a picture


def draw(divided: Mapping[str, Any]) -> list[str]:
    """Returns lines of text that show a division: a row of device numbers for one divided
    dimension, a grid for two.
    """
    parts, shape = divided["parts"], divided["shape"]
    head = f"{divided['name']} {divided['dtype']}{tuple(shape)}, {bytes_text(divided['bytes'])}"
    split = [
        dim for dim in range(len(shape)) if len({tuple(part["index"][dim]) for part in parts}) > 1
    ]
    if not split:
        count = len(parts[0]["devices"])
        return [
            f"{head}: whole on "
            + (f"each of {count} devices" if count > 1 else f"device {parts[0]['devices'][0]}")
        ]
    counts = [len({tuple(part["index"][dim]) for part in parts}) for dim in split]
    dims = " and ".join(f"dim {dim} in {count}" for dim, count in zip(split, counts, strict=True))
    # In the order of their place: the last divided dimension runs fastest.
    cells = [_ranges(part["devices"]) for part in parts]
    width, row = max(map(len, cells)), counts[-1] if len(counts) > 1 else _MAX_CELLS
    lines = [
        "|" + "|".join(f" {cell:^{width}} " for cell in cells[start : start + row]) + "|"
        for start in range(0, len(cells), row)
    ]
    return [f"{head}: {dims}, device by device", *lines]


def _ranges(numbers: Sequence[int]) -> str:
    """Writes 0, 1, 2, 5 as `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def print_survey(found: Mapping[str, Any]) -> None:
    """Prints a survey of devices on standard output."""
    console = rich.console.Console()
    processes, placed = found["processes"], found["placement"]
    rows = [(process, device) for process in processes for device in process["devices"]]
    # Only where they tell devices apart; several processes of CPUs, too, are one slice.
    slices = len({device["slice_index"] for _, device in rows}) > 1
    topology = {
        "coords": any(device["coords"] is not None for _, device in rows),
        "slice_index": slices,
    }
    shown = [name for name, tells in topology.items() if tells]
    table = rich.table.Table("process", "host", "device", "platform", "kind", *shown)
    for title in ("in use", "free", "limit"):
        table.add_column(title, justify="right", no_wrap=True)
    for process, device in rows:
        names = [
            str(process["process"]),
            process["host"],
            str(device["id"]),
            device["platform"],
            device["kind"],
        ]
        table.add_row(*names, *(str(device[name]) for name in shown), *_memory(process, device))
    console.print(table)
    if any(process["machine_bytes"] for process in processes):
        console.print("* CPU devices share the machine's memory", highlight=False)
    for process in processes:
        _print_environment(console, process)
    if placed is not None:
        _print_placement(console, placed, [device for _, device in rows])


def _memory(process: Mapping[str, Any], device: Mapping[str, Any]) -> list[str]:
    limit, used = device["bytes_limit"], device["bytes_in_use"]
    if process["machine_bytes"] is not None:
        return [
            "*",
            f"{bytes_text(process['machine_free_bytes'])} *",
            f"{bytes_text(process['machine_bytes'])} *",
        ]
    free = limit - used if limit is not None and used is not None else None
    return [bytes_text(used), bytes_text(free), bytes_text(limit)]


def _print_environment(console: rich.console.Console, process: Mapping[str, Any]) -> None:
    words = [f"{name}={value}" for name, value in process["environment"].items()]
    text = (
        f"process {process['process']} (pid {process['pid']}):"
        f" {' '.join(words) or 'nothing set that hides devices'}"
    )
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    if process["cpu_flags"]:
        console.print(f"  {process['cpu_flags']}", highlight=False, markup=False, soft_wrap=True)
    if process["hidden_gpus"]:
        console.print(
            f"  hidden from it: GPU {_ranges(process['hidden_gpus'])} of {process['host']}",
            highlight=False,
        )


def _print_placement(
    console: rich.console.Console, placed: Mapping[str, Any], devices: list[dict[str, Any]]
) -> None:
    names = [name for name in PARTS if any(device["holds"][name] for device in devices)]
    title = (
        f"{placed['model']} on {placed['dataset']}, {placed['strategy']},"
        f" {placed['global_batch_size']} examples a step"
    )
    console.print(
        f"\n{title}: bytes on each device, activations left out",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    table = rich.table.Table("device", *names, "together")
    for column in table.columns[1:]:
        column.justify = "right"
    for device in devices:
        sizes = [device["holds"][name] for name in names]
        table.add_row(str(device["id"]), *map(bytes_text, [*sizes, sum(sizes)]))
    console.print(table)
    for label, name in (
        ("largest parameter", "largest_parameter"),
        ("largest of a batch", "largest_of_batch"),
    ):
        first, *others = draw(placed[name])
        for line in [
            f"{label:<{_TITLE_WIDTH}}{first}",
            *(" " * _TITLE_WIDTH + line for line in others),
        ]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if placed["data_placement"] == "device":
        console.print(
            "A batch names examples, which the compiled step takes from the dataset on its own"
            " device.",
            highlight=False,
        )
