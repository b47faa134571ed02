"""The compiled allocator equals the reference: every address, total, region and failure."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from test_bfc import setups, steps
from workloads import random_operations, sequence_of

from analyzer.model.errors import AccountingError
from analyzer.simulate.allocator import BfcOptions, Engine, replay
from analyzer.simulate.allocator.numba import compiled_allocator as compiled
from analyzer.simulate.allocator.replay import in_use_bytes, operations_done

GIB = 1 << 30


def both(sequence, options, **how):
    reference = replay(sequence, options, engine=Engine.REFERENCE, **how)
    fast = replay(sequence, options, engine=Engine.COMPILED, **how)
    for name in ("address", "chunk_bytes", "in_use_bytes", "pool_bytes", "largest_free_bytes"):
        np.testing.assert_array_equal(getattr(reference, name), getattr(fast, name), err_msg=name)
    assert reference.extensions == fast.extensions
    assert reference.releases == fast.releases
    assert reference.failure == fast.failure
    assert operations_done(sequence, options, engine=Engine.COMPILED) == len(fast)
    for engine in (Engine.REFERENCE, Engine.COMPILED):
        in_use = in_use_bytes(sequence, options, engine=engine)
        np.testing.assert_array_equal(in_use, fast.in_use_bytes)
    return fast


@settings(max_examples=200, deadline=None)
@given(options=setups, steps=steps)
def test_small_random_workloads(options, steps):
    operations, held = [], []
    for number, (size, pick, is_free) in enumerate(steps):
        if is_free and held:
            operations.append((held.pop(pick % len(held)), 0))
        else:
            held.append(number)
            operations.append((number, size))
    both(sequence_of(operations), options)


@pytest.mark.parametrize("live", [30, 3000])
@pytest.mark.parametrize(
    "options",
    [
        BfcOptions.cpu(),
        BfcOptions.gpu(200 * GIB),
        BfcOptions.gpu(1 * GIB, growth=True),
        BfcOptions(memory_limit_bytes=40 * GIB, gap_bytes=0, descending=True),
        BfcOptions(memory_limit_bytes=64 * GIB, fragmentation_fraction=1e-5, gap_bytes=0),
    ],
    ids=["cpu", "gpu", "gpu-growth", "descending", "adjacent"],
)
def test_large_random_workloads(options, live):
    both(sequence_of(random_operations(20_000, live, seed=live)), options)


def test_a_process_that_forgets_to_free_fails_alike():
    operations = [(i, 3_000_000) for i in range(1000)]
    result = both(sequence_of(operations), BfcOptions.gpu(GIB, growth=True))
    assert result.failure is not None
    assert result.failure.op == len(result)


def test_arrays_can_be_fed_piecewise_and_slots_used_again():
    operations = random_operations(30_000, 500, seed=3)
    slot = np.array([slot for slot, _ in operations])
    request = np.array([size for _, size in operations])
    whole = replay(sequence_of(operations), BfcOptions.cpu(), engine=Engine.COMPILED)
    allocator = compiled.CompiledAllocator(BfcOptions.cpu(), slots=1000)
    pieces = []
    for first in range(0, len(slot), 700):
        piece = slice(first, first + 700)
        out = np.empty((slot[piece].size, compiled.OUT_COLUMNS), np.int64)
        assert allocator.feed(slot[piece], request[piece], out=out) == slot[piece].size
        pieces.append(out)
    np.testing.assert_array_equal(np.concatenate(pieces)[:, 0], whole.address)
    assert allocator.extensions == list(whole.extensions)
    assert allocator.in_use_bytes == whole.in_use_bytes[-1]
    assert allocator.peak_in_use_bytes == whole.peak_in_use_bytes


@pytest.mark.parametrize("slot,request_", [([0, 0], [5, 5]), ([0], [0]), ([7], [1])])  # noqa: PT006
def test_slots_that_make_no_sense_are_refused(slot, request_):
    allocator = compiled.CompiledAllocator(BfcOptions.cpu(), slots=2)
    with pytest.raises(AccountingError):
        allocator.feed(np.array(slot), np.array(request_))


def test_state_is_as_large_as_what_lives():
    allocator = compiled.CompiledAllocator(BfcOptions.cpu(), slots=200)
    operations = random_operations(2000, 100, seed=1)
    operations += [(slot, 0) for slot in _alive(operations)]
    slot = np.array([slot for slot, _ in operations])
    request = np.array([size for _, size in operations])
    allocator.feed(slot, request)
    before = _state_bytes(allocator)
    for _ in range(200):
        allocator.feed(slot, request)
    assert _state_bytes(allocator) == before
    assert allocator.in_use_bytes == 0


def _alive(operations):
    alive = {}
    for slot, size in operations:
        alive.pop(slot, None)
        if size:
            alive[slot] = size
    return list(alive)


def _state_bytes(allocator):
    arrays = [value for value in vars(allocator).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays)


def test_where_the_compiled_functions_are_loaded_already_short_sequences_use_them():
    code = (
        "from analyzer.simulate.allocator import Engine, replay\n"
        "from analyzer.simulate.allocator.numba import compiled_allocator as compiled\n"
        "from analyzer.simulate.allocator.replay import choose\n"
        "assert not compiled.is_loaded() and choose(Engine.AUTO, 1) is Engine.REFERENCE\n"
        "compiled._kernel()\n"
        "assert compiled.is_loaded() and choose(Engine.AUTO, 1) is Engine.COMPILED\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_short_sequences_do_not_load_numba():
    code = (
        "import sys, numpy as np\n"
        "from analyzer.simulate.allocator import BfcOptions, Sequence, replay\n"
        "one = np.zeros(1, np.int64)\n"
        "s = Sequence(slot=one, request=one + 5, instant=one, requested_bytes=one + 5,"
        " address=one - 1, row=one)\n"
        "assert replay(s, BfcOptions.cpu()).in_use_bytes[0] == 256\n"
        "assert 'numba' not in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
