"""Reads a compiled program in XLA's text form (HLO): operations, bytes moved, collectives, copies
and the compiler's own times.

Source: openxla.org/xla/operation_semantics for the operations, and what XLA:TPU and XLA:GPU print
in `backend_config`. Both are no stable interface: what cannot be read counts as nothing, and the
tests compile for both.
"""

# Over 300 lines: one parser, and what is asked of the program that it reads.

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping

_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
# Format, dims, and of the layout the order of dims, the first tile and the memory space.
_LAYOUT = r"\{([\d,]*)(?::(?:T\(([\d,]+)\)(?:\([\d,]+\))*)?(?:[A-RT-Z]\(\d+\))*(?:S\((\d+)\))?)?"
_ARRAY = re.compile(rf"\b([a-z]+\d*)\[([\d,]*)\](?:{_LAYOUT})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"^\s*([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|called_computations|branch_computations)=\{?(%[\w.\-]+(?:,"
    r" ?%[\w.\-]+)*)"
)
# Groups as axes of a mesh: mesh['data'=2,'space'=4] {'data','space':(1)2}, of `space` every two
# consecutive ones here.
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_CYCLES, _TRIPS = (
    re.compile(r'"estimated_cycles":"?(\d+)'),
    re.compile(r'"known_trip_count":\{"n":"?(\d+)'),
)
_COLLECTIVES = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# What moves no bytes by itself.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier partition-id"
    " replica-id iota while call conditional async-done async-update copy-done".split()
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
        name: unique in the program.
        type: of the result, as text.
        opcode: e.g. `fusion`.
        operands: the names of its operands.
        rest: the line after the operands: attributes, metadata, configuration; the number of a
            parameter, the value of a constant.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @functools.cached_property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Format and shape of each array of the result."""
        found = [(kind, _integers(dims)) for kind, dims, *_ in _ARRAY.findall(self.type)]
        return [(kind, dims) for kind, dims in found if kind in _BYTES]

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of the result as it lies in memory: a TPU pads the last dims of its layout to whole
        tiles.
        """
        return sum(size for size, _ in self._sizes())

    @functools.cached_property
    def device_bytes(self) -> int:
        """Those of `bytes` that lie in the device's memory, not in a memory on the chip as TPUs
        have it.
        """
        return sum(size for size, space in self._sizes() if space in ("", "0"))

    def _sizes(self) -> Iterator[tuple[int, str]]:
        for kind, dims, order, tile, space in _ARRAY.findall(self.type):
            sizes = list(_integers(dims))
            for dim, side in zip(_integers(order), reversed(_integers(tile)), strict=False):
                sizes[dim] = -(-sizes[dim] // side) * side
            yield _BYTES.get(kind, 0) * math.prod(sizes), space

    @property
    def values(self) -> int:
        """Bytes of the result's values, without padding."""
        return sum(_BYTES[kind] * math.prod(dims) for kind, dims in self.arrays)

    @property
    def called(self) -> list[str]:
        """The names of the computations that it calls."""
        return [
            name.strip().lstrip("%")
            for group in _CALLED.findall(self.rest)
            for name in group.split(",")
        ]

    @property
    def cycles(self) -> int:
        """What the compiler estimates for it, 0 where it says nothing."""
        match = _CYCLES.search(self.rest)
        return int(match.group(1)) if match else 0

    @property
    def group_size(self) -> int:
        """How many devices take part in a collective, 0 where it names none: all of them."""
        if (match := _AXES.search(self.rest)) is not None:
            sizes = {
                name: int(size) for name, size in re.findall(r"([\w.\-]+)'?=(\d+)", match.group(1))
            }
            parts = re.findall(r"([\w.\-]+)'?(?::\(\d+\)(\d+))?", match.group(2))
            return math.prod(int(part) if part else sizes[name] for name, part in parts)
        match = re.search(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})", self.rest)
        if match is None:
            return 0
        return int(match.group(1)) if match.group(1) else len(match.group(2).split(","))

    def attribute(self, name: str) -> str:
        """Returns an attribute as text, empty if it has none."""
        match = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.rest)
        return match.group(1).strip("{}") if match else ""


@dataclasses.dataclass(frozen=True)
class Collective:
    """The collectives of one kind in a program.

    Attributes:
        kind: e.g. `all-reduce`.
        devices: how many take part in one, 0 for all.
        count: how many, with those in loops as often as they run.
        bytes: of what they return on one device, or take where that is more.
        asynchronous: how many start and finish in different places of the schedule.
        overlapped: how many have computation between the two.
    """

    kind: str
    devices: int
    count: int
    bytes: int
    asynchronous: int
    overlapped: int


class Program:
    """A compiled program of one device.

    Args:
        text: from `compiled.as_text()`, in the order of the schedule.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] | None = None
        for line in text.splitlines():
            if current is None:
                if (match := _HEAD.match(line)) is not None:
                    current = self.computations[match.group(2)] = []
                    self.entry = match.group(2) if match.group(1) else self.entry
            elif line.startswith("}"):
                current = None
            elif (read := _read(line)) is not None:
                current.append(read)
        self._named = {
            name: {each.name: each for each in body} for name, body in self.computations.items()
        }

    def scheduled(self) -> Iterator[tuple[str, Instruction, int]]:
        """Yields what runs by itself, not inside a fusion: computation, instruction, and how often
        it runs.
        """
        yield from self._scheduled(self.entry, 1)

    def _scheduled(self, name: str, times: int) -> Iterator[tuple[str, Instruction, int]]:
        for each in self.computations.get(name, ()):
            yield name, each, times
            if each.opcode in ("while", "call", "conditional", "async-start"):
                for inner in each.called:
                    yield from self._scheduled(
                        inner, times * (self._trips(each) if each.opcode == "while" else 1)
                    )

    def _trips(self, loop: Instruction) -> int:
        """Returns how often a loop runs, 1 where it does not show: XLA:GPU notes it, XLA:TPU
        compares a counter from 0 with it.
        """
        if (match := _TRIPS.search(loop.rest)) is not None:
            return int(match.group(1))
        condition = self.computations.get(loop.attribute("condition").lstrip("%"), [])
        compared = condition[-1] if condition else None
        if (
            compared is None
            or compared.opcode != "compare"
            or compared.attribute("direction") != "LT"
        ):
            return 1
        bound = next((each for each in condition if each.name == compared.operands[-1]), None)
        return (
            int(bound.rest)
            if bound is not None and bound.opcode == "constant" and bound.rest.isdecimal()
            else 1
        )

    def everything(self) -> Iterator[tuple[str, Instruction, int]]:
        """Yields what runs, in fusions too: computation, instruction, and how often it runs."""
        for name, each, times in self.scheduled():
            yield name, each, times
            if each.opcode == "fusion":
                yield from self._inside(each, times)

    def _inside(self, fusion: Instruction, times: int) -> Iterator[tuple[str, Instruction, int]]:
        for name in fusion.called:
            for each in self.computations.get(name, ()):
                yield name, each, times
                if each.opcode in ("fusion", "call"):
                    yield from self._inside(each, times)

    @property
    def donated(self) -> int:
        """The number of results that take the memory of an argument."""
        head = self.text[: self.text.find("\n")]
        match = re.search(r"input_output_alias=\{(.*?)\}, (?:\w+=|$)", head)
        return match.group(1).count("-alias") if match else 0

    def operand(self, name: str, operand: str) -> Instruction | None:
        """Returns the instruction that computes an operand of one in the computation `name`."""
        return self._named[name].get(operand)

    # Operations.

    @functools.cached_property
    def flops(self) -> float:
        """Operations of convolutions and matrix products, a multiplication and an addition being
        two; padding counts as none.
        """
        return float(
            sum(times * self._flops(name, each) for name, each, times in self.everything())
        )

    def _flops(self, name: str, each: Instruction) -> float:
        if each.opcode == "convolution" or "__cudnn$conv" in each.rest:
            operands = [self.operand(name, operand) for operand in each.operands[:2]]
            if (
                len(operands) == 2
                and operands[0] is not None
                and operands[1] is not None
                and each.attribute("dim_labels")
            ):
                return _convolution_flops(each, operands[0], operands[1])
        if each.opcode == "dot" or "__cublas" in each.rest:
            left = self.operand(name, each.operands[0])
            dims = re.search(r'lhs_contracting_dim(?:ensions"?:\[|s=\{)"?([\d",]*)', each.rest)
            if left is not None and left.arrays and each.arrays and dims:
                contracted = [int(number) for number in re.findall(r"\d+", dims.group(1))]
                return (
                    2.0
                    * math.prod(each.arrays[0][1])
                    * math.prod(left.arrays[0][1][number] for number in contracted)
                )
        return 0.0

    def convolutions(self) -> list[tuple[str, str]]:
        """Returns name and format of the operands of each convolution and matrix product, that of
        the wider one.
        """
        found: list[tuple[str, str]] = []
        for name, each, _ in self.everything():
            if (
                each.opcode in ("convolution", "dot")
                or "__cudnn$conv" in each.rest
                or "__cublas" in each.rest
            ):
                kinds = [
                    operand.arrays[0][0]
                    for word in each.operands[:2]
                    if (operand := self.operand(name, word)) and operand.arrays
                ]
                found.append((each.name, max(kinds, key=lambda kind: _BYTES[kind], default="")))
        return found

    # Memory.

    @functools.cached_property
    def bytes_moved(self) -> int:
        """Bytes that instructions read from the device's memory and write to it, as if nothing were
        in a cache.

        What XLA:TPU keeps in the memory on the chip does not count.
        """
        return sum(times * self._moved(name, each) for name, each, times in self.scheduled())

    def _moved(self, name: str, each: Instruction) -> int:
        if each.opcode in _FREE or each.opcode.endswith(("-done", "-update")):
            return 0
        operands = [
            operand for word in each.operands if (operand := self.operand(name, word)) is not None
        ]
        sizes = [operand.device_bytes for operand in operands]
        if each.opcode in ("gather", "dynamic-slice"):
            return (each.bytes if sizes[0] else 0) + each.device_bytes + sum(sizes[1:])
        if each.opcode == "dynamic-update-slice":
            return sum(sizes[1:2]) + (operands[1].bytes if each.device_bytes else 0)
        if each.opcode in ("copy-start", "slice-start"):  # the result holds the operand, too
            taken = each.bytes - sum(operand.bytes for operand in operands)
            return min(taken, sum(sizes)) + max(each.device_bytes - sum(sizes), 0)
        if each.opcode != "fusion":
            return each.device_bytes + sum(sizes)
        read, written = self._fusion(each)
        parts = (
            size if part is None or not size else part
            for size, part in zip(sizes, read, strict=False)
        )
        return sum(parts) + (
            each.device_bytes if written is None or not each.device_bytes else written
        )

    def _fusion(self, fusion: Instruction) -> tuple[list[int | None], int | None]:
        """Returns how many bytes of each operand a fusion reads, and how many it writes.

        None for all of it.
        """
        body = self.computations.get(fusion.called[0], []) if fusion.called else []
        read: list[int | None] = [None] * len(fusion.operands)
        users: dict[str, list[Instruction]] = {}
        for each in body:
            for operand in each.operands:
                users.setdefault(operand, []).append(each)
        updates = [each for each in body if each.opcode == "dynamic-update-slice"]
        for each in body:
            number = re.match(r"\d+", each.rest) if each.opcode == "parameter" else None
            place = int(number.group()) if number else len(read)
            if place >= len(read):
                continue
            uses = users.get(each.name, [])
            if uses and all(
                use.opcode in ("gather", "dynamic-slice", "slice") and use.operands[0] == each.name
                for use in uses
            ):
                read[place] = sum(use.bytes for use in uses)
            elif uses and all(use in updates and use.operands[0] == each.name for use in uses):
                read[place] = 0
        written = None
        if updates and fusion.bytes == sum(each.bytes for each in updates):
            named = {each.name: each for each in body}
            written = sum(
                named[each.operands[1]].bytes for each in updates if each.operands[1] in named
            )
        return read, written

    def copies(self, least: int) -> list[Instruction]:
        """Returns what rewrites at least so many bytes as they are: copies, transposes and slices,
        in fusions too.
        """
        kinds = (
            "copy",
            "copy-start",
            "transpose",
            "slice",
            "slice-start",
            "pad",
            "concatenate",
            "reshape",
            "convert",
        )
        return [
            each for _, each, _ in self.everything() if each.opcode in kinds and each.bytes >= least
        ]

    # Communication.

    def collectives(self) -> list[Collective]:
        """Returns the collectives by kind, the one that moves the most bytes first."""
        found: dict[tuple[str, int], list[tuple[int, int, bool, bool]]] = {}
        for name, each, times in self.scheduled():
            collective = self._collective(each)
            if collective is None:
                continue
            kind = collective.opcode.removesuffix("-start")
            operands = sum(
                operand.values
                for word in each.operands
                if (operand := self.operand(name, word)) is not None
            )
            # What starts returns its operands, too; of all-reduces not in every version of XLA.
            results = each.values - (
                operands if each.opcode.endswith("-start") and each.values > operands else 0
            )
            # As XLA:TPU writes it.
            if each.opcode == "fusion" and kind == "all-reduce" and results < operands:
                kind = "reduce-scatter"
            asynchronous = each.opcode.endswith("-start")
            overlaps = asynchronous and self._work_until_done(name, each)
            found.setdefault((kind, collective.group_size), []).append(
                (times, max(operands, results), asynchronous, overlaps)
            )
        kinds = [
            Collective(
                *key,
                sum(each[0] for each in group),
                sum(each[0] * each[1] for each in group),
                sum(each[0] for each in group if each[2]),
                sum(each[0] for each in group if each[3]),
            )
            for key, group in found.items()
        ]
        return sorted(kinds, key=lambda each: -each.bytes)

    def _collective(self, each: Instruction) -> Instruction | None:
        """Returns the collective that an instruction is, or that a fusion of XLA:TPU computes
        together with what uses it.
        """
        inside = (
            (inner for _, inner, _ in self._inside(each, 1)) if "kind=kCustom" in each.rest else ()
        )
        return next(
            (one for one in (each, *inside) if one.opcode.removesuffix("-start") in _COLLECTIVES),
            None,
        )

    def _work_until_done(self, name: str, start: Instruction) -> bool:
        body = self.computations[name]
        after = itertools.dropwhile(lambda each: each.name != start.name, body)
        between = itertools.takewhile(
            lambda each: not (each.opcode.endswith("-done") and start.name in each.operands), after
        )
        return any(
            each.opcode in ("fusion", "convolution", "dot", "custom-call", "while")
            for each in between
        )

    # Time.

    def rooflines(self, peak_flops: float, bandwidth: float) -> float:
        """Returns the seconds of all instructions, one after the other.

        Each computes or moves bytes, whichever takes longer.

        Args:
            peak_flops: operations per second.
            bandwidth: of the memory, in bytes per second.
        """
        total = 0.0
        for name, each, times in self.scheduled():
            inner = self._inside(each, 1) if each.opcode == "fusion" else ()
            flops = self._flops(name, each) + sum(
                self._flops(place, inside) for place, inside, _ in inner
            )
            total += times * max(flops / peak_flops, self._moved(name, each) / bandwidth)
        return total

    @functools.cached_property
    def cycles(self) -> int:
        """The cycles that the compiler estimates for all instructions, one after the other.

        0 where it estimates none.
        """
        return sum(times * each.cycles for _, each, times in self.scheduled())

    def slowest(self, count: int) -> list[tuple[int, Instruction]]:
        """Returns the instructions with the most estimated cycles."""
        found = [(times * each.cycles, each) for _, each, times in self.scheduled()]
        return sorted(found, key=lambda pair: -pair[0])[:count]


def _read(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    text = match.group(3)
    end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
    opcode = _OPCODE.match(text[end:])
    if opcode is None:
        return None
    start = end + opcode.end() - 1
    stop = _closing(text, start)
    inside, rest = text[start + 1 : stop], text[stop + 1 :]
    if opcode.group(1) in ("parameter", "constant"):  # a number, or the value
        return Instruction(match.group(2), text[:end], opcode.group(1), (), inside)
    return Instruction(
        match.group(2), text[:end], opcode.group(1), tuple(re.findall(r"%([\w.\-]+)", inside)), rest
    )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _closing(text: str, start: int) -> int:
    """Returns the place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text) - 1


def _convolution_flops(each: Instruction, left: Instruction, right: Instruction) -> float:
    """Returns the operations of a convolution, or of the gradient of one, for which cuDNN has the
    numbers of the forward pass.
    """
    labels = re.match(r"(\w+)_(\w+)->(\w+)", each.attribute("dim_labels"))
    if labels is None or not (each.arrays and left.arrays and right.arrays):
        return 0.0
    result, first, second = each.arrays[0][1], left.arrays[0][1], right.arrays[0][1]
    # (gradient of the output, kernel) -> gradient of the input.
    if "convBackwardInput" in each.rest:
        result, first = first, result
    elif (
        "convBackwardFilter" in each.rest
    ):  # (input, gradient of the output) -> gradient of the kernel
        result, second = second, result
    inputs, kernel, outputs = labels.groups()
    if max(len(inputs) - len(first), len(kernel) - len(second), len(outputs) - len(result)) > 0:
        return 0.0
    window = _window(each.attribute("window"))
    pairs = 1.0
    for label in (character for character in outputs if character.isdecimal()):
        number = int(label)
        sizes = (
            first[inputs.index(label)],
            second[kernel.index(label)],
            result[outputs.index(label)],
        )
        pairs *= _valid_pairs(
            sizes, {name: values[number] for name, values in window.items() if number < len(values)}
        )
    examples, features = result[outputs.index("b")], result[outputs.index("f")]
    groups = int(each.attribute("batch_group_count") or 1)
    return (
        2.0
        * examples
        * features
        * second[kernel.index("i")]
        * pairs
        / (groups if groups > 1 and examples % groups == 0 else 1)
    )


def _window(text: str) -> dict[str, list[str]]:
    return {
        name: values.split("x")
        for name, values in (word.split("=") for word in text.split() if "=" in word)
    }


def _valid_pairs(sizes: tuple[int, int, int], window: Mapping[str, str]) -> int:
    """Returns how many pairs of an output and a place in the kernel, in one dim, meet an input,
    neither padding nor a hole.
    """
    length, taps, outputs = sizes
    stride, dilation, holes = (
        int(window.get(name, 1)) for name in ("stride", "rhs_dilate", "lhs_dilate")
    )
    before = int(window.get("pad", "0_0").split("_")[0])
    return _count_pairs(length, taps, outputs, stride, dilation, holes, before)


@functools.cache
def _count_pairs(*numbers: int) -> int:
    length, taps, outputs, stride, dilation, holes, before = numbers

    def places(output: int, tap: int) -> int:
        return output * stride + tap * dilation - before

    dilated = (length - 1) * holes + 1
    return sum(
        0 <= (place := places(output, tap)) < dilated and place % holes == 0
        for output in range(outputs)
        for tap in range(taps)
    )
