"""Prints the memory, the largest batch, the collectives and the idealized times of a plan."""

from collections.abc import Iterator, Mapping, Sequence
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
        for line in _describe(record):
            console.print(line)
        if "variants" in record:
            console.print(_largest_table(record))
            console.print(verdict(record))
            share = record["usable_bytes"] / record["device_memory"]
            console.print(
                f"As XLA plans it for {record['platform']}; other platforms take other amounts."
                f" The plan counts on {share:.0%} of the memory."
            )
    ideals = [record for record in records if "idealized" in record]
    if ideals:
        console.print(_ideal_table(ideals))
        console.print("Idealized: the rates of the data sheet, every byte moved once, no latency.")


def _describe(record: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines about the step, its memory and its collectives."""
    what = printable(f"{record['model']} on {record['dataset']}")
    yield (
        f"{what} ({'x'.join(map(str, record['image_shape']))}),"
        f" {record['strategy']} on {record['devices']} {record['platform']},"
        f" {record['precision']}, batch norm {record['batch_norm']}:"
        f" {record['parameters']:,} parameters"
    )
    step = f"a step of {record['examples_per_device']} examples on a device"
    if not record["compiles"]:
        yield f"{step} does not compile:"
        yield record["reason"]
        return
    sizes = {kind: bytes_text(size) for kind, size in record["bytes"].items() if size}
    total = sizes.pop("total")
    yield (
        f"{step} compiles. It takes {total} of {bytes_text(record['device_memory'])}:"
        f" {', '.join(map(' '.join, sizes.items()))};"
        f" {record['flops_per_example'] / 1e9:.3g} GFLOP to train on an example"
    )
    for each in record["collectives"]:
        devices = f" among {each['devices']} devices" if each["devices"] else ""
        yield (
            f"collective: {each['count']} x {each['kind']}{devices}, {bytes_text(each['bytes'])},"
            f" {each['asynchronous']} asynchronous, {each['overlapped']} during computation"
        )
    if not record["collectives"]:
        yield "collectives: none"
    count = sum(each["count"] for each in record["collectives"])
    if count > MANY_COLLECTIVES:
        mode, most = BatchNormMode.parse(record["batch_norm"]), record["examples_at_once"]
        is_local = mode.kind == "replica" or (mode.group_size or most + 1) <= most
        remedy = (
            f"Batch norm over several devices has some in each layer: --batch-norm group:{most}"
        )
        yield f"{count} collectives a step: each has latency" + (
            "" if is_local else f". {remedy} has none"
        )


def _largest_table(record: Mapping[str, Any]) -> rich.table.Table:
    table = rich.table.Table("")
    for title in (f"{record['examples_per_device']} take", "each more", "fit a device"):
        table.add_column(title, justify="right", no_wrap=True)
    table.columns[0].no_wrap = True
    for name, each in record["variants"].items():
        sizes = [bytes_text(each["bytes"]), bytes_text(each["bytes_per_example"])]
        table.add_row(name, *sizes, f"{each['largest_per_device']:,}")
    return table


def verdict(record: Mapping[str, Any]) -> str:
    """Returns how many examples fit a device, and which settings let twice as many fit."""
    largest = {name: each["largest_per_device"] for name, each in record["variants"].items()}
    fits = largest.pop("as configured")
    wanted = 2 * fits if fits else 1
    helps = " or ".join(name for name, count in largest.items() if count >= wanted)
    memory = bytes_text(record["device_memory"])
    parts = [f"{wanted:,} examples on a device do not fit {memory}"]
    parts += [f"{fits:,} do"] if fits else []
    parts += [f"{wanted:,} do with {helps}"] if helps else []
    return "; ".join(parts) + "."


def _ideal_table(records: Sequence[Record]) -> rich.table.Table:
    titles = ["devices", "batch", "compute", "memory", "network", "step", "bound by", "images/s"]
    table = rich.table.Table(
        title="idealized, milliseconds", box=rich.box.SIMPLE_HEAD, pad_edge=False
    )
    for title in (*titles, *(["efficiency"] if len(records) > 1 else [])):
        table.add_column(title, justify="right", no_wrap=True)
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
