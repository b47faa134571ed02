"""Success under a whole range of limits, told from few runs."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from workloads import operations_done, random_operations, sequence_of

from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.allocator.sequence_runner import runs_throughout


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 16), growth=st.booleans(), share=st.floats(1.0, 1.6))
@example(seed=171, growth=False, share=1.4)
def test_it_is_so_where_each_limit_succeeds(seed: int, growth: bool, share: float) -> None:
    sequence = sequence_of(random_operations(120, 12, seed=seed, largest=23))
    least = int(share * sequence.live_rounded_bytes().max()) // 256 * 256
    most = least + 40 * 256

    def fits(limit: int) -> bool:
        options = BfcOptions(memory_limit_bytes=limit, growth=growth)
        return operations_done(sequence, options) == len(sequence)

    options = BfcOptions(memory_limit_bytes=least, growth=growth)
    expected = all(fits(limit) for limit in range(least, most + 1, 256))
    assert runs_throughout(sequence, options, most, is_compiled=False) == expected


@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_fits_with_less_may_fail_with_more(is_compiled: bool) -> None:
    sequence = sequence_of(random_operations(120, 12, seed=171, largest=23))
    options = BfcOptions(memory_limit_bytes=12_742_144, growth=False)
    assert runs_throughout(sequence, options, 12_742_144, is_compiled=is_compiled)
    assert not runs_throughout(sequence, options, 16_145_152, is_compiled=is_compiled)
