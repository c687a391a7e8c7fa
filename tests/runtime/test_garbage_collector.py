import gc

import pytest

from jaxdp.runtime import garbage_collector


@garbage_collector.paused()
def _fail() -> None:
    assert not gc.isenabled()
    raise KeyError


def test_collector_runs_again_after_an_error() -> None:
    with pytest.raises(KeyError):
        _fail()
    assert gc.isenabled()
