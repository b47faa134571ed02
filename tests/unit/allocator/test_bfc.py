"""The allocator: worked examples, then invariants on random workloads."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.model.errors import InputError
from analyzer.simulate.allocator.bfc import BfcAllocator, BfcOptions

KIB, MIB = 1 << 10, 1 << 20

sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 16 * MIB),
    st.sampled_from([255, 256, 257, 128 * MIB, 128 * MIB + 256, 300 * MIB]),
)
steps = st.lists(st.tuples(sizes, st.integers(0, 1 << 16), st.booleans()), max_size=60)
setups = st.builds(
    BfcOptions,
    memory_limit_bytes=st.sampled_from([MIB, 5 * MIB + 77, 64 * MIB, 1 << 30]),
    growth=st.booleans(),
    on_card=st.booleans(),
)


@pytest.mark.parametrize(
    ("spare", "size"), [(128 * MIB - 256, 328 * MIB - 256), (128 * MIB, 200 * MIB)]
)
def test_a_rest_of_128_mib_is_split_off(spare, size):
    bfc = BfcAllocator(BfcOptions.gpu(1 << 30))
    hole, _ = bfc.allocate(200 * MIB + spare), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.allocate(200 * MIB).size_bytes == size


def test_without_growth_one_region_of_the_whole_limit_is_taken_at_the_first_request():
    bfc = BfcAllocator(BfcOptions.gpu(10 * MIB + 100))
    assert bfc.pool_bytes == 0
    bfc.allocate(1)
    assert bfc.pool_bytes == 10 * MIB
    assert bfc.allocate(10 * MIB) is None


@pytest.mark.parametrize("on_card", [True, False])
def test_neighbouring_regions_join_only_on_a_cpu(on_card):
    bfc = BfcAllocator(BfcOptions(on_card=on_card))
    chunks = [bfc.allocate(2 * MIB, MIB), bfc.allocate(4 * MIB, 3 * MIB)]
    for chunk in chunks:
        bfc.free(chunk)
    check(bfc)
    assert len(bfc.regions) == (2 if on_card else 1)
    assert bfc.largest_free_bytes == (4 if on_card else 6) * MIB


@pytest.mark.parametrize("on_card", [True, False])
def test_a_card_gets_free_regions_back_before_a_failure(on_card):
    bfc = BfcAllocator(BfcOptions(memory_limit_bytes=15 * MIB, on_card=on_card))
    for chunk in [bfc.allocate(n * MIB) for n in (2, 4, 8)]:
        bfc.free(chunk)
    assert (bfc.allocate(12 * MIB) is not None) is on_card
    check(bfc)
    assert bfc.pool_bytes == (15 if on_card else 14) * MIB


def test_an_impossible_limit_is_refused():
    with pytest.raises(InputError):
        BfcOptions(memory_limit_bytes=0)


def check(bfc):
    """Check that chunks tile the regions, no two free ones touch, and totals add up."""
    free, in_use_bytes, pool_bytes = [], 0, 0
    for chunk in bfc.regions:
        address, below = chunk.address, None
        while chunk is not None:
            assert (chunk.address, chunk.below) == (address, below)
            assert chunk.size_bytes > 0
            assert chunk.size_bytes % 256 == 0
            assert not (below is not None and below.is_free and chunk.is_free)
            if chunk.is_free:
                free.append((chunk.size_bytes, chunk.address))
            else:
                in_use_bytes += chunk.size_bytes
            pool_bytes += chunk.size_bytes
            address, below, chunk = chunk.end, chunk, chunk.above
    assert sorted(free) == bfc._free
    assert (bfc.in_use_bytes, bfc.pool_bytes) == (in_use_bytes, pool_bytes)
    assert bfc.pool_bytes <= bfc.options.memory_limit_bytes


@settings(max_examples=150, deadline=None)
@given(options=setups, steps=steps)
def test_the_books_balance_after_every_operation(options, steps):
    bfc, held = BfcAllocator(options), []
    for size, pick, is_free in steps:
        if is_free and held:
            bfc.free(held.pop(pick % len(held)))
        elif (chunk := bfc.allocate(size)) is not None:
            assert chunk.size_bytes >= size
            held.append(chunk)
        check(bfc)
        spans = sorted((chunk.address, chunk.end) for chunk in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for chunk in held:
        bfc.free(chunk)
    check(bfc)
    assert bfc.in_use_bytes == 0
