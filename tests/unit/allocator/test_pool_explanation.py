"""Why the pool grew, what could not serve a request, and what would give memory back."""

import numpy as np
import pytest
from workloads import SAMPLES, random_operations, sample, sequence_of

from analyzer.model.errors import InputError
from analyzer.simulate.allocator import (
    BfcOptions,
    chunks_at,
    from_events,
    growth_history,
    remedies,
    replay,
    unserved,
)
from analyzer.simulate.allocator.pool_explanation import Why

MIB = 1 << 20


def test_each_region_has_its_cause():
    operations = [(0, 2 * MIB), (1, MIB), (2, 20 * MIB), (3, 14 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(40 * MIB, growth=True))
    history = growth_history(result)
    assert [(g.why, g.size_bytes // MIB, g.op) for g in history] == [
        (Why.FIRST, 2, 0),
        (Why.DOUBLING, 4, 1),
        (Why.LARGE_REQUEST, 32, 2),
        (Why.LIMIT, 2, 3),
    ][: len(history)]


def test_the_limit_is_named_as_a_cause():
    operations = [(0, 2 * MIB), (1, 4 * MIB), (2, 3 * MIB)]
    limited = replay(sequence_of(operations), BfcOptions.gpu(10 * MIB, growth=True))
    assert [g.why for g in growth_history(limited)] == [Why.FIRST, Why.DOUBLING, Why.LIMIT]
    whole = replay(sequence_of(operations), BfcOptions.gpu(10 * MIB))
    assert [g.why for g in growth_history(whole)] == [Why.WHOLE_LIMIT]


def test_growth_in_spite_of_enough_free_bytes_is_fragmentation():
    operations = [(i, MIB) for i in range(6)] + [(0, 0), (2, 0), (4, 0), (9, 2 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(64 * MIB, growth=True))
    last = growth_history(result)[-1]
    assert (last.free_bytes, last.largest_free_bytes, last.fragmented) == (3 * MIB, MIB, True)


def test_the_free_chunks_around_a_failure_name_their_neighbours():
    operations = [(i, MIB) for i in range(6)] + [(0, 0), (2, 0), (9, 2 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(6 * MIB))
    pieces = unserved(result)
    assert (pieces.n_free, pieces.largest_free_bytes) == (2, MIB)
    assert (pieces.requested_bytes, pieces.free_bytes) == (2 * MIB, 2 * MIB)
    first, second = pieces.chunks
    assert (first.below_row, first.above_row) == (-1, 1)
    assert (second.below_row, second.above_row, second.below_bytes) == (1, 3, MIB)


def test_a_replay_without_a_failure_is_refused():
    result = replay(sequence_of([(0, MIB), (0, 0)]), BfcOptions.gpu(4 * MIB))
    with pytest.raises(InputError, match="no failed request"):
        unserved(result)


def test_remedies_compare_other_ways_of_running():
    # 20 steps of shrinking tensors among which small ones stay: the pool fills with holes.
    operations = []
    for step in range(20):
        operations += [(f"t{step}", (20 - step) * MIB), (f"keep{step}", 1000), (f"t{step}", 0)]
    sequence = sequence_of(operations)
    steps = tuple((3 * step, 3 * step + 2) for step in range(20))
    found = remedies(sequence, BfcOptions.gpu(1 << 30, growth=True), steps=steps)
    by_id = {remedy.id: remedy for remedy in found}
    assert by_id["restart"].peak_pool_bytes == 6 * MIB
    assert by_id["restart"].limit_saved_bytes > 15 * MIB
    # The first step's 20 MiB get a region of 32 MiB whole: too small to be split.
    assert by_id["fixed-shapes"].peak_in_use_bytes == 32 * MIB + 1024
    assert by_id["cuda-malloc-async"].minimum_limit_bytes == 20 * MIB + 1000
    assert by_id["no-growth"].peak_pool_bytes == 1 << 30
    assert all(remedy.fits for remedy in found)


@pytest.mark.parametrize(
    "options",
    [
        BfcOptions.cpu(),
        BfcOptions.gpu(1 << 31, growth=True),
        BfcOptions(memory_limit_bytes=900 * MIB, gap_bytes=0, garbage_collection=True),
    ],
    ids=["cpu", "gpu", "collected"],
)
def test_the_state_at_any_instant_adds_up(options):
    result = replay(sequence_of(random_operations(3000, 60, seed=5)), options)
    for op in range(0, len(result), 97):
        chunks = chunks_at(result, op)
        held = chunks[chunks["buffer"] >= 0]
        free = chunks[chunks["buffer"] < 0]
        assert held["size_bytes"].sum() == result.in_use_bytes[op]
        assert free["size_bytes"].sum() == result.pool_bytes[op] - result.in_use_bytes[op]
        assert free["size_bytes"].max() == result.largest_free_bytes[op]
        assert chunks["size_bytes"].sum() == result.pool_bytes[op]


def test_regions_given_back_end():
    operations = [(0, 2 * MIB), (1, 4 * MIB), (0, 0), (1, 0), (2, 7 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(8 * MIB, growth=True))
    assert result.failure is None
    sizes = [chunks_at(result, op)["size_bytes"].sum() // MIB for op in (0, 3, 4)]
    assert sizes == [2, 6, 8]


@pytest.mark.parametrize("name", SAMPLES)
def test_recorded_traces_can_be_looked_at_anywhere(name):
    result = replay(from_events(sample(name)), BfcOptions.cpu())
    for op in np.linspace(0, len(result) - 1, 20).astype(int):
        chunks_at(result, int(op))
    assert len(growth_history(result)) == len(result.extensions)
