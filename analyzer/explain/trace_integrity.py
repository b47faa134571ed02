"""What a trace's damages mean for its figures, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzer.explain.analysis import Analysis
from analyzer.model.contract.report.trust_figures import ReplayCheck
from analyzer.model.recording.records import CounterCheck, Damage, DamageReason, Integrity
from analyzer.model.units import format_bytes

_TOLD = 3
"""Kinds of damage that are told in words; all of them are in the document."""

_NO_FAILURE = Damage(reason=DamageReason.FAILURE_FITS, count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far a trace's figures can be trusted.

    Attributes:
        integrity: What was checked and what was found.
        books: The comparison for the allocator that the peak is about.
        counter_peak_bytes: Highest bytes in use that TensorFlow wrote where the peak is looked for;
            None where it wrote none.
        counter_peak_ever_bytes: The most bytes in use of the whole trace, as its counter has them.
        replay: The replay; None where the trace does not begin with its process.
        says: What the reader has to know first; empty for a whole trace.
        replay_says: What the replay shows, in a sentence; empty where there was none.
    """

    integrity: Integrity
    books: CounterCheck
    counter_peak_bytes: int | None
    counter_peak_ever_bytes: int | None
    replay: ReplayCheck | None
    says: tuple[str, ...]
    replay_says: str

    @property
    def is_damaged(self) -> bool:
        """Whether the trace holds what no whole trace can."""
        return bool(self.integrity.damages) or self.books.disagreeing > 0


def trust_of(analysis: Analysis) -> Trust | None:
    """Return how far the figures of a trace can be trusted; None for a prediction."""
    integrity = analysis.recording.integrity
    if integrity is None:
        return None
    if analysis.pool.failure_fits:
        integrity = replace(integrity, damages=(*integrity.damages, _NO_FAILURE))
    books = integrity.counter_check(analysis.recording.allocator)
    replay = analysis.pool.replay_check
    counter, ever = _counter_peaks(analysis) if books.events else (None, None)
    return Trust(
        integrity=integrity,
        books=books,
        counter_peak_bytes=counter,
        counter_peak_ever_bytes=ever,
        replay=replay,
        says=tuple(_says(analysis, integrity, books, counter, replay)),
        replay_says="" if replay is None else _replay_says(replay),
    )


def _counter_peaks(analysis: Analysis) -> tuple[int | None, int]:
    """Return the highest bytes in use that TensorFlow wrote, in the steady step and ever."""
    events = analysis.recording.events
    own = np.asarray((events["allocator"] == analysis.recording.allocator) & (events["kind"] != 0))
    in_use = np.where(own, events["in_use_bytes"].to_numpy(), -1)
    inside = in_use[max(analysis.first, 0) : analysis.last + 1].max(initial=-1)
    return int(inside) if inside >= 0 else None, int(in_use.max())


def _says(
    analysis: Analysis,
    integrity: Integrity,
    books: CounterCheck,
    counter: int | None,
    replay: ReplayCheck | None,
) -> Iterator[str]:
    if books.disagreeing:
        yield _books_say(analysis, books, counter)
    others = _others(analysis, integrity, books)
    for damage in others[:_TOLD]:
        yield f"Damaged trace: {_of_other(analysis, damage)}{damage.message}"
    if len(others) > _TOLD:
        more = len(others) - _TOLD
        yield f"{more} more {'kind' if more == 1 else 'kinds'} of damage: see integrity in the JSON."
    if replay is not None and replay.equal < replay.events and not books.disagreeing:
        yield _replay_says(replay)


def _others(analysis: Analysis, integrity: Integrity, books: CounterCheck) -> list[Damage]:
    """Return the damages that the comparison of the sums does not tell of, the peak's own first."""
    own = analysis.recording.allocator
    found = [
        damage
        for damage in integrity.damages
        if not (
            books.disagreeing
            and damage.reason is DamageReason.LOST_EVENTS
            and damage.allocator == own
        )
    ]
    return sorted(found, key=lambda damage: damage.allocator not in ("", own))


def _of_other(analysis: Analysis, damage: Damage) -> str:
    """Name the allocator of a damage where it is another than the one shown."""
    name = damage.allocator
    return f"allocator {name}: " if name and name != analysis.recording.allocator else ""


def _books_say(analysis: Analysis, books: CounterCheck, counter: int | None) -> str:
    ours = analysis.peak.allocated_bytes
    said = (
        f"Damaged trace: after {books.disagreeing:,} of {books.events:,} memory events their sum is not "
        f"the bytes in use that TensorFlow wrote, by up to "
        f"{format_bytes(books.largest_difference_bytes)}: events are lost or altered."
    )
    if counter is None:
        return said
    if counter == ours:
        return f"{said} TensorFlow's own allocated peak is the same, {format_bytes(ours)}."
    return (
        f"{said} TensorFlow's own allocated peak is {format_bytes(counter)}, that of the events "
        f"{format_bytes(ours)}; TensorFlow's is the more likely one."
    )


def _replay_says(replay: ReplayCheck) -> str:
    if replay.equal == replay.events:
        return (
            f"Replay of the trace's {replay.events:,} events: every address and size is the one that "
            "TensorFlow wrote."
        )
    return (
        f"Replay of the trace's {replay.events:,} events: {replay.events - replay.equal:,} differ from "
        "what TensorFlow wrote. Either the trace is damaged or the allocator was set up in a way that "
        "is not simulated: the pool is not told, and what is replayed under other settings is a guess."
    )
