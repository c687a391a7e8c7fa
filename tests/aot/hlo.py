"""Reads the collectives of a compiled program in XLA's text form (HLO).

Source: openxla.org/xla/operation_semantics for the operations. The text is not a stable interface.
Unreadable parts do not count, and tests/aot compiles for TPUs and GPUs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

_BYTES = {"pred": 1} | {
    f"{kind}{bits}": bits // 8 for kind in ("s", "u", "f", "bf") for bits in (8, 16, 32, 64)
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<type>.*?) (?P<opcode>[a-z][\w\-]*)"
    r"\((?P<operands>.*?)\)(?P<attributes>, .*)?$"
)
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|\w+_computations)=(\{[^}]*\}|[^,\s]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_COLLECTIVES = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_CALLERS = ("while", "call", "conditional", "async-start", "fusion")

Computations = Mapping[str, Mapping[str, re.Match[str]]]  # instructions by name


@dataclasses.dataclass(frozen=True)
class Collective:
    """The collectives of one type in a program.

    Attributes:
        kind: e.g. `all-reduce`.
        count: number of executions, in which a loop counts as often as it runs.
        bytes: bytes of the results on one device, or of the operands if these are larger.
    """

    kind: str
    count: int
    bytes: int


def read_collectives(text: str) -> list[Collective]:
    """Returns the collectives by type, with the most bytes first.

    Args:
        text: from `compiled.as_text()`.
    """
    computations: dict[str, dict[str, re.Match[str]]] = {}
    main = ""
    for entry, name, body in _COMPUTATION.findall(text):
        matches = map(_INSTRUCTION.match, body.splitlines())
        computations[name] = {match["name"]: match for match in matches if match}
        main = name if entry else main
    totals: dict[str, Collective] = {}
    for each in dict(_walk(computations, main, 1)).values():
        total = totals.get(each.kind, Collective(each.kind, 0, 0))
        totals[each.kind] = Collective(
            each.kind, total.count + each.count, total.bytes + each.bytes
        )
    return sorted(totals.values(), key=lambda each: -each.bytes)


def _walk(
    computations: Computations, name: str, times: int, *, fused: bool = False
) -> Iterator[tuple[str, Collective]]:
    """Yields each collective of a computation, and of the computations that it calls, by a unique
    name.

    XLA:TPU divides a collective among fusions, which share its channel and shapes. The name
    consists of both, because other collectives may have the same channel.

    Args:
        times: how often the computation runs.
        fused: whether it is a part of a fusion.
    """
    instructions = computations.get(name, {})
    for each in instructions.values():
        opcode, attributes = each["opcode"], each["attributes"] or ""
        kind = opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            names = _NAME.findall(each["operands"])
            operands = sum(_size(instructions[one]) for one in names if one in instructions)
            results = _size(each)
            # The start of a collective also returns its operands, except for all-reduces in some
            # versions of XLA.
            if kind != opcode and results > operands:
                results -= operands
            # As XLA:TPU writes it.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
            channel = re.search(r"channel_id=\d+", attributes) if fused else None
            moved = times * max(operands, results)
            unique = f"{channel[0]} {_ARRAY.findall(each['type'])}" if channel else each["name"]
            yield unique, Collective(kind, times, moved)
        elif opcode in _CALLERS:
            trips = _trips(computations, attributes) if opcode == "while" else 1
            for called in _NAME.findall(" ".join(_CALLED.findall(attributes))):
                inside = fused or opcode == "fusion"
                yield from _walk(computations, called, times * trips, fused=inside)


def _size(instruction: re.Match[str]) -> int:
    """Returns the bytes of a result, without padding."""
    arrays = _ARRAY.findall(instruction["type"])
    return sum(
        _BYTES.get(kind, 0) * math.prod(map(int, filter(None, dims.split(","))))
        for kind, dims in arrays
    )


def _trips(computations: Computations, loop: str) -> int:
    """Returns how often a loop runs, or 1 if the text does not show it. XLA:GPU annotates the
    number, and XLA:TPU compares a counter from 0 with it.
    """
    if noted := _TRIPS.search(loop):
        return int(noted[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop)
    instructions = computations.get(condition[1], {}) if condition else {}
    bounds = [each["operands"] for each in instructions.values() if each["opcode"] == "constant"]
    return int(bounds[0]) if len(bounds) == 1 and bounds[0].isdecimal() else 1
