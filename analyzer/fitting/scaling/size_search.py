"""The largest size that fits: a few captures, closed forms between them, replays of the allocator.

Two captures give the forms, the search over them a size, and a third capture at that size says whether
they hold there. Where the graph at that size is another one, two captures about it make a new family.
Of a step that XLA compiles, the forms give what is compiled, and the card's compiler plans each size
that is tried; the next one follows from a line through the nearest two. Where there are no forms at all,
each size tried is a capture.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from analyzer.fitting.scaling.fit_answer import FormsUsed
from analyzer.fitting.scaling.largest_size import MOST, LargestSizes, largest, largest_of
from analyzer.fitting.scaling.order_playing import play_orders
from analyzer.fitting.scaling.scaled_orders import ScaledOrders
from analyzer.fitting.scaling.size_lines import (
    LimitRange,
    SizeGrowth,
    SizeNeed,
    SizeRefused,
    from_nothing,
    largest_by_line,
    meets,
    next_size,
    sides_of,
)
from analyzer.fitting.scaling.step_family import NotOneFamily, StepFamily, family_of
from analyzer.model.errors import CompilerUnavailable, InputError
from analyzer.simulate.allocator.minimum_limit import safe_limit
from analyzer.simulate.predict.predicted_device import Target, target_of
from analyzer.simulate.predict.representative import LIMIT_MARGIN
from analyzer.tracing.measure.variable_buffers import variable_bytes
from analyzer.tracing.parse.run_folder import RunNote

_ROUNDS: Final = 4
"""Families that are tried before each size is captured."""

_CAPTURES: Final = 8
"""Captures at most where each size is one."""

_SWAPPED: Final = 3
"""The same where TensorFlow swaps tensors to the host, beside the first: each of these is another draw
of what is swapped."""

_SPAN: Final = 32
"""Part of a size in which no further one is looked for there."""

_SWAP: Final = "_CopyFromGpuToHost"
"""What the optimiser puts where it swaps a tensor to the host (``BuildSwapPair``)."""

SWAP_MARGIN: Final = 0.03
"""Share more that the safe size has to spare where tensors are swapped: captures of one batch differed
by 2.7 % of the requested peak and 1.2 % of the need."""

SWAPS: Final = "TensorFlow swaps tensors to the host there, and not the same ones in each process"
"""Why there are no forms. Nodes to swap are gone through in the order of addresses (``nodes_to_swap``,
``memory_optimizer.cc``), and each is looked for in the graph that those before left."""

_FURTHEST: Final = 1024
"""How many times the first size the second one may be."""

_PLANS: Final = 10
"""Plans at most that are asked of a card's compiler."""

_NARROWED: Final = 7
"""Captures at most where the sizes are narrowed down from which on the optimiser makes another graph."""

_NAMING: Final = 2000
"""Characters of a refusal in which the largest size that the step takes may be named."""

_DEGREE: Final = 2
"""Highest degree of a form."""

_SETTLING: Final = 3
"""Searches at most over one family: the durations are those of the size found before."""

_STRIDE: Final = 16
"""What part of a size lies between those that the forms of buffers go through."""

_NEAR: Final = 4
"""What part of a size another may be off for the order of the ops to be taken for the same there: all of
them take so much longer together."""

_NO_GROWTH: Final = "The step needs no more memory with a larger batch."
_NO_GROWTH_HINT: Final = "Where its own code makes the batch, change it there."


class Noting(Protocol):
    """How a step is captured at a size; nothing of it runs."""

    def note(self, size: int) -> RunNote:
        """Return what the capture notes."""

    def need(self, size: int) -> SizeNeed:
        """Return the estimate of what was noted at a size."""

    def need_made(self, size: int, note: RunNote, modules: Sequence[bytes]) -> SizeNeed:
        """Return the estimate of a step that was made by forms.

        Args:
            size: The size.
            note: The step's note there.
            modules: What XLA compiles of it, in the note's order of functions.
        """


