"""Any table is refused in one line, or replayed without the rows that contradict others."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import from_events, sample, sequence_of

from analyzer.model.errors import TraceError
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import (
    compare,
    from_allocations,
    recorded_options,
    replay,
)

MIB = 1 << 20


def check_replay(result):
    """Check that bytes in use are the sum of the chunks and at least the requested bytes."""
    births = result.sequence.request[: len(result)] > 0
    sums = np.cumsum(np.where(births, result.chunk_bytes, -result.chunk_bytes))
    assert np.array_equal(sums, result.in_use_bytes)
    live = result.sequence.live_requested_bytes()[: len(result)]
    assert (live <= result.in_use_bytes).all()
    assert (result.in_use_bytes <= result.pool_bytes).all()


def check_sequence(sequence):
    """Each buffer is born once and dies at most once, after its birth; instants never run back."""
    births = np.bincount(
        sequence.slot[sequence.request > 0], minlength=sequence.n_buffers
    )
    deaths = np.bincount(
        sequence.slot[sequence.request == 0], minlength=sequence.n_buffers
    )
    assert (births == 1).all()
    assert (deaths <= 1).all()
    assert (sequence.live_requested_bytes() >= 0).all()
    assert (np.diff(sequence.instant) >= 0).all()
    first = {}
    for op, (slot, request) in enumerate(
        zip(sequence.slot, sequence.request, strict=True)
    ):
        assert (slot in first) == (request == 0)
        first.setdefault(slot, op)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, MIB), st.integers(-1, 30), st.integers(-1, 30)),
        min_size=1,
        max_size=30,
    )
)
def test_any_allocations(rows):
    table = pd.DataFrame(rows, columns=["requested_bytes", "born", "dies"])
    try:
        sequence = from_allocations(table)
    except TraceError:
        assert all(size == 0 or dies <= born for size, born, dies in rows)
        return
    check_sequence(sequence)
    check_replay(replay(sequence, BfcOptions.gpu(64 * MIB)))


@pytest.mark.parametrize("seed", range(20))
def test_a_real_trace_with_damage_is_never_wrong_in_silence(seed):
    rng = np.random.default_rng(seed)
    events = sample("mlp_jit")
    rows = rng.choice(len(events), 3, replace=False)
    damaged = events.copy()
    match seed % 3:
        case 0:
            damaged = events.drop(index=rows)
        case 1:
            damaged.loc[rows, "address"] += 64
        case _:
            damaged.loc[rows, "kind"] *= -1
    damaged = damaged.reset_index(drop=True)
    check, result = compare(from_events(damaged), damaged, BfcOptions.cpu())
    assert not check.is_exact
    check_replay(result)
    check_sequence(result.sequence)


@pytest.mark.parametrize("growth", [True, False])
def test_the_set_up_of_a_gpu_trace_is_found_by_replaying(growth):
    operations = [(i, (i % 7 + 1) * 100_000) for i in range(60)] + [
        (i, 0) for i in range(0, 60, 3)
    ]
    result = replay(sequence_of(operations), BfcOptions.gpu(1 << 30, growth=growth))
    events = pd.DataFrame(
        {
            "kind": np.where(result.sequence.request > 0, 1, -1),
            "allocator": "GPU_0_bfc",
            "address": result.address,
            "requested_bytes": result.sequence.requested_bytes[result.sequence.slot],
            "allocated_bytes": result.chunk_bytes,
            "in_use_bytes": result.in_use_bytes,
            "available_bytes": (1 << 30) - result.in_use_bytes,
            "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
            "fragmentation": result.fragmentation(),
        }
    )
    sequence = from_events(events)
    options = recorded_options(sequence, events)
    assert (options.growth, options.memory_limit_bytes) == (growth, 1 << 30)
    assert compare(sequence, events, options)[0].is_exact
    cpu = recorded_options(
        sequence, events.assign(allocator="bfc_cpu_allocator_for_gpu")
    )
    assert cpu == BfcOptions.cpu(1 << 30)
