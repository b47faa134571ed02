"""Inputs that are made before anything else."""

from __future__ import annotations

import pytest

from analyzer.model.contract.run_note import Input
from analyzer.simulate.predict.startup import Startup

MIB = 1 << 20


@pytest.mark.parametrize(("before", "small"), [(0, [8, 8, 16]), (1, [])])
def test_what_random_numbers_are_made_from_comes_first(before: int, small: list[int]) -> None:
    """Otherwise a step without variables would start its pool with the input: 2 MiB too little."""
    history = Startup()
    for _ in range(before):
        history.allocate(256)
    number = history.add_input(Input(name="rows", dtype="float32", shape=(1024, 1024)))
    sizes = [made.size_bytes for made in history.buffers[before:]]
    assert sizes == [*small, 4 * MIB, 4 * MIB, 4 * MIB]
    assert [made.dies is None for made in history.buffers[before:]] == [False] * (
        len(sizes) - 1
    ) + [True]
    assert number == len(history.buffers) - 1
