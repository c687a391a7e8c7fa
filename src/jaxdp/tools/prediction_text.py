"""Prints what was predicted of a training step; the word stands beside every number."""

from collections.abc import Mapping
from typing import Any

from jaxdp.config import BatchNormMode
from jaxdp.tools.prediction import KINDS
from jaxdp.units import bytes_text

_MANY_COLLECTIVES = 50
_TOO_LONG = (
    "compiled with the least effort (--quick): predicted times are longer than those of a program"
    " that is to be run"
)


def print_prediction(found: Mapping[str, Any]) -> None:
    """Prints a prediction on standard output."""
    import rich.console
    import rich.table

    console = rich.console.Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    if not found["compiles"]:
        say(f"{found['strategy']} on {found['target']} does not compile: {found['reason']}")
        return
    shape = "x".join(map(str, found["image_shape"]))
    say(
        f"{found['model']} on {found['dataset']} ({shape}), {found['strategy']} on"
        f" {found['target']}, {found['precision']}, batch norm {found['batch_norm']}:"
        f" {found['parameters']:,} parameters. It compiles."
    )
    seconds, memory = found["predicted_seconds"], found["predicted_bytes"]
    where = (
        "as the compiler estimates it"
        if found["predicted_seconds_from"] == "compiler"
        else "from the data sheet (roofline)"
    )
    table = rich.table.Table(
        f"a step of {found['global_batch_size']:,} examples", "predicted", box=None, pad_edge=False
    )
    table.columns[1].justify = "right"
    kinds = ", ".join(f"{kind} {bytes_text(memory[kind])}" for kind in KINDS if memory[kind])
    largest = found["predicted_largest_per_device"]
    table.add_row("memory of a device", bytes_text(memory["total"]))
    table.add_row(
        "largest batch that fits a device",
        f"{largest:,} examples" if largest is not None else "unknown",
    )
    table.add_row(
        "operations of a device (convolutions, matrix products)",
        f"{found['predicted_flops'] / 1e9:,.2f} GFLOP",
    )
    table.add_row("bytes moved by a device", bytes_text(found["predicted_bytes_moved"]))
    table.add_row(f"time of a step, {where}", _milliseconds(seconds["step"]))
    for part in ("compute", "memory", "network"):
        table.add_row(f"  {part} alone, at the data sheet's rate", _milliseconds(seconds[part]))
    table.add_row(
        "images per second on all devices", f"{found['predicted_images_per_second']:,.0f}"
    )
    table.add_row("bound by", found["predicted_bound"])
    console.print(table)
    say(f"predicted memory by kind: {kinds}; of {bytes_text(found['device_memory'])}")
    for each in found["predicted_collectives"]:
        of = f" among {each['devices']} devices" if each["devices"] else ""
        overlap = f"{each['asynchronous']} asynchronous, {each['overlapped']} beside computation"
        say(
            f"predicted collective: {each['count']} x {each['kind']}{of},"
            f" {bytes_text(each['bytes'])}, {overlap}"
        )
    if not found["predicted_collectives"]:
        say("predicted collectives: none")
    count = sum(each["count"] for each in found["predicted_collectives"])
    if count > _MANY_COLLECTIVES:
        say(
            f"predicted: {count} collectives a step; what each takes to begin is left out of the"
            " time" + _of_batch_norm(found)
        )
    if found["effort"] == "least":
        say(_TOO_LONG)


def _of_batch_norm(found: Mapping[str, Any]) -> str:
    mode, most = BatchNormMode.parse(found["batch_norm"]), found["examples_at_once"]
    if mode.kind == "replica" or (mode.group_size is not None and mode.group_size <= most):
        return ""
    return (
        f". Batch norm over several devices has some in each layer: --batch-norm group:{most} has"
        " none"
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{1000 * seconds:,.0f} ms"


def print_scaling(found: Mapping[str, Any]) -> None:
    """Prints predicted scaling on standard output."""
    import rich.console
    import rich.table

    console = rich.console.Console()
    whole, each = found["strong_global_batch_size"], found["weak_examples_per_device"]
    console.print(
        f"predicted scaling of {found['model']}, {found['strategy']} on {found['target']},"
        f" {found['precision']}: weak with {each} examples on each device, strong with {whole}"
        " on all",
        highlight=False,
        soft_wrap=True,
    )
    kinds = [
        f"{name}\npredicted\n{what}"
        for name in ("weak", "strong")
        for what in ("images/s", "efficiency")
    ]
    table = rich.table.Table("devices", *kinds)
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    for row in found["predicted_scaling"]:
        cells = [f"{row['devices']:,}"]
        for name in ("weak", "strong"):
            if "predicted_efficiency" in row[name]:
                cells += [
                    f"{row[name]['predicted_images_per_second']:,.0f}",
                    f"{100 * row[name]['predicted_efficiency']:.1f} %",
                ]
            else:
                cells += ["-", "-"]
        table.add_row(*cells)
    console.print(table)
    if found["effort"] == "least":
        console.print(_TOO_LONG, highlight=False, soft_wrap=True)
    for name, count in found["predicted_devices_below_efficient"].items():
        share = f"{100 * found['efficient']:.0f} %"
        where = (
            f"falls below {share} at {count:,} devices" if count else f"stays at {share} or more"
        )
        console.print(
            f"predicted {name} scaling efficiency {where}", highlight=False, soft_wrap=True
        )
