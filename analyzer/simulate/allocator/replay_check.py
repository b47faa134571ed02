"""A trace against the simulator: does a replay do, event by event, what TensorFlow did?

Meant for traces that begin with the process: then every address, chunk size, total, peak and
fragmentation must be equal. For a trace that begins later it tells how far off a replay is.
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
"""Events that are replayed to tell one set-up from another."""

FRAGMENTATION_DIGITS = 6
"""Significant digits with which TensorFlow writes the fragmentation."""

_RESPECTS: Final = ("address", "chunk_bytes", "in_use_bytes", "peak_in_use_bytes", "fragmentation")
_BLOCK_EVENTS: Final = 1 << 18  # compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How many events of a trace the replay reproduces.

    Attributes:
        events: Events of the trace that were replayed.
        equal: How many of them are equal in every respect.
        address, chunk_bytes, in_use_bytes, peak_in_use_bytes, fragmentation: How many of them are
            equal in each respect.
        first_difference: First event that differs in any respect, as a row of the table; None
            where all are equal.
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
        """Whether every event is equal in every respect, and none is left out or failed."""
        return self.first_difference is None and self.replay.failure is None


def compare(
    events: pd.DataFrame,
    options: BfcOptions | None = None,
    *,
    allocator: str | None = None,
    engine: Engine = Engine.AUTO,
) -> Match:
    """Replay the events of a trace and compare each with what TensorFlow wrote.

    Regions are put where the trace shows them; everything else follows from the requests alone.

    Args:
        events: Table with the columns of ``EVENTS``.
        options: The set-up under which the trace was made; the CPU's by default.
        allocator: Which allocator; may be left out where there is only one.
        engine: Which implementation replays.
    """
    sequence = from_events(events, allocator=allocator)
    options = BfcOptions.cpu() if options is None else options
    result = replay(sequence, options, engine=engine, follow_addresses=True)
    shown = result.instant != NOWHERE
    # Where one event is two operations (a free that the trace lacks), the last one is compared.
    shown[:-1] &= np.diff(result.instant) != 0
    places = np.flatnonzero(shown)
    counts = dict.fromkeys(_RESPECTS, 0)
    equal, first = 0, None
    # In blocks, so that a long trace takes no table of its own for each respect.
    for start in range(0, places.size, _BLOCK_EVENTS):
        block = places[start : start + _BLOCK_EVENTS]
        alike = _alike(result, events, block)
        right = np.logical_and.reduce(list(alike.values()))
        equal += int(right.sum())
        if first is None and not right.all():
            first = int(result.instant[block[np.argmin(right)]])
        for name, column in alike.items():
            counts[name] += int(column.sum())
    return Match(
        events=int(places.size), equal=equal, first_difference=first, replay=result, **counts
    )


def _alike(
    result: Replay, events: pd.DataFrame, places: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Return for each respect whether operations of a replay are as their events say.

    Args:
        result: The replay.
        events: The events.
        places: Which operations.
    """
    rows = result.instant[places]

    def told(name: str) -> NDArray[Any]:
        return np.asarray(events[name].to_numpy()[rows])

    start = int(places[0])
    peak = np.maximum.accumulate(result.in_use_bytes[start : int(places[-1]) + 1])
    before = int(result.in_use_bytes[:start].max(initial=0))
    return {
        "address": result.address[places] == told("address"),
        "chunk_bytes": result.chunk_bytes[places] == told("allocated_bytes"),
        "in_use_bytes": result.in_use_bytes[places] == told("in_use_bytes"),
        "peak_in_use_bytes": np.maximum(peak[places - start], before) == told("peak_in_use_bytes"),
        "fragmentation": _same_share(
            result.fragmentation_after(places), told("fragmentation").astype(float)
        ),
    }


def recorded_options(
    events: pd.DataFrame, *, allocator: str | None = None, engine: Engine = Engine.AUTO
) -> BfcOptions:
    """Return the set-up under which a trace was made, as far as the trace tells.

    The limit is what TensorFlow wrote (bytes in use and bytes available). Whether the pool grew
    is not written anywhere: a GPU's trace is replayed both ways and the better match taken.

    Args:
        events: Table with the columns of ``EVENTS``.
        allocator: Which allocator; may be left out where there is only one.
        engine: Which implementation replays.
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


def _same_share(ours: Shares, theirs: Shares) -> NDArray[np.bool_]:
    """Tell where two fragmentations are equal as far as they are written; nothing free is 0."""
    ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    unit = 10.0 ** (np.floor(np.log10(np.maximum(theirs, 1e-300))) - FRAGMENTATION_DIGITS + 1)
    return np.asarray(np.abs(ours - theirs) <= 0.51 * unit)
