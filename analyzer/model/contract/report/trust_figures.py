"""Whether a trace is complete, and the range of a prediction."""

from __future__ import annotations

from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total, Word
from analyzer.model.ranges import Range


class ReplayCheck(ReportRecord, frozen=True, kw_only=True):
    """Comparison of a trace with its replay in the simulated allocator.

    Attributes:
        events: Number of replayed events.
        equal: Number of events with the same address, size, counters and fragmentation.
    """

    events: Total
    equal: Total


class DamageRow(ReportRecord, frozen=True, kw_only=True):
    """A reason why a trace is incomplete or altered.

    Attributes:
        id: A ``DamageReason``, such as ``lost-events``.
        count: Number of events, marks or variables that show it.
    """

    id: Word
    count: Total
    allocator: Name = ""
    time_s: float | None = None
    message: Text


class TrustFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether a trace is complete.

    Attributes:
        events: Compared with TensorFlow's bytes in use; 0 if it wrote none.
        events_disagreeing: Events after which the sum differs.
        counter_peak_bytes, counter_peak_ever_bytes: Peak of TensorFlow's counter: steady step,
            trace.
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
    """An op whose position in the execution order changes the peak.

    Attributes:
        bytes: Alive only at the peak of the highest schedule; negative: of the lowest.
    """

    op: Name
    op_type: Word
    bytes: Signed


class ScheduleRange(ReportRecord, frozen=True, kw_only=True):
    """Peaks of the execution orders that were simulated for one number of inter-op threads."""

    inter_op_threads: Total
    draws: Total
    requested_bytes: Total
    requested_low_bytes: Total
    requested_high_bytes: Total
    allocated_bytes: Total
    allocated_low_bytes: Total
    allocated_high_bytes: Total


class WorkspaceFigures(ReportRecord, frozen=True, kw_only=True):
    """Workspaces of cuDNN in a prediction for a card, in requested bytes.

    Attributes:
        bytes: Expected workspace that is alive at the peak of a steady step.
        steady: Peak of a steady step over the likely algorithms.
        first_step: From the chosen algorithms only to the largest trial of any candidate.
        trial_bytes: Largest request of a trial: workspace and guards.
        unmeasured: Convolutions without a published measurement of cuDNN's choice.
        unmeasured_bytes: Upper bound of the workspace of one of them.
    """

    bytes: Total
    steady: Range
    first_step: Range
    trial_bytes: Total
    unmeasured: Total = 0
    unmeasured_bytes: Total = 0


class StatedRange(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The range of a prediction.

    Attributes:
        limit_low_bytes: Lower bound of the least memory limit.
        limit_high_bytes: From this limit on every schedule succeeds.
        unsized: Tensors of unknown size, which count as 0.
        workspace_bytes: Part of the upper bounds due to cuDNN's workspaces.
        xla_workspace_bytes: The same in XLA's plans.
        workspace: Of a step that runs op by op on a card.
        stand_in: States that the plan is another device's.
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
    workspace: WorkspaceFigures | None = None
    stand_in: Text = ""
    limit_low_bytes: Total | None = None


def shift_bound(size_bytes: int | None, by_bytes: int) -> int | None:
    """Return a bound of a range plus some bytes, at least 0; None without a range."""
    return None if size_bytes is None else max(size_bytes + by_bytes, 0)
