"""Finds out which classes or objects the masks of a training set have, or asks where their values
do not tell.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from jaxdp.data.checking import commonest
from jaxdp.data.dataset import IGNORE_LABEL, BadExample, Source
from jaxdp.data.sources import Request
from jaxdp.data.sources.masks import Distinct
from jaxdp.data.sources.sampling import evenly, in_threads
from jaxdp.registry import ConfigError

_SAMPLE = 512  # masks that are looked through where the classes are given
_MOST_CLASSES = 200  # more values than that in masks are no classes, but shades
_MOST_LISTED = 32  # values or colours in an error
_MOST_COLOURS = 1000  # kept in mind
# Highest number of a mask: of fewer, and of more, one does not ask about classes.
_FEWEST_OBJECTS, _MANY_OBJECTS = 8, 20
_CONSECUTIVE = 0.9  # of the numbers up to the highest one, and of the masks
_NOT_GIVEN = "(not given)"

ReadMask = Callable[[int], Distinct]


@dataclasses.dataclass
class _Found:
    """What all masks hold together.

    Attributes:
        numbers, colours: that occur in any.
        spans: of each mask of numbers that is not empty, how many there are beside 0 and
            IGNORE_LABEL, and the highest.
        count: of masks.
    """

    numbers: set[int] = dataclasses.field(default_factory=set[int])
    colours: set[int] = dataclasses.field(default_factory=set[int])
    spans: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    count: int = 0

    def add(self, distinct: Distinct) -> None:
        self.count += 1
        values = distinct.values[:_MOST_COLOURS] if distinct.colours else distinct.values
        known = self.colours if distinct.colours else self.numbers
        if not distinct.colours or len(known) <= _MOST_COLOURS:
            known.update(map(int, values))
        objects = values[(values != 0) & (values != IGNORE_LABEL)]
        if not distinct.colours and len(objects):
            self.spans.append((len(objects), int(objects[-1])))

    def join(self, other: "_Found") -> None:
        self.numbers |= other.numbers
        self.colours |= other.colours
        self.spans += other.spans
        self.count += other.count

    def are_objects(self) -> bool:
        """Returns whether the numbers are those of objects: 1, 2, ... without gaps in each mask,
        and another last one in each.
        """
        highest = sorted(last for _, last in self.spans)
        if not highest or highest[-1] <= _FEWEST_OBJECTS:
            return False
        whole = sum(count >= _CONSECUTIVE * last for count, last in self.spans)
        alike = collections.Counter(highest).most_common(1)[0][1]
        differ = 2 * alike <= len(highest) or highest[len(highest) // 2] > _MANY_OBJECTS
        return whole >= _CONSECUTIVE * len(self.spans) and differ


def find_classes(
    request: Request, mask: ReadMask, length: int, skip: bool
) -> tuple[int | None, np.ndarray | None]:
    """Returns how many classes the training masks have, None if `--mask-values` tells, and how
    their values are to be numbered.

    All masks are read once, unless `--num-classes` or `--mask-values` is given: then a sample of
    them.

    Args:
        mask: tells what a training mask holds: its values as stored, or with `--mask-values` its
            class numbers.
        skip: whether masks that cannot be used are left out.

    Raises:
        ConfigError: for masks of one class, or whose values may mean several things.
        BadExample: for one that cannot be used, unless it is left out.
    """
    given, values = request.config.num_classes, request.config.mask_values
    found = _looked_through(
        request, mask, evenly(length, _SAMPLE) if given or values else range(length), skip
    )
    if values is not None:
        if given is None and len(found.numbers - {IGNORE_LABEL}) < 2:
            remedy = (
                f"leaves the training masks of {request.config.dataset} one class only; correct it,"
                " or give --num-classes"
            )
            raise ConfigError("mask_values", str(values), remedy)
        return None, None
    if found.colours and not found.numbers:
        raise _unnamed_colours(request, sorted(found.colours))
    if found.numbers == {0, 255}:  # black and white: nobody ignores all that is not background
        return given or 2, np.where(np.arange(256) == 255, 1, np.arange(256)).astype(np.uint8)
    if given:
        return given, None
    if found.are_objects():
        raise _unclear_objects(request, max(found.numbers))
    return _count(request, sorted(found.numbers)), None


def check_objects(source: Source, name: str, *, skip: bool) -> None:
    """Looks through some masks of a training split until one has several objects.

    Args:
        name: of the dataset.
        skip: whether masks that cannot be used are left out.

    Raises:
        ConfigError: if none has.
        BadExample: for one that cannot be used, unless it is left out.
    """
    some = False
    for index in evenly(len(source), _SAMPLE):
        try:
            numbers = np.unique(source[index]["masks"])
        except BadExample:
            if not skip:
                raise
            continue
        if np.count_nonzero(numbers > 0) > 1:
            return
        some |= bool((numbers > 0).any())
    held = "hold one number each beside 0" if some else "hold no object"
    remedy = (
        f"the training masks of {name} {held}; give each object of a mask a number of its own, e.g."
        " by skimage.measure.label"
    )
    raise ConfigError("instances", "", f"{remedy}, or leave --instances out")


def _looked_through(request: Request, mask: ReadMask, indices: Iterable[int], skip: bool) -> _Found:
    def distinct(index: int) -> Distinct | BadExample:
        try:
            return mask(index)
        except BadExample as error:
            return error

    narrow, wide = _Found(), _Found()  # wide: values that only `--mask-values` can make classes of
    problems: list[BadExample] = []
    with in_threads(distinct, indices) as parts:
        for part in parts:
            if isinstance(part, Distinct):
                (wide if part.colours or part.values.max(initial=0) > IGNORE_LABEL else narrow).add(
                    part
                )
            elif skip:
                problems.append(part)
            else:
                raise part
    if not narrow.count and not wide.count:
        raise request.error(
            f"nothing of it can be used; {commonest(problems)} (most often of its train examples)"
        )
    # Otherwise a few wide ones are bad examples, which are left out.
    if not skip or 2 * wide.count >= narrow.count:
        narrow.join(wide)
    return narrow


def _unnamed_colours(request: Request, colours: list[int]) -> ConfigError:
    held = f"the training masks of {request.config.dataset} hold"
    if len(colours) > _MOST_LISTED:
        some = ", ".join(f"{colour:06x}" for colour in colours[:4])
        more = (
            f"{held} {'over ' * (len(colours) >= _MOST_COLOURS)}{min(len(colours), _MOST_COLOURS)}"
            f" colours ({some}, ...)"
        )
        remedy = (
            f"{more}; save them with one colour a class, as PNG rather than JPEG, without"
            " antialiasing"
        )
        return ConfigError("mask_values", _NOT_GIVEN, remedy)
    flag = "--mask-values " + ",".join(f"{colour:06x}" for colour in colours)
    if len(colours) < 2:
        return ConfigError(
            "mask_values",
            _NOT_GIVEN,
            f"{held} one colour only, {colours[0]:06x}; there is nothing to tell apart",
        )
    return ConfigError(
        "mask_values",
        _NOT_GIVEN,
        f"{held} {len(colours)} colours; name those of class 0, 1, ...: {flag}",
    )


def _unclear_objects(request: Request, highest: int) -> ConfigError:
    held = (
        f"the training masks of {request.config.dataset} hold numbers up to {highest}, in each from"
        " 1 on without gaps, like"
    )
    apart = "--instances to tell them apart"
    either = (
        f", {apart}, or --num-classes {highest + 1} if they are classes"
        if highest < IGNORE_LABEL
        else f", or {apart}"
    )
    remedy = (
        f"{held} numbers of objects; give --mask-values binary (0 is background, everything else"
        f" class 1){either}"
    )
    return ConfigError("mask_values", _NOT_GIVEN, remedy)


def _count(request: Request, numbers: list[int]) -> int:
    """Returns how many classes these numbers of masks are.

    Raises:
        ConfigError: for one class, or numbers with gaps that are no class numbers.
    """
    where, wide = request.config.dataset, numbers[-1] > IGNORE_LABEL
    classes = [number for number in numbers if wide or number != IGNORE_LABEL]
    count = max(classes, default=-1) + 1
    if count < 2:
        raise ConfigError(
            "num_classes",
            _NOT_GIVEN,
            f"the training masks of {where} hold one class only; give --num-classes",
        )
    if count <= min(2 * len(classes), _MOST_CLASSES):
        return count
    listed = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
    held = f"the training masks hold {len(classes)} values up to {count - 1} ({listed})"
    binary = "--mask-values binary if 0 is background and everything else class 1"
    pasted = (
        f"--mask-values {','.join(map(str, numbers))} if each is a class"
        if len(numbers) <= _MOST_LISTED
        else binary
    )
    renumber = f"number the classes 0, 1, 2, ... and {IGNORE_LABEL} for ignored pixels"
    objects = "; or --instances if they are numbers of objects" * (len(classes) > 2)
    if wide:
        raise ConfigError(
            "mask_values", _NOT_GIVEN, f"{held}; give {pasted}, or {renumber}{objects}"
        )
    raise ConfigError(
        "num_classes",
        _NOT_GIVEN,
        f"{held}; give {pasted}, {renumber}, or give --num-classes {count}{objects}",
    )
