"""The BFC allocator: replay, minimum limit, state at an instant.

A table becomes a :class:`Sequence` (:func:`from_events`, :func:`from_allocations`,
:func:`from_recording`); :func:`replay` runs it under :class:`BfcOptions` or
:class:`AsyncOptions`; :func:`minimum_limit` searches the least memory it needs.
"""

from analyzer.simulate.bfc import BfcAllocator
from analyzer.simulate.explain import Growth, Remedy, Unserved, growth_history, remedies, unserved
from analyzer.simulate.limit import MinimumLimit, minimum_limit
from analyzer.simulate.options import AsyncOptions, BfcOptions, Options
from analyzer.simulate.pairing import from_events
from analyzer.simulate.replay import Engine, Failure, Replay, operations_done, replay
from analyzer.simulate.sequence import Caution, Sequence, from_allocations, from_recording
from analyzer.simulate.spread import LimitSpread, limit_spread
from analyzer.simulate.state import (
    chunks_at,
    curve,
    op_at,
    rectangles,
    region_table,
    regions_at,
    relocated,
)
from analyzer.simulate.verify import Match, compare, recorded_options

__all__ = [
    "AsyncOptions",
    "BfcAllocator",
    "BfcOptions",
    "Caution",
    "Engine",
    "Failure",
    "Growth",
    "LimitSpread",
    "Match",
    "MinimumLimit",
    "Options",
    "Remedy",
    "Replay",
    "Sequence",
    "Unserved",
    "chunks_at",
    "compare",
    "curve",
    "from_allocations",
    "from_events",
    "from_recording",
    "growth_history",
    "limit_spread",
    "minimum_limit",
    "op_at",
    "operations_done",
    "recorded_options",
    "rectangles",
    "region_table",
    "regions_at",
    "relocated",
    "remedies",
    "replay",
    "unserved",
]
