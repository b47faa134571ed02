"""Compare a replay with a trace, event by event.

If the trace begins with the process, each address, chunk size, total, peak and fragmentation must be
equal. For a later start the comparison shows how many events differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from analyzer.simulate.allocator.bfc.bfc_options import UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.events_to_sequence import from_events
from analyzer.simulate.allocator.replay import Engine, Replay, replay
from analyzer.simulate.allocator.sequence import NOWHERE, integers, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

DETECTION_EVENTS: Final = 50_000
"""Events that are replayed to find the settings of a trace."""

FRAGMENTATION_DIGITS: Final = 6
"""Significant digits of the fragmentation in a trace."""

_BLOCK_EVENTS: Final = 1 << 18
"""Events compared at a time, so that a long trace needs no whole table for each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The events of a trace that a replay reproduces.

    Attributes:
        events: Number of replayed events.
        equal: Number of events with equal address, chunk, bytes in use, peak and fragmentation.
        first_difference: Row of the first event that differs; None if all are equal.
        replay: The replay.
    """

    events: int
    equal: int
    first_difference: int | None
    replay: Replay

    @property
    def is_exact(self) -> bool:
        """Whether all events are equal and no request failed."""
        return self.first_difference is None and self.replay.failure is None


def compare(
    events: pd.DataFrame,
    options: BfcOptions | None = None,
    *,
    allocator: str | None = None,
    engine: Engine = Engine.AUTO,
) -> Match:
    """Replay the events of a trace and compare each with the trace.

    Regions get the addresses of the trace; all else follows from the requests alone.

    Args:
        options: Settings of the run; the CPU's by default.
    """
    sequence = from_events(events, allocator=allocator)
    options = BfcOptions.cpu() if options is None else options
    result = replay(sequence, options, engine=engine, follow_addresses=True)
    shown = result.instant != NOWHERE
    # Of an event with two operations (an implied free and an allocation) the last is compared.
    shown[:-1] &= np.diff(result.instant) != 0
    places = np.flatnonzero(shown)
    equal, first = 0, None
    for start in range(0, places.size, _BLOCK_EVENTS):
        block = places[start : start + _BLOCK_EVENTS]
        is_equal = _compare_block(result, events, block)
        equal += int(is_equal.sum())
        if first is None and not is_equal.all():
            first = int(result.instant[block[np.argmin(is_equal)]])
    return Match(events=int(places.size), equal=equal, first_difference=first, replay=result)


def _compare_block(
    result: Replay, events: pd.DataFrame, places: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which operations of a replay equal their events."""
    rows = result.instant[places]

    def column(name: str) -> NDArray[Any]:
        return np.asarray(events[name].to_numpy()[rows])

    start = int(places[0])
    peak = np.maximum.accumulate(result.in_use_bytes[start : int(places[-1]) + 1])
    before = int(result.in_use_bytes[:start].max(initial=0))
    # Nothing free counts as 0; the trace has a few digits only.
    ours = np.nan_to_num(result.fragmentation_after(places))
    theirs = np.nan_to_num(column("fragmentation").astype(float))
    unit = 10.0 ** (np.floor(np.log10(np.maximum(theirs, 1e-300))) - FRAGMENTATION_DIGITS + 1)
    is_equal = np.asarray(np.abs(ours - theirs) <= 0.51 * unit)
    is_equal &= result.address[places] == column("address")
    is_equal &= result.chunk_bytes[places] == column("allocated_bytes")
    is_equal &= result.in_use_bytes[places] == column("in_use_bytes")
    is_equal &= np.maximum(peak[places - start], before) == column("peak_in_use_bytes")
    return is_equal


def recorded_options(
    events: pd.DataFrame, *, allocator: str | None = None, engine: Engine = Engine.AUTO
) -> BfcOptions:
    """Return the settings of the run that a trace shows.

    The limit is the sum of bytes in use and bytes available. A trace does not show whether the pool
    grows: the events of a GPU are replayed both ways, and the better match counts.
    """
    rows = rows_of(events, allocator, "events")
    rows = rows[integers(events, "kind")[rows] != 0]
    chosen = events.iloc[rows[:DETECTION_EVENTS]]
    limit = int((chosen["in_use_bytes"] + chosen["available_bytes"]).iloc[0])
    if not 0 < limit <= UNLIMITED_BYTES:
        limit = UNLIMITED_BYTES
    if "GPU" not in str(chosen["allocator"].iloc[0]):
        return BfcOptions.cpu(limit)
    whole, growing = (BfcOptions.gpu(limit, growth=growth) for growth in (False, True))
    equal = compare(chosen, whole, engine=engine).equal
    if equal == len(chosen):
        return whole
    return growing if compare(chosen, growing, engine=engine).equal > equal else whole
