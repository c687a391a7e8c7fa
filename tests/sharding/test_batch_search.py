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
        gradients, each = drawn.uniform(0, 2e9), 10 ** drawn.uniform(3, 8)
        usable = 10 ** drawn.uniform(8, 11)
        refused = usable * drawn.choice([1, 1.3, math.inf])
        sizes = {
            count: fixed + max(gradients, each * count) + 0.1 * each * count
            for count in (unit * multiple for power in range(60) for multiple in (2**power, 100))
        }
        tried: list[int] = []

        def bytes_of(
            examples: int,
            sizes: dict[int, float] = sizes,
            refused: float = refused,
            tried: list[int] = tried,
        ) -> float:
            assert examples not in tried
            tried.append(examples)
            return sizes[examples] if sizes[examples] <= refused else math.inf

        start, most = unit * drawn.choice([1, 4, 100]), drawn.choice([math.inf, unit * 40])
        found = largest_fitting(bytes_of, {0: fixed, start: sizes[start]}, unit, usable, most)
        powers = [unit * 2**power for power in range(60) if unit * 2**power <= most]
        assert found.examples == max((size for size in powers if sizes[size] <= usable), default=0)
        assert len(tried) <= 7
