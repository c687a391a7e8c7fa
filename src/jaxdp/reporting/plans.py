"""Prints the memory, the largest batch, the collectives and the idealized times of a plan."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from jaxdp.config import BatchNormMode
from jaxdp.parsing import printable
from jaxdp.units import bytes_text

MANY_COLLECTIVES = 50
Record = dict[str, Any]


def print_plan(records: Sequence[Record]) -> None:
    """Prints a plan, or the plans for several numbers of devices, on standard output."""
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    for record in records:
        _print_memory(console.print, record)
        if "variants" in record:
            _print_largest(console, record)
    ideals = [record for record in records if "idealized" in record]
    if ideals:
        console.print(_ideal_table(ideals))
        console.print("Idealized: the rates of the data sheet, every byte moved once, no latency.")


def _print_memory(say: Callable[[str], None], record: Mapping[str, Any]) -> None:
    what = printable(f"{record['model']} on {record['dataset']}")
    shape = "x".join(map(str, record["image_shape"]))
    say(
        f"{what} ({shape}),"
        f" {record['strategy']} on {record['devices']} {record['platform']},"
        f" {record['precision']}, batch norm {record['batch_norm']}:"
        f" {record['parameters']:,} parameters"
    )
    if not record["compiles"]:
        say(f"a step of {record['examples_per_device']} examples on a device does not compile:")
        say(record["reason"])
        return
    sizes = record["bytes"]
    kinds = ", ".join(
        f"{kind} {bytes_text(size)}" for kind, size in sizes.items() if size and kind != "total"
    )
    say(
        f"a step of {record['examples_per_device']} examples on a device compiles. It takes"
        f" {bytes_text(sizes['total'])} of {bytes_text(record['device_memory'])}: {kinds};"
        f" {record['flops_per_example'] / 1e9:.3g} GFLOP to train on an example"
    )
    for each in record["collectives"]:
        devices = f" among {each['devices']} devices" if each["devices"] else ""
        say(
            f"collective: {each['count']} x {each['kind']}{devices}, {bytes_text(each['bytes'])},"
            f" {each['asynchronous']} asynchronous, {each['overlapped']} during computation"
        )
    if not record["collectives"]:
        say("collectives: none")
    count = sum(each["count"] for each in record["collectives"])
    if count > MANY_COLLECTIVES:
        mode, most = BatchNormMode.parse(record["batch_norm"]), record["examples_at_once"]
        local = mode.kind == "replica" or (mode.group_size or most + 1) <= most
        remedy = (
            f". Batch norm over several devices has some in each layer: --batch-norm group:{most}"
            " has none"
        )
        say(f"{count} collectives a step: each has latency{'' if local else remedy}")


def _print_largest(console: rich.console.Console, record: Mapping[str, Any]) -> None:
    examples = record["examples_per_device"]
    table = rich.table.Table("", f"{examples} take", "each more", "fit a device")
    for column in table.columns:
        column.no_wrap, column.justify = True, "left" if column is table.columns[0] else "right"
    for name, each in record["variants"].items():
        sizes = [bytes_text(each["bytes"]), bytes_text(each["bytes_per_example"])]
        table.add_row(name, *sizes, f"{each['largest_per_device']:,}")
    console.print(table)
    console.print(verdict(record))
    share = record["usable_bytes"] / record["device_memory"]
    console.print(
        f"As XLA plans it for {record['platform']}; other platforms take other amounts. The plan"
        f" counts on {share:.0%} of the memory."
    )


def verdict(record: Mapping[str, Any]) -> str:
    """Says how many examples a device can take, and which settings would let it take twice as
    many.
    """
    largest = {name: each["largest_per_device"] for name, each in record["variants"].items()}
    fits = largest.pop("as configured")
    wanted = 2 * fits if fits else 1
    helps = [name for name, count in largest.items() if count >= wanted]
    memory = bytes_text(record["device_memory"])
    return (
        f"{wanted:,} examples on a device do not fit {memory}"
        + (f"; {fits:,} do" if fits else "")
        + (f"; {wanted:,} do with {' or '.join(helps)}" if helps else "")
        + "."
    )


def _ideal_table(records: Sequence[Record]) -> rich.table.Table:
    titles = ["devices", "batch", "compute", "memory", "network", "step", "bound by", "images/s"]
    if len(records) > 1:
        titles.append("efficiency")
    table = rich.table.Table(
        *titles, title="idealized, milliseconds", box=rich.box.SIMPLE_HEAD, pad_edge=False
    )
    for column in table.columns:
        column.no_wrap, column.justify = True, "right"
    for record in records:
        ideal = record["idealized"]
        parts = [ideal[f"{part}_seconds"] for part in ("compute", "memory", "network", "step")]
        table.add_row(
            f"{record['devices']:,}",
            f"{record['global_batch_size']:,}",
            *(f"{1e3 * seconds:,.3f}" for seconds in parts),
            ideal["bound"],
            f"{ideal['images_per_second']:,.0f}",
            *([f"{ideal['efficiency']:.0%}"] if len(records) > 1 else []),
        )
    return table
