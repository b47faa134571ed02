"""The largest size that fits: a few captures, closed forms between them, replays of the allocator.

Two captures give the forms, the search over them a size, and a third capture at that size says whether
they hold there. Where the graph at that size is another one, two captures about it make a new family;
where there are no forms at all (XLA plans a compiled step's memory anew), each size tried is a capture,
and the next one follows from a line through the nearest two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from analyzer.errors import InputError
from analyzer.parse.run_folder import RunNote
from analyzer.predict.predicted_device import Target, target_of
from analyzer.scaling.fit_answer import FormsUsed
from analyzer.scaling.largest_size import MOST, LargestSizes, largest
from analyzer.scaling.scaled_orders import ScaledOrders, play_orders
from analyzer.scaling.step_family import NotOneFamily, StepFamily, family_of

_ROUNDS: Final = 4
"""Families that are tried before each size is captured."""

_CAPTURES: Final = 8
"""Captures at most where each size is one."""

_SETTLING: Final = 3
"""Searches at most over one family: the durations are those of the size found before."""


_SLACK: Final = 1.03
"""How much more than its rounded requests a step needs, for a first guess alone."""

_NO_GROWTH: Final = "The step needs no more memory with a larger batch."
_NO_GROWTH_HINT: Final = "Where its own code makes the batch, change it there."


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeNeed:
    """What one size needs, by an estimate of its own.

    Attributes:
        low_bytes, bytes, high_bytes: The least memory limit, and its range.
        requested_bytes, allocated_bytes: Its peak.
    """

    low_bytes: int
    bytes: int
    high_bytes: int
    requested_bytes: int
    allocated_bytes: int


class Noting(Protocol):
    """How a step is captured at a size; nothing of it runs."""

    def note(self, size: int) -> RunNote:
        """Return what the capture notes."""

    def need(self, size: int) -> SizeNeed:
        """Return the estimate of what was noted at a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """The limit: the figure, and the least and the most that it may be, bytes."""

    bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def three(self) -> tuple[int, int, int]:
        """The figure, the least, the most."""
        return self.bytes, self.low_bytes, self.high_bytes


@dataclass
class FoundSizes:
    """What a search found.

    Attributes:
        sizes: The largest sizes.
        forms: How.
        orders: The orders, where there are closed forms.
        needs: What sizes need, where each was captured.
        note: The note of a size near the largest.
    """

    sizes: LargestSizes
    forms: FormsUsed
    orders: ScaledOrders | None
    note: RunNote
    needs: dict[int, SizeNeed] = field(default_factory=dict)


