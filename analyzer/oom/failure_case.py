"""One failure with what was worked out of it, and the verdict on it: what the rules judge and say."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.cards import gpus_named
from analyzer.model.choice import Choice
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.oom.amounts import Amount, exactly
from analyzer.oom.asked import AskedBytes
from analyzer.oom.crowds import SizeCrowd
from analyzer.oom.log_records import DriverRefusal, Mishap, MishapKind, SeenCard
from analyzer.oom.occupied import Occupied


class Cause(Choice):
    """Why a request failed."""

    LARGER_THAN_CARD = "larger-than-card"
    LARGER_THAN_LIMIT = "larger-than-limit"
    FRAGMENTED = "fragmented"
    WASTED = "wasted-in-chunks"
    FULL = "full"
    DRIVER_REFUSED = "driver-refused"
    HELD_BY_OTHERS = "held-by-others"
    BESIDE_THE_POOL = "beside-the-pool"
    HOST = "host"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCase:
    """One failure with what was worked out of it.

    Attributes:
        mishap: As it was read.
        asked: What was asked for; None where the log does not say.
        state: The allocator's state.
        card: What is known of the card; None for the host and where the log says nothing.
        crowds: The sizes in use.
        refusals: Runs of the driver's refusals before it.
    """

    mishap: Mishap
    asked: AskedBytes | None
    state: Occupied
    card: SeenCard | None
    crowds: list[SizeCrowd]
    refusals: list[DriverRefusal]

    @property
    def is_on_card(self) -> bool:
        """Whether the memory was a card's."""
        name = self.mishap.allocator.lower()
        if "host" in name or "cpu" in name or self.mishap.kind is MishapKind.HOST:
            return False
        return "gpu" in name or "GPU" in self.mishap.device or "gpu:" in self.mishap.device

    @property
    def is_pinned(self) -> bool:
        """Whether the memory was the machine's own, pinned for copies to a card."""
        return "host_bfc" in self.mishap.allocator.lower()

    @property
    def in_use_bytes(self) -> int | None:
        """What is in use, or None."""
        return None if self.state.in_use is None else self.state.in_use.middle

    @property
    def left(self) -> Amount | None:
        """What the limit leaves beside what is in use, wherever it lies."""
        state = self.state
        if state.limit is None or state.in_use is None:
            return None
        return state.limit.less(state.in_use)

    @property
    def card_total(self) -> Amount | None:
        """All of the card's memory: of the log, else of the catalogue by the card's name."""
        if self.mishap.card_total is not None:
            return exactly(self.mishap.card_total)
        if self.card is None:
            return None
        return self.card.total or catalogue_total(self.card.name)


@dataclass(slots=True)
class Judged:
    """A verdict.

    Attributes:
        cause: Why it failed.
        title: In one sentence with its figures.
        reasons: What it rests on.
        missing: Lines that the log lacks and that would have said more.
    """

    cause: Cause
    title: str
    reasons: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def catalogue_total(name: str) -> Amount | None:
    """Return what CUDA reports of a card by its name; None where the catalogue does not know it."""
    if not name:
        return None
    try:
        totals = [card.memory_bytes for card in gpus_named(name)]
    except InputError:
        return None
    return Amount(min(totals), max(totals))


def size_words(size: Amount) -> str:
    """Return an amount for a sentence: "about" where digits are lost that would show."""
    shown = format_bytes(size.middle)
    same = format_bytes(size.low) == format_bytes(size.high)
    return shown if same else f"about {shown}"
