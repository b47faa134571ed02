"""The cycle collector is paused within a block and left as it was."""

from __future__ import annotations

import gc

import pytest

from analyzer.model.interrupts import (
    collect_rarely,
    freeze_loaded_objects,
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


def test_a_command_collects_rarely_and_still_does() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.set_threshold(*before)


def test_what_is_loaded_is_passed_over_and_what_comes_later_is_not() -> None:
    loaded: list[object] = [[]]
    try:
        freeze_loaded_objects()
        later: list[object] = [[]]
        known = {id(thing) for thing in gc.get_objects()}
        assert id(loaded) not in known
        assert id(later) in known
    finally:
        gc.unfreeze()
