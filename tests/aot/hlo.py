"""Reads what tests assert of a compiled program: donated arguments, formats, bytes moved."""

import math
import re
from collections.abc import Iterator

from jaxdp.sharding import program
from jaxdp.sharding.program import Instruction, integers

# Format, dims, and of the layout the order of dims, the first tile and the memory space.
_LAYOUT = r"\{([\d,]*)(?::(?:T\(([\d,]+)\)(?:\([\d,]+\))*)?(?:[A-RT-Z]\(\d+\))*(?:S\((\d+)\))?)?"
_ARRAY = re.compile(rf"\b([a-z]+\d*)\[([\d,]*)\](?:{_LAYOUT})?")
# What moves no bytes by itself.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier partition-id"
    " replica-id iota while call conditional async-done async-update copy-done".split()
)


def padded_bytes(each: Instruction, spaces: tuple[str, ...] = ()) -> int:
    """Returns the bytes of a result as it lies in memory: a TPU pads the last dims of its layout
    to whole tiles.

    Args:
        spaces: memories to count; empty for all.
    """
    total = 0
    for kind, dims, order, tile, space in _ARRAY.findall(each.type):
        sizes = list(integers(dims))
        for dim, side in zip(integers(order), reversed(integers(tile)), strict=False):
            sizes[dim] = -(-sizes[dim] // side) * side
        if not spaces or space in spaces:
            total += program.BYTES.get(kind, 0) * math.prod(sizes)
    return total


def device_bytes(each: Instruction) -> int:
    """Returns the bytes in the device's memory, not in a memory on the chip as TPUs have it."""
    return padded_bytes(each, ("", "0"))


class Program(program.Program):
    """A compiled program of one device."""

    def everything(self) -> Iterator[tuple[str, Instruction, int]]:
        """Returns what runs, in fusions too: computation, instruction, and how often it runs."""
        return self.walk([self.entry], (*program.SCHEDULED, *program.FUSED))

    @property
    def donated(self) -> int:
        """The number of results that take the memory of an argument."""
        head = self.text[: self.text.find("\n")]
        match = re.search(r"input_output_alias=\{(.*?)\}, (?:\w+=|$)", head)
        return match.group(1).count("-alias") if match else 0

    def formats(self) -> list[str]:
        """Returns the formats in which convolutions and matrix products compute: of each the
        wider operand.
        """
        found = set()
        for name, each, _ in self.everything():
            custom = "__cudnn$conv" in each.rest or "__cublas" in each.rest
            if custom or each.opcode in ("convolution", "dot"):
                operands = self.operands(name, each)[:2]
                kinds = [operand.arrays[0][0] for operand in operands if operand.arrays]
                found.add(max(kinds, key=lambda kind: program.BYTES[kind], default=""))
        return sorted(found)

    @property
    def bytes_moved(self) -> int:
        """Bytes that instructions read from the device's memory and write to it, as if nothing
        were in a cache.
        """
        scheduled = self.walk([self.entry])
        return sum(times * self._moved(name, each) for name, each, times in scheduled)

    def _moved(self, name: str, each: Instruction) -> int:
        if each.opcode in _FREE or each.opcode.endswith(("-done", "-update")):
            return 0
        operands = self.operands(name, each)
        sizes = [device_bytes(operand) for operand in operands]
        own, whole = device_bytes(each), padded_bytes(each)
        if each.opcode in ("gather", "dynamic-slice"):
            return (whole if sizes[0] else 0) + own + sum(sizes[1:])
        if each.opcode == "dynamic-update-slice":
            return sum(sizes[1:2]) + (padded_bytes(operands[1]) if own else 0)
        if each.opcode in ("copy-start", "slice-start"):  # the result holds the operand, too
            taken = whole - sum(map(padded_bytes, operands))
            return min(taken, sum(sizes)) + max(own - sum(sizes), 0)
        if each.opcode != "fusion":
            return own + sum(sizes)
        read, written = self._fusion(each)
        parts = (
            size if part is None or not size else part
            for size, part in zip(sizes, read, strict=False)
        )
        return sum(parts) + (own if written is None or not own else written)

    def _fusion(self, fusion: Instruction) -> tuple[list[int | None], int | None]:
        """Returns the bytes of each operand that a fusion reads, and the bytes that it writes; None
        for all.
        """
        named = self.computations.get(fusion.called[0], {}) if fusion.called else {}
        read: list[int | None] = [None] * len(fusion.operands)
        users: dict[str, list[Instruction]] = {}
        for each in named.values():
            for operand in each.operands:
                users.setdefault(operand, []).append(each)
        updates = [each for each in named.values() if each.opcode == "dynamic-update-slice"]
        for each in named.values():
            is_number = each.opcode == "parameter" and each.inside.isdecimal()
            index = int(each.inside) if is_number else len(read)
            uses = users.get(each.name, [])
            if index >= len(read) or not all(use.operands[0] == each.name for use in uses):
                continue
            if uses and all(use.opcode in ("gather", "dynamic-slice", "slice") for use in uses):
                read[index] = sum(map(padded_bytes, uses))
            elif uses and all(use in updates for use in uses):
                read[index] = 0
        if not updates or padded_bytes(fusion) != sum(map(padded_bytes, updates)):
            return read, None
        values = [named[each.operands[1]] for each in updates if each.operands[1] in named]
        return read, sum(map(padded_bytes, values))
