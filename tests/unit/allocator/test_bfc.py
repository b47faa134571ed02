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
    coalesce_regions=st.booleans(),
    garbage_collection=st.booleans(),
    fragmentation_fraction=st.sampled_from([0.0, 0.01, 0.5]),
    descending=st.booleans(),
    gap_bytes=st.sampled_from([0, 4096]),
)


@pytest.mark.parametrize(
    ("spare", "size"), [(128 * MIB - 256, 328 * MIB - 256), (128 * MIB, 200 * MIB)]
)
def test_a_rest_of_128_mib_is_split_off(spare, size):
    bfc = BfcAllocator(BfcOptions.gpu(1 << 30))
    hole, _ = bfc.allocate(200 * MIB + spare), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.allocate(200 * MIB).size_bytes == size


def test_the_fragmentation_fraction_replaces_the_128_mib():
    bfc = BfcAllocator(
        BfcOptions(memory_limit_bytes=100 * MIB, fragmentation_fraction=0.01)
    )
    hole, _ = bfc.allocate(20 * MIB), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.allocate(18 * MIB).size_bytes == 18 * MIB


def test_without_growth_one_region_of_the_whole_limit_is_taken_at_the_first_request():
    bfc = BfcAllocator(BfcOptions.gpu(10 * MIB + 100))
    assert bfc.pool_bytes == 0
    bfc.allocate(1)
    assert bfc.pool_bytes == 10 * MIB
    assert bfc.allocate(10 * MIB) is None


@pytest.mark.parametrize("coalesce", [True, False])
def test_neighbouring_regions_join_only_if_the_device_allows_it(coalesce):
    bfc = BfcAllocator(
        BfcOptions(coalesce_regions=coalesce, gap_bytes=0, first_address=0)
    )
    for chunk in [bfc.allocate(2 * MIB), bfc.allocate(4 * MIB)]:
        bfc.free(chunk)
    check(bfc)
    assert len(bfc.regions) == (1 if coalesce else 2)
    assert bfc.largest_free_bytes == (6 if coalesce else 4) * MIB


@pytest.mark.parametrize("collect", [True, False])
def test_free_regions_return_to_the_driver_before_a_failure(collect):
    options = BfcOptions(
        memory_limit_bytes=15 * MIB, coalesce_regions=False, garbage_collection=collect
    )
    bfc = BfcAllocator(options)
    for chunk in [bfc.allocate(n * MIB) for n in (2, 4, 8)]:
        bfc.free(chunk)
    assert (bfc.allocate(12 * MIB) is not None) is collect
    check(bfc)
    assert bfc.pool_bytes == (15 if collect else 14) * MIB


@pytest.mark.parametrize(
    "wrong", [{"memory_limit_bytes": 0}, {"fragmentation_fraction": 1.5}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        BfcOptions(**wrong)


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
