"""Why the pool grew, and what would give memory back."""

from workloads import sequence_of

from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions
from analyzer.simulate.allocator.pool_explanation import growth_history, remedies
from analyzer.simulate.allocator.replay import replay

MIB = 1 << 20


def test_each_region_has_its_cause():
    operations = [(0, 2 * MIB), (1, MIB), (2, 20 * MIB), (3, 14 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(40 * MIB, growth=True))
    history = growth_history(result)
    assert [(g.why, g.size_bytes // MIB, g.instant) for g in history] == [
        ("first region", 2, 0),
        ("doubling", 4, 1),
        ("large request", 32, 2),
        ("rest of the limit", 2, 3),
    ][: len(history)]


def test_the_limit_is_named_as_a_cause():
    operations = [(0, 2 * MIB), (1, 4 * MIB), (2, 3 * MIB)]
    limited = replay(sequence_of(operations), BfcOptions.gpu(10 * MIB, growth=True))
    assert [g.why for g in growth_history(limited)] == [
        "first region",
        "doubling",
        "rest of the limit",
    ]
    whole = replay(sequence_of(operations), BfcOptions.gpu(10 * MIB))
    assert [g.why for g in growth_history(whole)] == ["whole limit"]


def test_growth_in_spite_of_enough_free_bytes_is_fragmentation():
    operations = [(i, MIB) for i in range(6)] + [(0, 0), (2, 0), (4, 0), (9, 2 * MIB)]
    result = replay(sequence_of(operations), BfcOptions.gpu(64 * MIB, growth=True))
    last = growth_history(result)[-1]
    assert (last.free_bytes, last.largest_free_bytes) == (3 * MIB, MIB)


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
