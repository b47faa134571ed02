"""The analysis of a recording: its peak, the buffers alive at it, the waste, and savings.

The steady step is a late one: the first one creates optimizer slots and traces functions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.cards.catalogue import Gpu, look_up_gpu
from analyzer.explain.buffer_words import NO_USE
from analyzer.model.contract.report_file import (
    CardUse,
    OtherSettings,
    Outcome,
    PoolChange,
    ReplayCheck,
    VerdictFigures,
    limit_of,
)
from analyzer.model.contract.run_note import SimulatedCardNote
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import (
    TRIAL_ROLES,
    Finding,
    Kind,
    Peak,
    Recording,
    Severity,
    Step,
    Timeline,
    alive_at,
    card_number,
    find_limit,
    find_peak,
    main_allocator_rows,
    running_sum,
    sum_by_category,
    timeline,
    undivided_rows,
)
from analyzer.model.units import format_bytes

Instants = npt.NDArray[np.int64]

# Categories that are alive in all steps by design.
PERSISTENT = frozenset({"parameter", "optimizer_state", "constant", "input"})

_LEAST_RATIO = 0.05

HIGH = 0.2

# Saving, as a share of the limit, from which on a finding has that severity; less is not reported.
MEDIUM = 0.05
LOW = 0.01


NOT_JUDGED = VerdictFigures(outcome=Outcome.NO_LIMIT, headline="")


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A recording with its peak; findings are made from it."""

    recording: Recording
    rows: pd.DataFrame  # the allocations of the recording's allocator
    line: Timeline  # live bytes at every instant
    step: Step | None  # the steady step; None if the recording has no steps
    first: int  # the instants of the steady step
    last: int
    peak: Peak  # the peaks of the steady step and of the whole recording
    peak_ever: Peak
    # buffers alive at the requested peak, with their category at that instant and their uses
    alive: pd.DataFrame
    # The pool by a replay through the simulated allocator; None without a replay
    replay_check: ReplayCheck | None = None
    # every limit of the pool from this one on succeeds in a replay
    safe_limit_bytes: int | None = None
    fits_limit: bool = True  # whether a prediction runs under its own limit
    pool_bytes: int | None = None  # in the steady step
    pool_ever_bytes: int | None = None
    pool_timeline: tuple[PoolChange, ...] = ()
    what_if: OtherSettings | None = None
    # whether the step fits a card or a limit; ``judge`` decides
    verdict: VerdictFigures = NOT_JUDGED
    findings: tuple[Finding, ...] = ()

    @property
    def categories(self) -> dict[str, int]:
        """Requested bytes of each category at the requested peak."""
        return sum_by_category(self.alive)

    @property
    def limit_bytes(self) -> int:
        """The memory that savings are compared with: the limit, else the process or the need."""
        recording = self.recording
        return limit_of(
            self.verdict,
            recording.device,
            recording.watch,
            self.peak_ever.allocated_bytes,
        )

    def rate(self, saves_bytes: int) -> Severity:
        """Return the severity of a saving by its share of the limit."""
        share = saves_bytes / self.limit_bytes
        if share < LOW:
            return Severity.INFO
        fits = self.verdict.outcome is Outcome.FITS

        if share < MEDIUM or fits:
            return Severity.LOW

        return Severity.MEDIUM if share < HIGH else Severity.HIGH

    @property
    def least_bytes(self) -> int:
        """The bytes from which on tensors of one kind are reported: 1 MiB and 5 % of the peak."""
        return max(1 << 20, int(_LEAST_RATIO * self.peak.requested_bytes))

    def of_size(self, size_bytes: int) -> pd.DataFrame:
        """Return the buffers of a requested size."""
        return self.rows[self.rows["requested_bytes"] == size_bytes]

    def at_peak(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return those of some buffers that are alive at the peak."""
        return rows[rows.index.isin(self.alive.index)]

    def in_step(self, rows: pd.DataFrame) -> pd.Series:
        """Say of each of some buffers if the steady step allocates it."""
        return rows["born"].between(self.first, self.last)

    def share_words(self, rows: pd.DataFrame) -> str:
        """Return the bytes and the number of buffers, and their share of the peak, as text."""
        total = sum_requested(rows)
        share = total / self.peak.requested_bytes
        count = f" in {len(rows):,} tensors" if len(rows) > 1 else ""
        return f"{format_bytes(total)}{count} ({share:.0%} of the peak)"

    @property
    def full_steps(self) -> list[Step]:
        """The steps with events."""
        return [step for step in self.recording.steps if step.last >= step.first]

    def find_step_peaks(self) -> dict[int, Peak]:
        """Return the peak of each step with events, by the step's index."""
        return {
            step.index: find_peak(self.line, step.first, step.last)
            for step in self.full_steps
        }


def sum_requested(rows: pd.DataFrame) -> int:
    """Return the requested bytes of buffers."""
    return int(rows["requested_bytes"].sum())


def of_category(rows: pd.DataFrame, category: str) -> pd.DataFrame:
    """Return the buffers of a category."""
    return rows[rows["category"] == category]


def analyse(recording: Recording) -> Analysis:
    """Return the peak, the buffers alive at it, and the waste; callers add uses and findings."""
    rows = main_allocator_rows(recording)
    count = len(recording.events)
    line = timeline(rows, count)
    step = _steady_step(recording, line)

    # A step without events peaks at the bytes alive before it.
    first, last = (
        (min(step.first, step.last), step.last) if step is not None else (0, count - 1)
    )
    peak = find_peak(line, first, last)
    alive = alive_at(rows, peak.requested_instant).assign(**NO_USE)
    total = sum(sum_by_category(alive).values())

    if total != peak.requested_bytes:
        raise AccountingError(
            f"the categories at the peak add up to {total} B, the peak is "
            f"{peak.requested_bytes} B"
        )

    return Analysis(
        recording=recording,
        rows=rows,
        line=line,
        step=step,
        first=first,
        last=last,
        peak=peak,
        peak_ever=find_peak(line, 0, count - 1),
        alive=alive,
    )


def _steady_step(recording: Recording, line: Timeline) -> Step | None:
    """Return the last step with the highest requested peak, without the first step.

    Steps that try algorithms, such as one with a smaller last batch, count only if all others do. A
    program's first traced step follows others. None without steps, or if the peak lies between them.
    """
    steps = [step for step in recording.steps if step.last >= step.first]
    steady = steps or list(recording.steps)
    table = recording.allocations
    trying = set(table.loc[table["role"].isin(TRIAL_ROLES), "step"].dropna())
    steady = [step for step in steady if step.index not in trying] or steady

    if recording.watch is None or recording.error:
        if _is_peak_between(steps, line):
            return None
        if not steps or recording.error:
            return steady[-1] if steady else None

        steady = steady[1:] or steady

    return max(
        reversed(steady),
        key=lambda one: find_peak(line, one.first, one.last).requested_bytes,
        default=None,
    )


def _is_peak_between(steps: Sequence[Step], line: Timeline) -> bool:
    """Say whether most bytes are alive between two steps that no program has numbered.

    Such steps are runs of functions, and the program runs others besides them.
    """
    if not steps or any(step.number is not None for step in steps):
        return False

    span = find_peak(line, steps[0].first, steps[-1].last)
    inside = max(
        find_peak(line, step.first, step.last).requested_bytes for step in steps
    )

    return span.requested_bytes > inside


def saved_without(
    analysis: Analysis,
    sizes: npt.ArrayLike,
    gone_from: npt.ArrayLike,
    gone_until: npt.ArrayLike,
) -> int:
    """Return how far the steady step's requested peak falls if buffers are absent for a while.

    A buffer that is large at the peak saves little if another instant is nearly as high. Inside a
    compiled step only bytes that hold a value count: the compiler would use another layout of its
    buffer.

    ``sizes`` are requested bytes; the instants ``gone_until`` are excluded.
    """
    held = count_live_bytes(analysis)
    rest = count_live_bytes_without(analysis, sizes, gone_from, gone_until)

    return int(held.max()) - int(rest.max())


def saved_without_rows(
    analysis: Analysis,
    rows: pd.DataFrame,
    share: float | pd.Series = 1.0,
    *,
    added: int = 0,
) -> int:
    """Return ``saved_without`` for a share of the bytes of each buffer.

    The mended step holds ``added`` bytes of its own while the step has any of the buffers.
    """
    if rows.empty:
        return 0

    sizes = (rows["requested_bytes"] * share).astype("int64")
    return saved_without(
        analysis,
        [*sizes, -added],
        [*rows["born"], rows["born"].min()],
        [*rows["dies"], rows["dies"].max()],
    )


def count_live_bytes(analysis: Analysis) -> Instants:
    """Return the requested bytes that hold a value at each instant of the steady step."""
    window = slice(analysis.first + 1, analysis.last + 2)
    held: Instants = (analysis.line.requested - analysis.line.idle)[window]
    return held


def count_live_bytes_without(
    analysis: Analysis,
    sizes: npt.ArrayLike,
    gone_from: npt.ArrayLike,
    gone_until: npt.ArrayLike,
) -> Instants:
    """Return ``count_live_bytes`` without buffers; the arguments are those of ``saved_without``."""
    held = count_live_bytes(analysis)
    first = analysis.first

    count = len(held)
    start = np.clip(np.asarray(gone_from, np.int64) - first, 0, count)
    end = np.clip(np.asarray(gone_until, np.int64) - first, 0, count)
    size = np.where(end > start, np.asarray(sizes, np.int64), 0)

    return held - running_sum(start - 1, end - 1, size, count - 1)


def card_uses(analysis: Analysis) -> Iterator[CardUse]:
    """Yield the use of each card, by its number; nothing for a single card."""
    recording = analysis.recording
    table = recording.allocations

    events = recording.events
    names = map(str, table["allocator"].unique())
    found = [
        (number, name) for name in names if (number := card_number(name)) is not None
    ]

    if len(found) < 2:
        return

    run = recording.simulated_run or SimulatedCardNote()

    for number, name in sorted(found):
        line = timeline(undivided_rows(table[table["allocator"] == name]), len(events))
        peak = find_peak(line, analysis.first, analysis.last)
        limit_bytes = find_limit(events, name)

        yield CardUse(
            number=number,
            allocator=name,
            card=run.cards[number] if number < len(run.cards) else "",
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            memory_limit_bytes=limit_bytes and limit_bytes + run.spare_of(number),
            is_shown=name == recording.allocator,
        )


def card_of(recording: Recording) -> Gpu | None:
    """Return the card of a prediction or a run on a simulated card; None for any other recording."""
    if recording.kind is Kind.TRACE or recording.device.kind != "gpu":
        return None

    return look_up_gpu(recording.device.name)
