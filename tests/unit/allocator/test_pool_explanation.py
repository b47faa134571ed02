"""Settings of the allocator that need less memory."""

from workloads import sequence_of

from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions
from analyzer.simulate.allocator.pool_explanation import remedies

MIB = 1 << 20


def test_remedies_compare_other_settings():
    # 20 steps of shrinking tensors among which small ones stay: the pool fills with holes.
    operations = []
    for step in range(20):
        operations += [(f"t{step}", (20 - step) * MIB), (f"keep{step}", 1000), (f"t{step}", 0)]
    found = remedies(sequence_of(operations), BfcOptions.gpu(1 << 30, growth=True))
    by_id = {remedy.id: remedy for remedy in found}
    assert by_id["cuda-malloc-async"].minimum_limit_bytes == 20 * MIB + 1000
    assert by_id["no-growth"].peak_pool_bytes == 1 << 30
    least = by_id["as-is"].minimum_limit_bytes
    assert all(one.limit_saved_bytes == least - one.minimum_limit_bytes for one in found)
    assert by_id["cuda-malloc-async"].limit_saved_bytes > 0
