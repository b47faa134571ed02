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

    Shares = NDArray[np.float64]

DETECTION_EVENTS = 50_000
"""Events that are replayed to find the settings of a trace."""

FRAGMENTATION_DIGITS = 6
"""Significant digits of the fragmentation in a trace."""

_FIELDS: Final = ("address", "chunk_bytes", "in_use_bytes", "peak_in_use_bytes", "fragmentation")
_BLOCK_EVENTS: Final = 1 << 18
"""Events compared at a time, so that a long trace needs no whole table for each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The events of a trace that a replay reproduces.

    Attributes:
        events: Number of replayed events.
        equal: Number of events that are equal in all fields.
        address, chunk_bytes, in_use_bytes, peak_in_use_bytes, fragmentation: Number of events that
            are equal in this field.
        first_difference: Row of the first event that differs; None if all are equal.
        replay: The replay.
    """

    events: int
    equal: int
    address: int
    chunk_bytes: int
    in_use_bytes: int
    peak_in_use_bytes: int
    fragmentation: int
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
        events: Table with the columns of ``EVENTS``.
        options: Settings of the run; the CPU's by default.
        allocator: Name of the allocator; None if there is only one.
        engine: How the allocator runs.
    """
    sequence = from_events(events, allocator=allocator)
    options = BfcOptions.cpu() if options is None else options
    result = replay(sequence, options, engine=engine, follow_addresses=True)
    shown = result.instant != NOWHERE
    # Of an event with two operations (an implied free and an allocation) the last is compared.
    shown[:-1] &= np.diff(result.instant) != 0
    places = np.flatnonzero(shown)
    counts = dict.fromkeys(_FIELDS, 0)
    equal, first = 0, None
    for start in range(0, places.size, _BLOCK_EVENTS):
        block = places[start : start + _BLOCK_EVENTS]
        fields = _compare_fields(result, events, block)
        is_equal = np.logical_and.reduce(list(fields.values()))
        equal += int(is_equal.sum())
        if first is None and not is_equal.all():
            first = int(result.instant[block[np.argmin(is_equal)]])
        for name, column in fields.items():
            counts[name] += int(column.sum())
    return Match(
        events=int(places.size), equal=equal, first_difference=first, replay=result, **counts
    )


def _compare_fields(
    result: Replay, events: pd.DataFrame, places: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Return for each field which operations of a replay equal their events."""
    rows = result.instant[places]

    def column(name: str) -> NDArray[Any]:
        return np.asarray(events[name].to_numpy()[rows])

    start = int(places[0])
    peak = np.maximum.accumulate(result.in_use_bytes[start : int(places[-1]) + 1])
    before = int(result.in_use_bytes[:start].max(initial=0))
    return {
        "address": result.address[places] == column("address"),
        "chunk_bytes": result.chunk_bytes[places] == column("allocated_bytes"),
        "in_use_bytes": result.in_use_bytes[places] == column("in_use_bytes"),
        "peak_in_use_bytes": np.maximum(peak[places - start], before)
        == column("peak_in_use_bytes"),
        "fragmentation": _is_same_share(
            result.fragmentation_after(places), column("fragmentation").astype(float)
        ),
    }


def recorded_options(
    events: pd.DataFrame, *, allocator: str | None = None, engine: Engine = Engine.AUTO
) -> BfcOptions:
    """Return the settings of the run that a trace shows.

    The limit is the sum of bytes in use and bytes available. A trace does not show whether the pool
    grows: the events of a GPU are replayed both ways, and the better match counts.

    Args:
        events: Table with the columns of ``EVENTS``.
        allocator: Name of the allocator; None if there is only one.
        engine: How the allocator runs.
    """
    rows = rows_of(events, allocator, "events")
    rows = rows[integers(events, "kind")[rows] != 0]
    chosen = events.iloc[rows[:DETECTION_EVENTS]]
    limits = chosen["in_use_bytes"] + chosen["available_bytes"]
    limit = int(limits.iloc[0])
    if not 0 < limit <= UNLIMITED_BYTES:
        limit = UNLIMITED_BYTES
    if "GPU" not in str(chosen["allocator"].iloc[0]):
        return BfcOptions.cpu(limit)
    candidates = [BfcOptions.gpu(limit, growth=growth) for growth in (False, True)]
    equal = []
    for options in candidates:
        match = compare(chosen, options, engine=engine)
        if match.is_exact:
            return options
        equal.append(match.address + match.fragmentation)
    return candidates[int(np.argmax(equal))]


def _is_same_share(ours: Shares, theirs: Shares) -> NDArray[np.bool_]:
    """Return which fragmentations are equal in the digits of a trace; nothing free counts as 0."""
    ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    unit = 10.0 ** (np.floor(np.log10(np.maximum(theirs, 1e-300))) - FRAGMENTATION_DIGITS + 1)
    return np.asarray(np.abs(ours - theirs) <= 0.51 * unit)
