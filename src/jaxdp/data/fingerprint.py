"""Tells whether a dataset still has the examples that it had, by a sample of them."""

import hashlib

import numpy as np

from jaxdp.data.checking import CheckedSource
from jaxdp.data.dataset import BadExample, Source

_SAMPLE = 64  # examples: reading them takes no time worth mentioning


def fingerprint(source: Source) -> str:
    """Returns 16 hexadecimal digits that are the same for the same examples, with high probability
    for no others.

    Those that are looked at lie evenly over the source; one that cannot be read counts as that.
    """
    source = source.unchecked if isinstance(source, CheckedSource) else source
    digest = hashlib.sha256(str(len(source)).encode())
    for index in np.unique(np.linspace(0, len(source) - 1, _SAMPLE).round().astype(int)).tolist():
        try:
            example = source[index]
        except BadExample:
            digest.update(b"bad")
            continue
        for name in sorted(example):
            values = np.ascontiguousarray(example[name])
            digest.update(f"{name} {values.shape} {values.dtype}".encode())
            digest.update(values.tobytes())
    return digest.hexdigest()[:16]