@dataclass
class FoundSizes:
    """What a search found.

    Attributes:
        sizes: The largest sizes.
        forms: How.
        orders: The orders, where there are closed forms.
        needs: What sizes need, where each was captured.
        note: The note of a size near the largest.
        bound: The largest size that the step takes; None where none was refused.
        refusal: What was said of the next one.
    """

    sizes: LargestSizes
    forms: FormsUsed
    orders: ScaledOrders | None
    note: RunNote
    needs: dict[int, SizeNeed] = field(default_factory=dict)
    bound: int | None = None
    refusal: str = ""


class SizeSearch:
    """Looks for the largest size of a target.

    Args:
        noting: How the step is captured.
        limits_of: The limits, once it is known what the notes are for.
        start: A size to begin with.
        threads: Threads that one op may use; None for those of the machine that took the notes.
        inter_op: Threads that run ops side by side; None for that machine's.
        runs_follow: Whether the size found will be run: then a compiled step is not captured there too.
        power: Of the size with which the need grows, about: 2 of an image's side.
        degree: Of an axis: 1 of a batch, 2 where an image's sides may be flattened into one. A buffer's
            bytes may be of twice that: a batch against itself, an image's tokens against each other.
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
        runs_follow: bool = False,
        power: int = 1,
        degree: int = 1,
        report: Callable[[str, float], None],
    ) -> None:
        self._power, self._degree = power, degree
        self._runs_follow = runs_follow
        self._noting = noting
        self._limits_of = limits_of
        self._start = max(start, 2)
        self._threads = threads
        self._inter_op = inter_op
        self._report = report
        self._notes: dict[int, RunNote] = {}
        self._checked: set[int] = set()
        self._disproved: set[int] = set()
        self._bound = MOST
        self._refusal = ""

    def find(self) -> FoundSizes:
        """Find the largest size: of those that the step takes, where it takes none beyond one.

        Raises:
            InputError: the target has no such size.
        """
        try:
            return self._find()
        except SizeRefused as refused:
            if not self._notes or refused.size < min(self._notes):
                raise
            self._bound = self._largest_taken(refused)
            found = self._find()
            return replace(found, bound=self._bound, refusal=self._refusal)

    def _largest_taken(self, refused: SizeRefused) -> int:
        """Return the largest size that the step takes: a table of positions has so many rows.

        Numbers that the refusal names are tried first.

        Args:
            refused: The refusal of a larger one.
        """
        self._refusal = refused.message
        low = max(size for size in self._notes if size < refused.size)
        high = refused.size
        named = {int(number) for number in re.findall(r"\d+", refused.message[:_NAMING])}
        guesses = sorted(number for number in named if low <= number < high)
        while high - low > 1:
            size = guesses.pop() if guesses else (low + high) // 2
            if not low <= size < high:
                continue
            try:
                self._note(size)
            except SizeRefused as error:
                self._refusal = error.message
                high = size
            else:
                low = size
                guesses = [size + 1] if size in named else []
        return low

    def _find(self) -> FoundSizes:
        first = self._start
        noted = {first: self._note(first)}
        if noted[first].compiled and target_of(noted[first]).gpu is not None:
            return self._by_plans(first)
        near = min(self._guess(noted), self._bound)
        if near == first:
            near = max(first // 2, 1)
        why = ""
        for _ in range(_ROUNDS):
            here = self._note(near)
            if _is_swapped(here):
                return self._by_captures(SWAPS)
            self._note_between()
            others = self._beside(near)
            pair = {others[0]: self._notes[others[0]], near: here}
            try:
                noted = {size: self._notes[size] for size in (*others[: self._degree], near)}
                family = self._family(noted, near)
                found = self._by_forms(family, near)
            except NotOneFamily as error:
                why = str(error)
                if any(note.compiled for note in pair.values()):
                    break
                try:
                    guess = self._guess(pair)
                except NotOneFamily as another:
                    why = str(another)
                    break
                near = guess if guess not in pair else near + max(near // 16, 1)
                near = min(near, self._bound)
            else:
                if isinstance(found, FoundSizes):
                    return found
                why, near = found
                if (below := self._below_another(family, near)) is not None:
                    return below
        return self._by_captures(why)

    def _family(self, pair: Mapping[int, RunNote], near: int) -> StepFamily:
        """Return the family of two notes, and of a third one where it is noted and of the same ops.

        With a third one an axis may be of the second degree: a batch against itself, flattened.

        Raises:
            NotOneFamily: they are of none.
        """
        if near in self._disproved:
            with contextlib.suppress(NotOneFamily):
                others = self._beside(near)[:_DEGREE]
                return family_of({size: self._notes[size] for size in (*others, near)})
        return family_of(pair)

    def _note_between(self) -> None:
        """Note further sizes where two are too few for the degree of an axis."""
        while len(self._notes) <= self._degree:
            low, high = sorted(self._notes)[-2:]
            middle = (low + high) // 2
            self._note(middle if middle not in self._notes else high + 1)

    def _beside(self, near: int) -> list[int]:
        """Return the noted sizes that serve beside another: those of the same ops first, the nearest.

        Of two sizes TensorFlow may have folded a constant at the smaller alone: those that Grappler
        computes beforehand are kept up to 100 KiB (``kMaxConstantSize``, ``constant_folding.cc``).
        """
        names = {size: _names(note) for size, note in self._notes.items()}
        others = [size for size in self._notes if size != near]
        return sorted(others, key=lambda size: (names[size] != names[near], abs(size - near)))

    def _guess(self, noted: Mapping[int, RunNote]) -> int:
        """Return about the largest size, from steps that need not be of one family: by a line.

        From one step alone the line goes through what lives before it, the variables, at a size of 0.

        Raises:
            InputError: the need does not grow.
            NotOneFamily: it does not, for the larger step is another one: near a card's limit TensorFlow
                swaps tensors out to the host (``memory_optimizer.cc``).
        """
        needs: dict[int, int] = {}
        for size, note in noted.items():
            if note.compiled:
                limit = self._limits_of(target_of(note)).bytes
                variables = self._growth(note).nothing_bytes
                need = self._noting.need(size).bytes
                guess = from_nothing(variables, size, need, limit, self._power)
                return min(guess, _FURTHEST * size, MOST) if guess != size else 2 * size
            alone = self._play(StepFamily((size,), (note,)), (size,), draws=1)
            limits = self._limits_of(alone.target)
            order = alone.main[0]
            needs[size] = safe_limit(order.operations, alone.target.options)
            if len(noted) == 1:
                needs[0] = order.variables_bytes()
        (low, less), (high, more) = sorted(needs.items())
        if more <= less and len({_names(note) for note in noted.values()}) > 1:
            raise NotOneFamily("the optimiser makes another graph of a larger batch")
        if more <= less:
            raise InputError(_NO_GROWTH, hint=_NO_GROWTH_HINT)
        met = meets((low, less), (high, more), limits.bytes, self._power)
        guess = min(max(int(met), 1), MOST)
        return guess if guess not in noted else guess + max(guess // 16, 1)

    def _note(self, size: int) -> RunNote:
        if size not in self._notes:
            share = min(0.2 * len(self._notes), 0.8)
            self._report(f"capturing the step at {size}", share)
            self._notes[size] = self._noting.note(size)
        return self._notes[size]

    def _by_forms(self, family: StepFamily, near: int) -> FoundSizes | tuple[str, int]:
        """Search by forms; return what differs at the size found, and that size, where they fail there.

        Args:
            family: The steps.
            near: About the largest size.

        Raises:
            NotOneFamily: there are no forms.
        """
        target = target_of(family.notes[0])
        limits = self._limits_of(target)
        under = replace(target.options, memory_limit_bytes=limits.bytes)
        for _ in range(_SETTLING):
            orders = self._play_about(family, near, draws=1)
            first = largest_of(orders.main[0], under, near, self._bound)
            is_near = abs(first - near) <= max(near // _NEAR, 1)
            near = max(first, 1)
            if is_near and orders.is_same_at(near):
                break
        if (different := self._differs(family, near)) is not None:
            return different, near
        orders = self._play_about(family, near)
        best = largest(orders, target.options, limits.three, bound=self._bound)
        found = max(best.size, 1)
        if abs(found - near) > near // _STRIDE:
            if (different := self._differs(family, found)) is not None:
                return different, found
            near = found
        return FoundSizes(
            sizes=best,
            forms=FormsUsed(
                captured_at=tuple(sorted(self._notes)),
                checked_at=tuple(sorted(self._checked)),
                is_closed_form=True,
            ),
            orders=orders,
            note=self._notes.get(near, family.notes[0]),
        )

    def _below_another(self, family: StepFamily, near: int) -> FoundSizes | None:
        """Return the largest size below those at which the optimiser makes a graph that does not fit.

        By its own forms the step would fit up to ``near``, but TensorFlow expects over 80 % of the
        device's memory to be in use before that, and makes another graph (``SchedulingPass``,
        ``memory_optimizer.cc``) that needs more. Where that begins, captures between narrow down.

        Args:
            family: Steps of one graph.
            near: The largest size by their forms, which is noted.

        Returns:
            None where the graph is the same there, or the other one fits.
        """
        same = _names(family.notes[0])
        least = max((size for size, note in self._notes.items() if _names(note) == same), default=0)
        is_swapped = _is_swapped(self._notes[near])
        if _names(self._notes[near]) == same or least >= near or is_swapped:
            return None
        guess = 0
        while True:
            orders = self._play(StepFamily((near,), (self._notes[near],)), (near,), draws=1)
            limits, order = self._limits_of(orders.target), orders.main[0]
            options = replace(orders.target.options, memory_limit_bytes=limits.bytes)
            if order.fits(near, options):
                return None
            need = safe_limit(order.operations, options)
            if not guess:  # where the other graph fits, if it is made there
                guess = from_nothing(order.variables_bytes(), near, need, limits.bytes, self._power)
            while near - least > max(least // (2 * _SPAN), 1) and len(self._notes) < _NARROWED:
                middle = guess if least < guess < near else (least + near) // 2
                if _names(self._note(middle)) != same:
                    near = middle
                    break
                least = middle
            else:
                return self._up_to(family, least, near)

    def _up_to(self, family: StepFamily, most: int, another: int) -> FoundSizes:
        """Return what a family's forms say up to a size.

        Args:
            family: The steps.
            most: The largest size of which it is known that its graph is theirs.
            another: A larger one with another graph, which does not fit.

        Raises:
            NotOneFamily: there are no forms.
        """
        orders = self._play_about(family, most)
        limits = self._limits_of(orders.target)
        sizes = largest(orders, orders.target.options, limits.three, bound=most)
        is_reached = sizes.size == most
        if is_reached:
            sizes = replace(sizes, most=another - 1)
        return FoundSizes(
            sizes=sizes,
            forms=FormsUsed(
                captured_at=tuple(sorted(self._notes)),
                checked_at=tuple(sorted(self._checked)),
                is_closed_form=True,
                another_from=another if is_reached else None,
            ),
            orders=orders,
            note=self._notes[most],
        )

    def _differs(self, family: StepFamily, size: int) -> str | None:
        """Capture the step at a size; return where a family's forms are wrong there, None if nowhere.

        Raises:
            InputError: the size is beyond all that are looked for.
        """
        if size >= MOST:
            raise InputError(_NO_GROWTH, hint=_NO_GROWTH_HINT)
        if size not in self._checked and size not in family.sizes:
            try:
                family.check(size, self._note(size))
            except NotOneFamily as error:
                self._disproved.add(size)
                return str(error)
            self._checked.add(size)
        return None

    def _play_about(self, family: StepFamily, near: int, draws: int | None = None) -> ScaledOrders:
        """Play orders at a size, their buffers' forms through two larger ones, or two smaller ones.

        Constants that TensorFlow computes beforehand up to 10 MiB may be computed at the smaller alone.

        Raises:
            NotOneFamily: neither are of one form.
        """
        stride = max(near // _STRIDE, 1)
        try:
            return self._play(family, _about(near, stride, _DEGREE * self._degree), draws)
        except NotOneFamily:
            if near <= _DEGREE * self._degree * stride:
                raise
            return self._play(family, _about(near, -stride, _DEGREE * self._degree), draws)

    def _play(
        self, family: StepFamily, sizes: tuple[int, ...], draws: int | None = None
    ) -> ScaledOrders:
        self._report("replaying orders of the ops", 0.85)
        return play_orders(
            family, sizes, threads=self._threads, inter_op=self._inter_op, draws=draws
        )

    def _by_plans(self, first: int) -> FoundSizes:
        """Search with the card's own plan at each size that is tried, of a module made by forms.

        Args:
            first: A size that is noted.

        Raises:
            InputError: the need does not grow.
        """
        needs: dict[int, SizeNeed] = {}
        self._plan(first, needs, None)
        limits = self._limits_of(target_of(self._notes[first]))
        growth = self._growth(self._notes[first])
        variables = growth.nothing_bytes
        near = from_nothing(variables, first, needs[first].bytes, limits.bytes, self._power)
        near = min(near, _FURTHEST * first, MOST)
        near = min(near if near != first else 2 * first, self._bound)
        near = near if near != first else max(first // 2, 1)
        self._note(near)
        self._note_between()
        try:
            family = family_of(self._notes)
            size: int | None = near
            while size is not None and len(needs) < _PLANS:
                self._plan(size, needs, family)
                size = self._untried(next_size(needs, limits.bytes, growth), needs)
            if needs[max(near, first)].bytes <= needs[min(near, first)].bytes:
                raise InputError(_NO_GROWTH, hint=_NO_GROWTH_HINT)
            best = sides_of(needs, limits.bytes)[0] or 1
            if best not in self._notes and not self._runs_follow:
                family.check(best, self._note(best))
                self._checked.add(best)
        except NotOneFamily as error:
            kept = {size: need for size, need in needs.items() if size in self._notes}
            return self._by_captures(str(error), kept)
        return self._found(needs, limits, self._notes.get(best, self._notes[near]), "")

    def _growth(self, note: RunNote) -> SizeGrowth:
        """Return how the need of a step grows with the size."""
        return SizeGrowth(
            power=self._power,
            degree=self._degree if self._power > 1 else 0,
            nothing_bytes=sum(variable_bytes(row) or 0 for row in note.variables),
        )

    def _untried(self, size: int | None, needs: Mapping[int, SizeNeed]) -> int | None:
        """Return a size to try, or the largest that the step takes; None where that was tried."""
        if size is None or (size > self._bound and self._bound in needs):
            return None
        return min(size, self._bound)

    def _plan(self, size: int, needs: dict[int, SizeNeed], family: StepFamily | None) -> None:
        """Add what a size needs: of its capture, else of the step that a family's forms give.

        Raises:
            NotOneFamily: the forms give none there.
        """
        self._report(f"planning the step at {size}", min(0.1 * len(needs) + 0.2, 0.9))
        if family is None or size in self._notes:
            needs[size] = self._noting.need(size)
            return
        note, modules = family.at(size), family.modules_at(size)
        try:
            needs[size] = self._noting.need_made(size, note, modules)
        except CompilerUnavailable as error:
            raise NotOneFamily(
                f"the module that the forms give is refused: {error.message[:200]}"
            ) from None

    def _by_captures(self, why: str, known: Mapping[int, SizeNeed] | None = None) -> FoundSizes:
        """Search with a capture and an estimate at each size that is tried.

        What forms were looked for at is noted already, most of it about the limit: the search goes on
        from its middle, for a line through two small steps leads nowhere.
        """
        needs = dict(known or {})
        noted = sorted(self._notes)
        is_swapped = why == SWAPS
        most = len(needs) + 1 + _SWAPPED if is_swapped else _CAPTURES
        size: int | None = self._start
        if len(noted) > 2 and not is_swapped:
            size = noted[(len(noted) - 1) // 2]
        limits: LimitRange | None = None
        while size is not None and len(needs) < most:
            note = self._note(size)
            limits = limits or self._limits_of(target_of(note))
            if size not in needs:
                self._plan(size, needs, None)
            size = _noted_beyond(noted, needs, limits.bytes) or next_size(
                needs, limits.bytes, self._growth(note)
            )
            if is_swapped and self._power > 1:
                size = _on_the_other_side(size, needs, limits.bytes)
            size = self._untried(size, needs)
            if is_swapped and _is_narrow(needs, limits.bytes):
                break
        assert limits is not None
        return self._found(needs, limits, note, why)

    def _found(
        self, needs: dict[int, SizeNeed], limits: LimitRange, note: RunNote, why: str
    ) -> FoundSizes:
        if why == SWAPS:
            limits = replace(limits, low_bytes=int(limits.low_bytes / (1 + SWAP_MARGIN)))
        sizes = largest_by_line(needs, limits.bytes)(limits)
        if why == SWAPS:
            # Another process swaps others: what one capture says is not each one's, and a line through
            # two near each other may be steep by chance. A need grows in proportion to the size at most.
            share = min(limits.low_bytes / (1 + LIMIT_MARGIN) / limits.bytes, 1.0)
            in_proportion = int(sizes.size * share ** (1 / self._growth(note).power))
            safe = min(sizes.safe, in_proportion)
            sizes = replace(sizes, safe=safe, in_each=min(sizes.in_each, safe))
        return FoundSizes(
            sizes=sizes,
            forms=FormsUsed(
                captured_at=tuple(sorted(self._notes)),
                checked_at=tuple(sorted(self._checked)),
                planned_at=tuple(sorted(needs)),
                is_closed_form=not why,
                why_not=why,
                swaps=why == SWAPS,
            ),
            orders=None,
            note=note,
            needs=needs,
        )


def _names(note: RunNote) -> frozenset[str]:
    return frozenset(op.name for op in note.ops)


def _is_swapped(note: RunNote) -> bool:
    """Say whether TensorFlow's optimiser swaps tensors of a noted step to the host."""
    return any(op.type == _SWAP for op in note.ops)


