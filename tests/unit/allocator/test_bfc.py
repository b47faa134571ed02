"""The oracle of the allocator: worked examples, then invariants on random workloads."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OracleAllocator, bin_of

from analyzer.model.errors import AccountingError, InputError
from analyzer.simulate.allocator.bfc import bfc_chunks
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions

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


def test_requests_are_rounded_and_split_from_the_low_end():
    bfc = OracleAllocator(BfcOptions(first_address=0))
    assert [bfc.allocate(n) for n in (1, 256, 257, 5000)] == [0, 256, 512, 1024]
    assert bfc.in_use_bytes == 256 + 256 + 512 + 5120
    assert bfc.requested_bytes == 1 + 256 + 257 + 5000
    assert bfc.pool_bytes == 2 * MIB


def test_a_chunk_under_twice_the_request_is_handed_out_whole():
    bfc = OracleAllocator(BfcOptions(first_address=0))
    hole, _ = bfc.allocate(1000), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.allocate(600) == hole
    assert bfc.chunk_at(hole).size_bytes == 1024


@pytest.mark.parametrize(
    ("spare", "size"), [(128 * MIB - 256, 328 * MIB - 256), (128 * MIB, 200 * MIB)]
)
def test_a_left_over_of_128_mib_is_split_off(spare, size):
    bfc = OracleAllocator(BfcOptions.gpu(1 << 30))
    hole, _ = bfc.allocate(200 * MIB + spare), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.chunk_at(bfc.allocate(200 * MIB)).size_bytes == size


def test_the_fragmentation_fraction_replaces_the_128_mib():
    bfc = OracleAllocator(BfcOptions(memory_limit_bytes=100 * MIB, fragmentation_fraction=0.01))
    hole, _ = bfc.allocate(20 * MIB), bfc.allocate(1)
    bfc.free(hole)
    assert bfc.chunk_at(bfc.allocate(18 * MIB)).size_bytes == 18 * MIB


def test_regions_double_and_the_limit_caps_the_last():
    bfc = OracleAllocator(BfcOptions(memory_limit_bytes=40 * MIB, coalesce_regions=False))
    for _ in range(20):
        assert bfc.allocate(2 * MIB) is not None
    assert [e.size_bytes // MIB for e in bfc.extensions] == [2, 4, 8, 16, 10]
    assert bfc.allocate(1) is None


def test_a_large_request_takes_a_region_of_the_next_power():
    bfc = OracleAllocator(BfcOptions())
    bfc.allocate(9 * MIB)
    bfc.allocate(9 * MIB)
    bfc.allocate(9 * MIB)
    # The first is raised by the request, so the second is not doubled; the third is.
    assert [e.size_bytes // MIB for e in bfc.extensions] == [16, 16, 32]


def test_without_growth_one_region_of_the_whole_limit_is_taken_at_the_first_request():
    bfc = OracleAllocator(BfcOptions.gpu(10 * MIB + 100))
    assert bfc.pool_bytes == 0
    bfc.allocate(1)
    assert bfc.pool_bytes == 10 * MIB
    assert bfc.allocate(10 * MIB) is None


def test_neighbouring_regions_join_only_where_the_device_allows_it():
    for coalesce in (True, False):
        bfc = OracleAllocator(BfcOptions(coalesce_regions=coalesce, gap_bytes=0, first_address=0))
        held = [bfc.allocate(2 * MIB), bfc.allocate(4 * MIB)]
        for address in held:
            bfc.free(address)
        bfc.check()
        assert len(bfc.regions) == (1 if coalesce else 2)
        assert bfc.largest_free_bytes == (6 if coalesce else 4) * MIB


def test_free_regions_are_given_back_before_failing():
    for collect in (True, False):
        options = BfcOptions(
            memory_limit_bytes=15 * MIB, coalesce_regions=False, garbage_collection=collect
        )
        bfc = OracleAllocator(options)
        held = [bfc.allocate(n * MIB) for n in (2, 4, 8)]
        for address in held:
            bfc.free(address)
        assert (bfc.allocate(12 * MIB) is not None) is collect
        bfc.check()
        assert bfc.pool_bytes == (15 if collect else 14) * MIB
        assert len(bfc.released) == (3 if collect else 0)


def test_fragmentation_is_the_share_of_free_bytes_outside_the_largest_chunk():
    bfc = OracleAllocator(BfcOptions(memory_limit_bytes=MIB, growth=False))
    assert math.isnan(bfc.fragmentation)
    held = [bfc.allocate(256 * KIB) for _ in range(4)]
    assert math.isnan(bfc.fragmentation)
    bfc.free(held[0])
    bfc.free(held[2])
    assert bfc.fragmentation == 0.5


def test_what_cannot_be_asked_is_refused():
    bfc = OracleAllocator(BfcOptions())
    for size in (0, -1):
        with pytest.raises(ValueError, match="an allocation of"):
            bfc.allocate(size)
    with pytest.raises(KeyError):
        bfc.free(12345)
    address = bfc.allocate(1)
    bfc.free(address)
    with pytest.raises(KeyError):
        bfc.free(address)
    with pytest.raises(InputError):
        BfcOptions(memory_limit_bytes=0)
    with pytest.raises(InputError):
        BfcOptions(fragmentation_fraction=1.5)


def test_check_notices_broken_books():
    bfc = OracleAllocator(BfcOptions())
    bfc.allocate(1000)
    bfc.in_use_bytes += 256
    with pytest.raises(AccountingError, match="in use"):
        bfc.check()


@given(exponent=st.integers(0, 40), below=st.integers(0, 255))
def test_bins_are_powers_of_two(exponent, below):
    size = (256 << exponent) + below
    assert bin_of(size) == bfc_chunks.bin_of(size) == min(20, exponent)


@settings(max_examples=150, deadline=None)
@given(options=setups, steps=steps)
def test_the_books_balance_after_every_operation(options, steps):
    """No overlap, no gap, no free neighbours, exact bins and totals: all in ``check``."""
    bfc, held, requested = OracleAllocator(options), [], 0
    for size, pick, is_free in steps:
        if is_free and held:
            address, size = held.pop(pick % len(held))
            bfc.free(address)
            requested -= size
        else:
            address = bfc.allocate(size, owner=pick)
            if address is not None:
                held.append((address, size))
                requested += size
                assert bfc.chunk_at(address).owner == pick
        bfc.check()
        assert bfc.requested_bytes == requested
        assert sum(bfc.chunk_at(address).size_bytes for address, _ in held) == bfc.in_use_bytes
        spans = sorted((address, address + bfc.chunk_at(address).size_bytes) for address, _ in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for address, _ in held:
        bfc.free(address)
    bfc.check()
    assert bfc.in_use_bytes == 0
    assert all(region.first.above is None for region in bfc.regions)