class SizeSearch:
    """Looks for the largest size of a target.

    Args:
        noting: How the step is captured.
        limits_of: The limits, once it is known what the notes are for.
        start: A size to begin with.
        threads: Threads that one op may use; None for those of the machine that took the notes.
        inter_op: Threads that run ops side by side; None for that machine's.
        report: Called with the stage and the share done.
    """

    def __init__(
        self,
        noting: Noting,
        limits_of: Callable[[Target], LimitRange],
        start: int,
        *,
        threads: int | None = None,
        inter_op: int | None = None,
        report: Callable[[str, float], None],
    ) -> None:
        self._noting = noting
        self._limits_of = limits_of
        self._start = max(start, 2)
        self._threads = threads
        self._inter_op = inter_op
        self._report = report
        self._notes: dict[int, RunNote] = {}
        self._checked: set[int] = set()

    def find(self) -> FoundSizes:
        """Find the largest size.

        Raises:
            InputError: the target has no such size.
        """
        first = self._start
        noted = {first: self._note(first)}
        near = self._guess(noted)
        why = ""
        for _ in range(_ROUNDS):
            other = self._beside(near)
            pair = {size: self._note(size) for size in (other, near)}
            try:
                found = self._by_forms(family_of(pair))
            except NotOneFamily as error:
                why = str(error)
                if any(note.compiled for note in pair.values()):
                    break
                guess = self._guess(pair)
                near = guess if guess not in pair else near + max(near // 16, 1)
            else:
                if isinstance(found, FoundSizes):
                    return found
                why, near = found
        return self._by_captures(why)

    def _beside(self, near: int) -> int:
        """Return the size whose note serves beside that of another: the nearest noted one."""
        others = [size for size in self._notes if size != near]
        return min(others, key=lambda size: abs(size - near))

    def _guess(self, noted: Mapping[int, RunNote]) -> int:
        """Return about the largest size, from steps that need not be of one family: by a line.

        From one step alone the line goes through what lives before it, the variables, at a size of 0.

        Raises:
            InputError: the need does not grow.
        """
        needs: dict[int, int] = {}
        for size, note in noted.items():
            if note.compiled:
                return 2 * size
            alone = self._play(StepFamily((size,), (note,)), (size,))
            limits = self._limits_of(alone.target)
            ranked = sorted(alone.main, key=lambda order: order.least_bytes(size))
            middle = ranked[(len(ranked) - 1) // 2]
            needs[size] = middle.least_bytes(size)
            if len(noted) == 1:
                needs[0] = middle.variables_bytes()
        (low, less), (high, more) = sorted(needs.items())
        slope = (more - less) / (high - low)
        if slope <= 0:
            raise InputError(_NO_GROWTH, hint=_NO_GROWTH_HINT)
        guess = min(max(int(low + (limits.bytes / _SLACK - less) / slope), 1), MOST)
        return guess if guess not in noted else guess + max(guess // 16, 1)

    def _note(self, size: int) -> RunNote:
        if size not in self._notes:
            share = min(0.2 * len(self._notes), 0.8)
            self._report(f"capturing the step at {size}", share)
            self._notes[size] = self._noting.note(size)
        return self._notes[size]

    def _by_forms(self, family: StepFamily) -> FoundSizes | tuple[str, int]:
        """Search by forms; return what differs at the size found, and that size, where they fail there.

        Raises:
            NotOneFamily: there are no forms.
        """
        target = target_of(family.notes[0])
        limits = self._limits_of(target)
        sizes = _about(family.sizes[0], family.sizes[-1] - family.sizes[0])
        orders = self._play(family, sizes)
        best = largest(orders, target.options, limits.three)
        seen = {best.size}
        for _ in range(_SETTLING):
            near = max(best.size, 1)
            orders = self._play(family, _about(near, max(near // 16, 1)))
            best = largest(orders, target.options, limits.three)
            if best.size in seen:
                break
            seen.add(best.size)
        checking = max(best.size, 1)
        if checking >= MOST:
            raise InputError(_NO_GROWTH, hint=_NO_GROWTH_HINT)
        if checking not in self._checked and checking not in family.sizes:
            note = self._note(checking)
            try:
                family.check(checking, note)
            except NotOneFamily as error:
                return str(error), checking
            self._checked.add(checking)
        return FoundSizes(
            sizes=best,
            forms=FormsUsed(
                captured_at=tuple(sorted(self._notes)),
                checked_at=tuple(sorted(self._checked)),
                is_closed_form=True,
            ),
            orders=orders,
            note=self._notes.get(checking, family.notes[0]),
        )

    def _play(self, family: StepFamily, sizes: tuple[int, ...]) -> ScaledOrders:
        self._report("replaying orders of the ops", 0.85)
        return play_orders(family, sizes, threads=self._threads, inter_op=self._inter_op)

    def _by_captures(self, why: str) -> FoundSizes:
        """Search with an estimate at each size that is tried."""
        needs: dict[int, SizeNeed] = {}
        limits: LimitRange | None = None
        size = self._start
        while True:
            note = self._note(size)
            self._report(f"estimating at {size}", min(0.1 * len(needs) + 0.1, 0.9))
            needs[size] = self._noting.need(size)
            limits = limits or self._limits_of(target_of(note))
            nearest = _next(needs, limits.bytes)
            if nearest is None or len(needs) >= _CAPTURES:
                break
            size = nearest
        fitting = _line(needs, limits.bytes)
        return FoundSizes(
            sizes=fitting(limits),
            forms=FormsUsed(
                captured_at=tuple(sorted(needs)), checked_at=(), is_closed_form=False, why_not=why
            ),
            orders=None,
            note=note,
            needs=needs,
        )


def _about(size: int, stride: int) -> tuple[int, ...]:
    """Return three sizes from one on: what two of them tell, the third checks."""
    return size, size + stride, size + 2 * stride


def _next(needs: dict[int, SizeNeed], limit: int) -> int | None:
    """Return the size to try next; None where the answer lies between two that were tried."""
    fitting = max((size for size, need in needs.items() if need.bytes <= limit), default=0)
    failing = min((size for size, need in needs.items() if need.bytes > limit), default=0)
    if failing and failing - fitting <= 1:
        return None
    if len(needs) == 1:
        only = next(iter(needs))
        return max(only // 2, 1) if failing else 2 * only
    guess = crossing(needs, limit)
    if failing:
        guess = min(max(guess, fitting + 1), failing - 1)
    elif fitting:
        guess = min(max(guess, fitting + 1), 16 * fitting)
    return guess if guess not in needs else None


def crossing(needs: Mapping[int, SizeNeed], limit: int) -> int:
    """Return where the line through the two sizes nearest to the limit meets it, rounded down."""
    near = sorted(needs, key=lambda size: abs(needs[size].bytes - limit))[:2]
    (low, high) = sorted(near)
    slope = (needs[high].bytes - needs[low].bytes) / (high - low)
    if slope <= 0:
        return 2 * high
    return max(int(low + (limit - needs[low].bytes) / slope), 1)


def _line(needs: dict[int, SizeNeed], limit: int) -> Callable[[LimitRange], LargestSizes]:
    """Return what tells the largest sizes from what was captured: between, a line."""

    def answer(limits: LimitRange) -> LargestSizes:
        fitting = max((size for size, need in needs.items() if need.bytes <= limit), default=0)
        safe = max(
            (s for s, need in needs.items() if need.high_bytes <= limits.low_bytes), default=0
        )
        most = min(
            (s for s, need in needs.items() if need.low_bytes > limits.high_bytes), default=0
        )
        if len(needs) > 1:
            widened = {
                size: SizeNeed(
                    low_bytes=need.low_bytes,
                    bytes=need.high_bytes,
                    high_bytes=need.high_bytes,
                    requested_bytes=need.requested_bytes,
                    allocated_bytes=need.allocated_bytes,
                )
                for size, need in needs.items()
            }
            below = crossing(widened, limits.low_bytes)
            safe = max(safe, min(below, fitting))
        return LargestSizes(
            size=fitting, safe=min(safe, fitting), most=max(most - 1 if most else fitting, fitting)
        )

    return answer