def _noted_beyond(noted: Sequence[int], needs: Mapping[int, SizeNeed], limit: int) -> int | None:
    """Return the next noted size on the way to the limit, while all that were tried lie on one side.

    None where the limit lies between two of them, or no noted size is left on that side.

    Args:
        noted: Sizes at which the step is captured already, rising.
        needs: What sizes need that were tried.
        limit: The limit, bytes.
    """
    fits = {need.bytes <= limit for need in needs.values()}
    if len(fits) > 1:
        return None
    beyond = [size for size in noted if size > max(needs)]
    below = [size for size in noted if size < min(needs)]
    return next(iter(beyond), None) if fits == {True} else next(iter(reversed(below)), None)


def _is_narrow(needs: Mapping[int, SizeNeed], limit: int) -> bool:
    """Say whether the largest size lies in a span that one more capture would hardly narrow."""
    fitting, failing = sides_of(needs, limit)
    return failing > fitting and _SPAN * (failing - fitting) <= fitting


def _on_the_other_side(size: int | None, needs: Mapping[int, SizeNeed], limit: int) -> int | None:
    """Return a size to try that leaves a narrow span, where the next one lies close to a known one.

    Few captures are made there, and one just beside another says nothing new.

    Args:
        size: The size that a line leads to; None for none.
        needs: What sizes need.
        limit: The limit, bytes.
    """
    fitting, failing = sides_of(needs, limit)
    if size is None:
        return None
    if fitting and size < fitting + fitting // _SPAN:
        return (
            min(fitting + fitting // _SPAN, failing - 1) if failing else fitting + fitting // _SPAN
        )
    if failing and size > failing - failing // _SPAN:
        return max(failing - failing // _SPAN, fitting + 1)
    return size


def _about(size: int, stride: int, degree: int) -> tuple[int, ...]:
    """Return a size and as many others as forms of a degree need, a stride apart."""
    return tuple(size + stride * k for k in range(degree + 1))
