"""The largest batch that fits is found by compiling few steps, whatever they take."""

import math
import random

from jaxdp.sharding.memory import largest_power


def test_the_largest_batch_is_the_largest_that_fits() -> None:
    drawn = random.Random(0)
    for _ in range(500):
        fixed = drawn.uniform(0, 1e9)
        # Gradients serve activations before, so that memory grows only beyond them; the compiler
        # may refuse what does not fit.
        gradients, each = drawn.uniform(0, 2e9), 10 ** drawn.uniform(3, 8)
        usable = 10 ** drawn.uniform(8, 11)
        refused = usable * drawn.choice([1, 1.3, math.inf])
        sizes = [
            fixed + max(gradients, each * 2**power) + 0.1 * each * 2**power for power in range(60)
        ]
        tried: list[int] = []

        def bytes_of(
            count: int,
            sizes: list[float] = sizes,
            refused: float = refused,
            tried: list[int] = tried,
        ) -> float:
            assert count not in tried
            tried.append(count)
            size = sizes[count.bit_length() - 1]
            return size if size <= refused else math.inf

        first, most = drawn.choice([1, 4, 100]), drawn.choice([2**24, 40])
        found = largest_power(bytes_of, first, most, usable)
        fits = (2**power for power in range(60) if 2**power <= most and sizes[power] <= usable)
        assert found == max(fits, default=0)
        assert len(tried) <= 9
