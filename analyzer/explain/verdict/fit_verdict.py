"""The verdict: does the step fit a card or a limit that the user gave.

It is worked out once, here; every output shows this record. The limit of the allocator that a capture
happened to run on is nobody's question and gives no verdict. Only limits are held against limits: the
need is the least memory limit that works, which counts allocated bytes, never requested ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.report.limit_figures import Basis as Basis
from analyzer.model.contract.report.limit_figures import Fits, VerdictFigures
from analyzer.model.contract.report.limit_figures import LimitOf as LimitOf
from analyzer.model.contract.report.limit_figures import NeedOf as NeedOf
from analyzer.model.contract.report.limit_figures import Outcome as Outcome
from analyzer.model.recording.records import Kind
from analyzer.model.units import format_bytes

_BASES: Final = {"trace": Basis.MEASURED, "estimate": Basis.PREDICTED, "phantom": Basis.PHANTOM}

_HEADS: Final = {
    Outcome.FITS: "FITS",
    Outcome.DOES_NOT_FIT: "DOES NOT FIT",
    Outcome.CANNOT_TELL: "MAY NOT FIT",
}


def basis_of(kind: Kind | str) -> Basis:
    """Return what the figures of a recording of this kind rest on."""
    return _BASES[str(kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bytes that are known within bounds; the figure lies in them."""

    bytes: int
    low_bytes: int
    high_bytes: int

    @classmethod
    def around(cls, size_bytes: int, low_bytes: int, high_bytes: int) -> Bounds:
        """Return the bounds, widened where the figure is not in them.

        Args:
            size_bytes: The figure.
            low_bytes: The least that it may be.
            high_bytes: The most that it may be.
        """
        return cls(
            bytes=size_bytes,
            low_bytes=min(size_bytes, max(low_bytes, 0)),
            high_bytes=max(size_bytes, high_bytes),
        )

    @property
    def told(self) -> str:
        """The figure, and its bounds where they can be told from it."""
        shown, low, high = map(format_bytes, (self.bytes, self.low_bytes, self.high_bytes))
        return shown if low == high else f"{shown} ({low} to {high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the step fits, what that rests on, and what to doubt.

    Attributes:
        outcome: The answer.
        basis: What the figures rest on.
        limit_of: Whose limit it is about; None where none was given.
        card: The card's name where the limit is on one, else empty.
        limit: The limit that the allocator may use; None where none was given.
        need: What is held against it; None where it was not worked out.
        need_of: Which number that is.
        headline: The answer in one line.
        cautions: What makes the figures worse than they look, in few words each, the worst first.
    """

    outcome: Outcome
    basis: Basis
    limit_of: LimitOf | None
    card: str
    limit: Bounds | None
    need: Bounds | None
    need_of: NeedOf
    headline: str
    cautions: tuple[str, ...] = ()

    @property
    def margin_bytes(self) -> int | None:
        """The limit less the need: negative where it is too much, None where one is not known."""
        if self.limit is None or self.need is None:
            return None
        return self.limit.bytes - self.need.bytes

    @property
    def fits(self) -> Fits:
        """The answer as the JSON's ``fits``: true, false, ``"may not"``, or null without a limit."""
        answers: dict[Outcome, Fits] = {
            Outcome.FITS: True,
            Outcome.DOES_NOT_FIT: False,
            Outcome.CANNOT_TELL: "may not",
        }
        return answers.get(self.outcome)

    def figures(self) -> VerdictFigures:
        """Return the verdict as the report has it, each number under one name."""
        limit, need = self.limit, self.need
        return VerdictFigures(
            outcome=self.outcome,
            basis=self.basis,
            limit_of=self.limit_of,
            card=self.card or None,
            limit_bytes=None if limit is None else limit.bytes,
            limit_low_bytes=None if limit is None else limit.low_bytes,
            limit_high_bytes=None if limit is None else limit.high_bytes,
            need_of=self.need_of,
            need_bytes=None if need is None else need.bytes,
            need_low_bytes=None if need is None else need.low_bytes,
            need_high_bytes=None if need is None else need.high_bytes,
            margin_bytes=self.margin_bytes,
            headline=self.headline,
            cautions=self.cautions,
        )


def outcome_of(
    basis: Basis, limit: Bounds, need: Bounds, *, runs_at_limit: bool, is_whole: bool
) -> Outcome:
    """Answer whether what needs so much fits under a limit.

    Args:
        basis: What the need rests on.
        limit: The limit.
        need: The need.
        runs_at_limit: Whether a replay under the very limit succeeds.
        is_whole: Whether the step came to its end, each of its tensors has a size and the trace is
            not damaged; else the need may be but a lower bound.
    """
    if basis is Basis.MEASURED:  # these very allocations: the replay knows
        if not runs_at_limit:
            return Outcome.DOES_NOT_FIT
        fits = need.bytes <= limit.low_bytes
    else:
        if need.low_bytes > limit.high_bytes:
            return Outcome.DOES_NOT_FIT
        fits = runs_at_limit and need.high_bytes <= limit.low_bytes
    return Outcome.FITS if fits and is_whole else Outcome.CANNOT_TELL


def headline_of(
    outcome: Outcome,
    limit_of: LimitOf,
    card: str,
    limit: Bounds,
    need: Bounds,
    *,
    is_whole: bool = True,
) -> str:
    """Return the answer in one line, such as ``FITS Tesla T4: needs 3.00 GiB of 13.42 GiB, ...``.

    Args:
        outcome: The answer.
        limit_of: Whether the limit is the card's or the user's.
        card: Name of the card; empty where there is none.
        limit: Bytes that the step may use.
        need: Bytes that it needs.
        is_whole: Whether the step ran to its end, so that the need is all of it.
    """
    what = card if limit_of is LimitOf.CARD else "the limit given"
    if limit_of is LimitOf.USER and card:
        what += f" on {card}"
    needs = "needs" if is_whole else "needs at least"
    if outcome is Outcome.CANNOT_TELL:
        return f"{_HEADS[outcome]} {what}: {needs} {need.told} of {limit.told}"
    margin = limit.bytes - need.bytes
    spare = f"{format_bytes(abs(margin))} {'to spare' if margin >= 0 else 'too much'}"
    sizes = f"{format_bytes(need.bytes)} of {format_bytes(limit.bytes)}"
    return f"{_HEADS[outcome]} {what}: {needs} {sizes}, {spare}"
