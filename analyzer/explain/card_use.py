"""The memory of each card if a step ran on several; the report shows one of them."""

from __future__ import annotations

from analyzer.explain.analysis import Analysis
from analyzer.model.contract.report.subject import CardUse
from analyzer.model.recording.allocator_events import card_number
from analyzer.model.recording.timeline import find_peak, timeline, undivided_rows


def card_uses(analysis: Analysis) -> tuple[CardUse, ...]:
    """Return the use of each card, by its number; empty for a single card."""
    recording = analysis.recording
    table, events = recording.allocations, recording.events
    names = map(str, table["allocator"].unique())
    found = [(number, name) for name in names if (number := card_number(name)) is not None]
    if len(found) < 2:
        return ()
    cards = recording.phantom_run.cards if recording.phantom_run is not None else ()
    uses = []
    for number, name in sorted(found):
        line = timeline(undivided_rows(table[table["allocator"] == name]), len(events))
        peak = find_peak(line, analysis.first, analysis.last)
        own = events[events["allocator"] == name]
        last = own.iloc[-1] if len(own) else None
        available = 0 if last is None else int(last["available_bytes"])
        limit = None if not available or last is None else int(last["in_use_bytes"]) + available
        uses.append(
            CardUse(
                number=number,
                allocator=name,
                card=cards[number] if number < len(cards) else "",
                requested_bytes=peak.requested_bytes,
                allocated_bytes=peak.allocated_bytes,
                allocated_ever_bytes=int(line.allocated.max()),
                memory_limit_bytes=limit,
                is_shown=name == recording.allocator,
            )
        )
    return tuple(uses)
