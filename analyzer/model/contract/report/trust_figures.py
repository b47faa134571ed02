"""Whether a trace is whole."""

from __future__ import annotations

from analyzer.model.contract.fields import Name, Text, Word
from analyzer.model.contract.report.figures import ReportRecord, Total


class ReplayCheck(ReportRecord, frozen=True, kw_only=True):
    """How many of a trace's events a replay through the allocator's simulation reproduces.

    Attributes:
        events: Events that were replayed.
        equal: How many of them have the address, the size, the sums and the fragmentation that
            TensorFlow wrote.
    """

    events: Total
    equal: Total


class DamageRow(ReportRecord, frozen=True, kw_only=True):
    """One kind of thing in a trace that an undamaged trace cannot hold.

    Attributes:
        id: Stable name, such as ``double-free``.
        count: How many events, marks or notes are so.
        allocator: The allocator whose events they are; empty where they are of none.
        time_s: Seconds from the first event to the first of them; None where it has no time.
        message: One sentence with the count in it.
    """

    id: Word
    count: Total
    allocator: Name = ""
    time_s: float | None = None
    message: Text


class TrustFigures(ReportRecord, frozen=True, kw_only=True):
    """What was checked of a trace and what was found.

    Attributes:
        is_damaged: The trace holds what no whole trace can.
        events: Events whose sum was compared with TensorFlow's bytes in use; 0 where it wrote none.
        events_disagreeing: Events after which the two differ.
        first_disagreement_time_s: Seconds from the first event to the first of them.
        largest_difference_bytes: The largest difference, in allocated bytes.
        counter_peak_bytes, counter_peak_ever_bytes: Highest bytes in use that TensorFlow wrote, in the
            steady step and ever.
        damages: Every kind of damage.
        replay: The replay; None where the trace does not begin with its process.
        says: What has to be known before any figure; empty for a whole trace.
        replay_says: What the replay shows, in a sentence.
    """

    is_damaged: bool
    events: Total = 0
    events_disagreeing: Total = 0
    first_disagreement_time_s: float | None = None
    largest_difference_bytes: Total = 0
    counter_peak_bytes: Total | None = None
    counter_peak_ever_bytes: Total | None = None
    damages: tuple[DamageRow, ...] = ()
    replay: ReplayCheck | None = None
    says: tuple[Text, ...] = ()
    replay_says: Text = ""
