"""Gradient tapes that hold what they recorded after their step."""

from __future__ import annotations

from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.running.evidence_rows import evidence_row
from analyzer.explain.running.staying_bytes import left_over
from analyzer.model.contract.watch_note import TapesNote, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.units import format_bytes

_SEVERAL: Final = 3
"""Tapes of one line alive at once from which on they are taken to be kept."""

_LITTLE_BYTES: Final = 64 << 10
"""What a tape holds that is no matter, where it is the only one."""


def find_tapes(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report tapes that are kept, and persistent ones that no one has let go of."""
    size_bytes = _held_by_tapes(analysis, watch)
    found = []
    for one in sorted(watch.tapes, key=lambda tape: -tape.alive):
        if one.alive >= _SEVERAL:
            found.append(_kept(one, size_bytes))
        elif (one.persistent or one.unused) and size_bytes >= _LITTLE_BYTES:
            found.append(_outlives(one, size_bytes))
    return found


def _held_by_tapes(analysis: Analysis, watch: WatchNote) -> int:
    """Return the bytes that outlive their step and that no tensor of Python's holds."""
    if not watch.tapes:
        return 0
    rows = left_over(analysis)
    named = {address for held in watch.held for address in held.addresses}
    rows = rows[~rows["address"].astype("int64").isin(named)]
    kept = rows["category"].isin(("activation", "temporary", "input", "unattributed"))
    return int(rows.loc[kept, "allocated_bytes"].sum())


def _kept(one: TapesNote, size_bytes: int) -> Finding:
    by = f" by {one.holder}" if one.holder else ""
    return Finding(
        id="tapes-kept",
        severity=Severity.HIGH,
        title=f"{one.alive} gradient tapes are kept{by}, made at {one.where}",
        detail="Each holds every intermediate result that it recorded. "
        f"{format_bytes(size_bytes)} made in the traced steps are held by no tensor of Python's. "
        "Let go of a tape when its gradients are taken: del tape, and keep no reference to it.",
        saves_bytes=size_bytes,
        saves_kind="allocated",
        evidence=(evidence_row("made", where=one.where, count=one.alive, size=size_bytes),),
    )


def _outlives(one: TapesNote, size_bytes: int) -> Finding:
    how = "A persistent tape" if one.persistent else "A tape that no gradient was asked of"
    hint = (
        "Ask it for all gradients in one call and leave out persistent=True, or `del tape` "
        "right after the last call."
        if one.persistent
        else "Leave the tape out where no gradient is taken."
    )
    return Finding(
        id="tape-outlives-use",
        severity=Severity.HIGH,
        title=f"{how} still holds {format_bytes(size_bytes)} when its step has ended ({one.where})",
        detail="It holds every intermediate result that it recorded until the name is bound "
        f"anew, through the update and into the next step. {hint}",
        saves_bytes=size_bytes,
        saves_kind="allocated",
        evidence=(evidence_row("made", where=one.where, count=one.alive, size=size_bytes),),
    )
