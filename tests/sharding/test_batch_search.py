"""The largest batch that fits is found by compiling few steps, whatever they take."""

import math
import random

from jaxdp.sharding.memory import largest_fitting


def test_the_largest_batch_is_the_largest_that_fits() -> None:
    drawn = random.Random(0)
    for _ in range(500):
        unit, fixed = drawn.choice([1, 2, 6]), drawn.uniform(0, 1e9)
        # Gradients serve activations before, so that memory grows only beyond them; the compiler
        # may refuse what does not fit.
        gradients, each, usable = (
            drawn.uniform(0, 2e9),
            10 ** drawn.uniform(3, 8),
            10 ** drawn.uniform(8, 11),
        )
        refused = usable * drawn.choice([1, 1.3, math.inf])

        def takes(examples: int, numbers: tuple[float, ...] = (fixed, gradients, each)) -> float:
            return numbers[0] + max(numbers[1], numbers[2] * examples) + 0.1 * numbers[2] * examples

        tried: dict[int, float] = {}

        def bytes_of(
            examples: int, most: float = refused, tried: dict[int, float] = tried
        ) -> float:
            assert examples not in tried
            tried[examples] = takes(examples) if takes(examples) <= most else math.inf
            return tried[examples]

        start = unit * drawn.choice([1, 4, 100])
        most = drawn.choice([math.inf, unit * 40])
        found = largest_fitting(bytes_of, {0: fixed, start: takes(start)}, unit, usable, most)
        sizes = [unit * 2**power for power in range(60) if unit * 2**power <= most]
        assert found.examples == max((size for size in sizes if takes(size) <= usable), default=0)
        assert len(tried) <= 7
