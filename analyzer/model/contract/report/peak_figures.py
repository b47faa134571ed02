"""The peaks, and the tensors and ops at the peak."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.choice import Category
from analyzer.model.contract.fields import (
    Instant,
    Name,
    Picoseconds,
    ReportRecord,
    Text,
    Total,
)
from analyzer.model.ranges import Range


class TwoSizes(ReportRecord, frozen=True, kw_only=True):
    """Bytes that live tensors requested, and bytes of the chunks that hold them."""

    requested_bytes: Total
    allocated_bytes: Total


class PeakFigures(TwoSizes, frozen=True, kw_only=True):
    """The peak of the steady step."""

    pool_bytes: Total | None = (
        None  # size of the allocator's pool; None if the replay failed
    )
    process_bytes: Total | None = None  # with the process' other memory on the card
    op: Name | None = ""  # of the requested peak; empty if unknown
    layer: Name | None = ""
    source: Name | None = ""
    step: Total | None = None
    time_s: float | None = None  # of the allocated peak after the first event
    time_ps: Picoseconds | None = None
    instant: Instant
    allocated_instant: Instant


class PeakEver(TwoSizes, frozen=True, kw_only=True):
    """The peak of the whole recording.

    ``since_start_bytes`` is TensorFlow's own peak since the process started, maybe before the trace.
    """

    pool_bytes: Total | None = None
    phase: Name = ""
    since_start_bytes: Total | None = None


class StepPeak(TwoSizes, frozen=True, kw_only=True):
    """The peak of one step; ``last_instant`` is below ``first_instant`` if it has no events."""

    index: Total
    number: Picoseconds | None = None
    duration_s: float | None = None
    first_instant: Instant = 0
    last_instant: Instant = -1


class CategoryBytes(ReportRecord, frozen=True, kw_only=True):
    """Requested bytes of each ``Category``."""

    parameter: Total = 0
    optimizer_state: Total = 0
    gradient: Total = 0
    activation: Total = 0
    kv_cache: Total = 0
    input: Total = 0
    temporary: Total = 0
    workspace: Total = 0
    constant: Total = 0
    unattributed: Total = 0

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> CategoryBytes:
        """Return the record of a mapping from category to bytes."""
        return cls(
            **{category.value: sizes.get(category.value, 0) for category in Category}
        )

    def by_category(self) -> dict[str, int]:
        """Return a mapping from category to bytes, in the order of ``Category``."""
        return {category.value: getattr(self, category.value) for category in Category}


class LayerBytes(CategoryBytes, frozen=True, kw_only=True):
    """Requested bytes of one layer at the peak, by category and in total."""

    layer: Name
    total_bytes: Total


class BufferRow(TwoSizes, frozen=True, kw_only=True):
    """A buffer, named by its variable, tensor, op or role. Texts are empty if unknown."""

    name: Name
    op: Name = ""
    op_type: Name = ""
    layer: Name = ""
    source: Name = ""
    category: Category
    role: Text = ""
    instruction: Name = ""
    dtype: Name = ""
    shape: Name = ""


class TensorAtPeak(BufferRow, frozen=True, kw_only=True):
    """A tensor that is alive at the requested peak, its lifetime and the reason."""

    born: Instant
    dies: Instant
    why_alive: Text = ""


class OpBytes(TwoSizes, frozen=True, kw_only=True):
    """The requests of one op, summed over the steady step."""

    name: Name
    type: Name = ""
    layer: Name = ""
    source: Name = ""
    category: Category  # of most of its bytes
    allocations: Total = 0
    temporary_bytes: Total  # scratch memory of the op
    alive_at_peak_bytes: Total  # the requested part that is alive at the peak


class UnmodelledType(ReportRecord, frozen=True, kw_only=True):
    """An op type without a memory rule, the number of such ops and the bytes of their results."""

    op_type: Name
    count: Total
    bytes: Total | None = None


class ReplayCheck(ReportRecord, frozen=True, kw_only=True):
    """How many events have the same address, size and counters in a replay of the trace."""

    events: Total
    equal: Total


class DamageRow(ReportRecord, frozen=True, kw_only=True):
    """A ``DamageReason`` why a trace is incomplete or altered, and how many events show it."""

    id: Name
    count: Total
    allocator: Name = ""
    message: Text


class TrustFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether a trace is complete: ``counter_peak_bytes`` is TensorFlow's own figure."""

    is_damaged: bool
    events: Total = 0  # compared with TensorFlow's bytes in use; 0 if it wrote none
    events_disagreeing: Total = 0  # events after which the sum differs
    largest_difference_bytes: Total = 0
    counter_peak_bytes: Total | None = None
    damages: tuple[DamageRow, ...] = ()
    replay: ReplayCheck | None = None
    says: tuple[Text, ...] = ()
    replay_says: Text = ""


class WorkspaceFigures(ReportRecord, frozen=True, kw_only=True):
    """Workspaces of cuDNN in a prediction for a card, in requested bytes."""

    bytes: Total  # expected at the peak of a steady step
    steady: Range  # peak of a steady step over the likely algorithms
    first_step: Range  # from the chosen algorithms only to the largest trial of any


class StatedRange(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The range of a prediction."""

    limit_high_bytes: Total | None  # every schedule succeeds from this limit on
    low_bytes: Total | None
    high_bytes: Total | None
    allocated_low_bytes: Total | None
    allocated_high_bytes: Total | None
    because: tuple[Text, ...]
    unsized: Total  # tensors of unknown size, which count as 0
    workspace_bytes: Total | None = None  # part of the upper bounds due to cuDNN
    workspace: WorkspaceFigures | None = None  # of a step that runs op by op on a card
    limit_low_bytes: Total | None = None  # lower bound of the least memory limit


def shift_bounds(
    base: StatedRange, below: int, above: int, *kinds: str
) -> dict[str, int | None]:
    """Return the bounds of these kinds, lowered and raised by some bytes, at least 0."""
    shifts = {
        f"{kind}{end}": by
        for kind in kinds
        for end, by in (("low", -below), ("high", above))
    }

    old = {
        f"{name}_bytes": (getattr(base, f"{name}_bytes"), by)
        for name, by in shifts.items()
    }

    return {
        key: None if size is None else max(size + by, 0)
        for key, (size, by) in old.items()
    }
