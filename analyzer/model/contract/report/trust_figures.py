"""Whether a trace is whole."""

from __future__ import annotations

from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total, Word


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


class DecidingOp(ReportRecord, frozen=True, kw_only=True):
    """An op whose order decides the peak.

    Attributes:
        op, op_type: The op.
        bytes: Of its buffers that are alive at the highest draw's peak alone; negative: at the lowest's.
    """

    op: Name
    op_type: Word
    bytes: Signed


class ScheduleRange(ReportRecord, frozen=True, kw_only=True):
    """What the schedules drawn for one number of inter-op threads peak at: the middle and both ends."""

    inter_op_threads: Total
    draws: Total
    requested_bytes: Total
    requested_low_bytes: Total
    requested_high_bytes: Total
    allocated_bytes: Total
    allocated_low_bytes: Total
    allocated_high_bytes: Total


class StatedRange(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The range in which a prediction's peak is expected.

    Attributes:
        limit_low_bytes: No order runs under a memory limit below this; left out where it was not
            searched for.
        limit_high_bytes: Each runs under any from this on; None where it was not searched for.
        low_bytes, high_bytes: Of the requested peak; None where a prediction states none.
        allocated_low_bytes, allocated_high_bytes: Of the allocated peak.
        because: What the range comes from, a sentence each.
        deciding_ops: The ops whose order decides.
        schedules: The draws, the kind that is shown first.
        unsized: Tensors whose size is not known and that count as nothing; None where not counted.
        workspace_bytes: The part of the upper ends that cuDNN's workspaces are; left out where there is
            none.
        xla_workspace_bytes: The same in XLA's plans; left out where there are no plans of a card.
        stand_in: That the plan is another device's, in few words; left out where it is not.
    """

    limit_high_bytes: Total | None
    low_bytes: Total | None
    high_bytes: Total | None
    allocated_low_bytes: Total | None
    allocated_high_bytes: Total | None
    because: tuple[Text, ...]
    deciding_ops: tuple[DecidingOp, ...]
    schedules: tuple[ScheduleRange, ...]
    unsized: Total
    workspace_bytes: Total | None = None
    xla_workspace_bytes: Total | None = None
    stand_in: Text = ""
    limit_low_bytes: Total | None = None


def shift_bound(size_bytes: int | None, by_bytes: int) -> int | None:
    """Return one end of a range, moved by some bytes and not below 0; None where there is no range."""
    return None if size_bytes is None else max(size_bytes + by_bytes, 0)
