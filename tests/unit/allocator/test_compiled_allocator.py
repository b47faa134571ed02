"""Plain and compiled code equal the oracle: every address, total, region and failure."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from oracle import OracleAllocator
from test_bfc import setups, steps
from workloads import operations_done, random_operations, run_by, sequence_of

from analyzer.model.errors import AccountingError
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import OUT_COLUMNS, BfcOptions
from analyzer.simulate.allocator.replay import replay

GIB = 1 << 30
ENGINES = (False, True)


def oracle_columns(sequence, options):
    """Return the oracle after a sequence, and its columns after each operation."""
    oracle, held, columns = OracleAllocator(options), {}, []
    for op, (slot, request) in enumerate(
        zip(sequence.slot.tolist(), sequence.request.tolist(), strict=True)
    ):
        if request:
            address = oracle.allocate(request, owner=op)
            if address is None:
                break
            held[slot] = address
            size = oracle.chunk_at(address).size_bytes
        else:
            address = held.pop(slot)
            size = oracle.chunk_at(address).size_bytes
            oracle.free(address)
        totals = (oracle.in_use_bytes, oracle.pool_bytes, oracle.largest_free_bytes)
        columns.append((address, size, *totals))
    return oracle, np.array(columns, np.int64).reshape(-1, OUT_COLUMNS)


def check_all(sequence, options):
    """Return the compiled replay; it, the plain one and the oracle are equal."""
    oracle, columns = oracle_columns(sequence, options)
    names = ("address", "chunk_bytes", "in_use_bytes", "pool_bytes", "largest_free_bytes")
    replays = []
    for is_compiled in ENGINES:
        with run_by(is_compiled=is_compiled):
            result = replay(sequence, options)
        replays.append(result)
        for name, expected in zip(names, columns.T, strict=True):
            np.testing.assert_array_equal(getattr(result, name), expected, err_msg=name)
        assert list(result.extensions) == oracle.extensions
        assert operations_done(sequence, options, is_compiled=is_compiled) == len(columns)
    assert replays[0].failure == replays[1].failure
    return replays[1]


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
    check_all(sequence_of(operations), options)


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
    check_all(sequence_of(random_operations(20_000, live, seed=live)), options)


def test_a_process_that_forgets_to_free_fails_alike():
    operations = [(i, 3_000_000) for i in range(1000)]
    result = check_all(sequence_of(operations), BfcOptions.gpu(GIB, growth=True))
    assert result.failure is not None


def test_arrays_can_be_fed_piecewise_and_slots_used_again():
    operations = random_operations(30_000, 500, seed=3)
    slot = np.array([slot for slot, _ in operations])
    request = np.array([size for _, size in operations])
    with run_by(is_compiled=True):
        whole = replay(sequence_of(operations), BfcOptions.cpu())
    allocator = BfcAllocator(BfcOptions.cpu(), 1000, is_compiled=True)
    pieces = []
    for first in range(0, len(slot), 700):
        piece = slice(first, first + 700)
        out = np.empty((slot[piece].size, OUT_COLUMNS), np.int64)
        assert allocator.feed(slot[piece], request[piece], record=out) == slot[piece].size
        pieces.append(out)
    np.testing.assert_array_equal(np.concatenate(pieces)[:, 0], whole.address)
    assert allocator.extensions == list(whole.extensions)
    assert allocator.in_use_bytes == whole.in_use_bytes[-1]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("slot,request_", [([0, 0], [5, 5]), ([0], [0]), ([7], [1])])  # noqa: PT006
def test_slots_that_make_no_sense_are_refused(slot, request_, is_compiled):
    allocator = BfcAllocator(BfcOptions.cpu(), 2, is_compiled=is_compiled)
    with pytest.raises(AccountingError):
        allocator.feed(np.array(slot), np.array(request_))


def test_state_is_as_large_as_what_lives():
    allocator = BfcAllocator(BfcOptions.cpu(), 200, is_compiled=True)
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
    return sum(column.nbytes for column in allocator._pool)


def test_short_sequences_use_compiled_code_that_is_loaded():
    code = (
        "from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator\n"
        "from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions\n"
        "from analyzer.simulate.allocator.bfc import bfc_operations, compiled_run\n"
        "compiled_run.prepare(1)\n"
        "assert BfcAllocator(BfcOptions.cpu(), 1)._run is bfc_operations.run\n"
        "compiled = compiled_run.load_run()\n"
        "assert BfcAllocator(BfcOptions.cpu(), 1)._run is compiled\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_short_sequences_do_not_load_numba():
    code = (
        "import sys, numpy as np\n"
        "from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions\n"
        "from analyzer.simulate.allocator.replay import Sequence, replay\n"
        "one = np.zeros(1, np.int64)\n"
        "s = Sequence(slot=one, request=one + 5, instant=one, requested_bytes=one + 5,"
        " address=one - 1, row=one)\n"
        "assert replay(s, BfcOptions.cpu()).in_use_bytes[0] == 256\n"
        "assert 'numba' not in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
