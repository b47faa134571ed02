"""TensorFlow's BFC allocator: replay a sequence, find its minimum limit, explain the pool.

Input: a ``Sequence`` of requests and frees, made from a table of allocations
(``from_allocations``, ``from_recording``), and ``BfcOptions``. Output: a
``Replay`` with the pool after each operation, or a ``MinimumLimit``. A replay is exact for traces
that begin with the process. ``cuda_malloc_async`` has no chunks and regions.
"""

from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions
from analyzer.simulate.allocator.minimum_limit import minimum_limit, prepare_searches
from analyzer.simulate.allocator.pool_explanation import Remedy, growth_history, remedies
from analyzer.simulate.allocator.replay import (
    FailedRequest,
    Match,
    Replay,
    compare,
    recorded_options,
    replay,
)
from analyzer.simulate.allocator.sequence import Sequence, from_allocations, from_recording

__all__ = [
    "BfcAllocator",
    "BfcOptions",
    "FailedRequest",
    "Match",
    "Remedy",
    "Replay",
    "Sequence",
    "compare",
    "from_allocations",
    "from_recording",
    "growth_history",
    "minimum_limit",
    "prepare_searches",
    "recorded_options",
    "remedies",
    "replay",
]
