"""The cycle collector is paused within a block and left as it was."""

from __future__ import annotations

import gc

import pytest

from analyzer.model.interrupts import (
    pause_collector,
)


def test_the_collector_comes_back_after_an_error() -> None:
    seen = []

    @pause_collector()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise ValueError("any")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="any"):
        fail()
    assert seen == [False]
    assert gc.isenabled()
