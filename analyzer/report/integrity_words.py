"""Whether a trace is whole, as the report has it and as every output shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.trust_figures import DamageRow, TrustFigures

if TYPE_CHECKING:
    from analyzer.explain.trace_integrity import Trust


def integrity_figures(trust: Trust | None, start_ps: int) -> TrustFigures | None:
    """Return the report's part on the trace's integrity; None for a prediction.

    Args:
        trust: What was found.
        start_ps: Time of the first event, from which times are counted.
    """
    if trust is None:
        return None

    def seconds(time_ps: int | None) -> float | None:
        return None if time_ps is None else (time_ps - start_ps) / 1e12

    books = trust.books
    return TrustFigures(
        is_damaged=trust.is_damaged,
        events=books.events,
        events_disagreeing=books.disagreeing,
        first_disagreement_time_s=seconds(books.first_time_ps),
        largest_difference_bytes=books.largest_difference_bytes,
        counter_peak_bytes=trust.counter_peak_bytes,
        counter_peak_ever_bytes=trust.counter_peak_ever_bytes,
        damages=tuple(
            DamageRow(
                id=damage.id,
                count=damage.count,
                allocator=damage.allocator,
                time_s=seconds(damage.time_ps),
                message=damage.message,
            )
            for damage in trust.integrity.damages
        ),
        replay=trust.replay,
        says=trust.says,
        replay_says=trust.replay_says,
    )


def is_damaged(report: ReportFile) -> bool:
    """Say whether a trace holds what no whole trace can; a prediction never does."""
    return report.integrity is not None and report.integrity.is_damaged


def damage_lines(report: ReportFile) -> tuple[str, ...]:
    """Return what has to be said before any figure of a damaged trace; empty for a whole one."""
    return () if report.integrity is None else report.integrity.says


def replay_line(report: ReportFile) -> str:
    """Return what the replay of a trace shows; empty where it was not replayed or is told already."""
    trust = report.integrity
    return "" if trust is None or trust.replay_says in trust.says else trust.replay_says


def how_measured(report: ReportFile) -> str:
    """Return what the figures rest on, in a word or two: a damaged trace is named as one."""
    basis = "" if report.verdict is None else str(report.verdict.basis)
    return f"{basis}, from a damaged trace," if is_damaged(report) else basis


def labelled(report: ReportFile, headline: str) -> str:
    """Return the headline, of a damaged trace with a word before it."""
    return f"Damaged trace. {headline}" if is_damaged(report) else headline
