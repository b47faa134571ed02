"""The cycle collector is paused within a block and left as it was."""

from __future__ import annotations

import gc

import pytest

from analyzer.gc_pause import collector_paused


def test_the_collector_comes_back_after_an_error() -> None:
    seen = []

    @collector_paused()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise ValueError("any")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="any"):
        fail()
    assert seen == [False]
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
