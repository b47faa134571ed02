"""The range that a prediction states, and what it comes from."""

from __future__ import annotations

from analyzer.model.contract.fields import Name, Text, Word
from analyzer.model.contract.report.figures import ReportRecord, Signed, Total


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


def raised(size_bytes: int | None, by_bytes: int) -> int | None:
    """Return one end of a range, moved by some bytes and not below 0; None where there is no range."""
    return None if size_bytes is None else max(size_bytes + by_bytes, 0)
