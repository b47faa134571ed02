"""Whether a trace is whole, as the document has it and as every output shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from analyzer.findings.integrity import Trust


def integrity_values(trust: Trust | None, start_ps: int) -> dict[str, Any] | None:
    """Return the document's part on the trace's integrity; None for a prediction.

    Args:
        trust: What was found.
        start_ps: Time of the first event, from which times are counted.
    """
    if trust is None:
        return None

    def seconds(time_ps: int | None) -> float | None:
        return None if time_ps is None else (time_ps - start_ps) / 1e12

    books = trust.books
    return {
        "is_damaged": trust.is_damaged,
        "events": books.events,
        "events_disagreeing": books.disagreeing,
        "first_disagreement_time_s": seconds(books.first_time_ps),
        "largest_difference_bytes": books.largest_difference_bytes,
        "counter_peak_bytes": trust.counter_peak_bytes,
        "counter_peak_ever_bytes": trust.counter_peak_ever_bytes,
        "damages": [
            {
                "id": damage.id,
                "count": damage.count,
                "allocator": damage.allocator,
                "time_s": seconds(damage.time_ps),
                "message": damage.message,
            }
            for damage in trust.integrity.damages
        ],
        "replay": None if trust.replay is None else asdict(trust.replay),
        "says": list(trust.says),
        "replay_says": trust.replay_says,
    }


def damage_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what has to be said before any figure of a damaged trace; empty for a whole one."""
    return list((document.get("integrity") or {}).get("says") or ())


def replay_line(document: Mapping[str, Any]) -> str:
    """Return what the replay of a trace shows; empty where it was not replayed or is told already."""
    integrity = document.get("integrity") or {}
    line = str(integrity.get("replay_says") or "")
    return "" if line in (integrity.get("says") or ()) else line


def how_measured(document: Mapping[str, Any]) -> str:
    """Return what the figures rest on, in a word or two: a damaged trace is named as one."""
    basis = str((document.get("verdict") or {}).get("basis", ""))
    damaged = (document.get("integrity") or {}).get("is_damaged")
    return f"{basis}, from a damaged trace," if damaged else basis


def labelled(document: Mapping[str, Any], headline: str) -> str:
    """Return the headline, of a damaged trace with a word before it."""
    damaged = (document.get("integrity") or {}).get("is_damaged")
    return f"Damaged trace. {headline}" if damaged else headline
