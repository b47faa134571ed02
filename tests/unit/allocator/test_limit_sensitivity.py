"""One run answers for a range of limits: every limit in it leads equally far, in both engines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import random_operations, sequence_of

from analyzer.model.ranges import Range
from analyzer.model.units import round_up
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions

ENGINES = [False, True]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    growth=st.booleans(),
    coalesce=st.booleans(),
    descending=st.booleans(),
    gap=st.sampled_from([0, 4096]),
    share=st.floats(0.9, 2.0),
    at=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_every_limit_of_the_range_leads_equally_far(
    seed, growth, coalesce, descending, gap, share, at
):
    sequence = sequence_of(random_operations(150, 12, seed=seed, largest=23))
    limit = round_up(int(share * sequence.live_rounded_bytes().max()))

    def run(limit_bytes, is_compiled=False):
        options = BfcOptions(
            memory_limit_bytes=limit_bytes,
            growth=growth,
            coalesce_regions=coalesce,
            garbage_collection=not coalesce,
            descending=descending,
            gap_bytes=gap,
        )
        allocator = BfcAllocator(options, sequence.n_buffers, is_compiled=is_compiled)
        return allocator.feed(sequence.slot, sequence.request), allocator.equal_limits

    done, limits = run(limit)
    least, most = limits.low, limits.high
    assert least <= limit <= most
    for is_compiled in ENGINES:
        assert run(limit, is_compiled) == (done, limits)
    least, most = round_up(max(least, 256)), min(most, 4 * limit) // 256 * 256
    for other in {least, most, *(round_up(int(least + x * (most - least))) for x in at)}:
        assert run(min(other, most))[0] == done


def test_a_limit_that_is_never_near_makes_no_difference():
    sequence = sequence_of([(0, 1 << 20), (1, 1 << 20), (0, 0)])
    allocator = BfcAllocator(BfcOptions.cpu(1 << 30), 2, is_compiled=False)
    allocator.feed(sequence.slot, sequence.request)
    limits = allocator.equal_limits
    assert limits.low == 2 << 20  # the first region has its full size from here on
    assert limits.high > 1 << 60


@pytest.mark.parametrize("is_compiled", ENGINES)
def test_a_fraction_of_the_limit_is_another_under_each(is_compiled):
    options = BfcOptions(memory_limit_bytes=1 << 26, fragmentation_fraction=0.1)
    allocator = BfcAllocator(options, 2, is_compiled=is_compiled)
    sequence = sequence_of([(0, 1 << 20), (1, 1 << 20)])
    allocator.feed(sequence.slot, sequence.request)
    assert allocator.equal_limits == Range.exactly(1 << 26)


@pytest.mark.parametrize("is_compiled", ENGINES)
def test_a_copy_goes_on_alone(is_compiled):
    sequence = sequence_of(random_operations(400, 30, seed=5, largest=21))
    options = BfcOptions.cpu(1 << 32)
    whole = BfcAllocator(options, sequence.n_buffers, is_compiled=is_compiled)
    whole.feed(sequence.slot, sequence.request)
    begun = BfcAllocator(options, sequence.n_buffers, is_compiled=is_compiled)
    begun.feed(sequence.slot[:200], sequence.request[:200])
    for _ in range(2):
        copied = begun.under(1 << 32)
        assert copied.feed(sequence.slot[200:], sequence.request[200:]) == len(sequence) - 200
        assert copied.equal_limits == whole.equal_limits
