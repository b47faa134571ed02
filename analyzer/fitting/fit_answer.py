"""The answer of ``analyze fit``: one record, written to JSON as it is.

A size is the batch, or the N of an input; both sizes and bytes are whole numbers.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from markupsafe import escape

from analyzer.model.contract.report.oom_file import OomDocument
from analyzer.model.contract.report.subject import StepRemedy
from analyzer.model.errors import FailureKind

FIT_VERSION: Final = 2

AXIS_OF_N: Final = re.compile(r"(?<![A-Za-z0-9])(\d*)N(?![A-Za-z0-9])")
"""An axis that varies: ``N``, or a multiple of it, ``32N``."""

LimitOwner = Literal["card", "given", "machine", "cards"]
"""Origin of the limit: the card, the user, this machine's memory, or many cards."""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate of the step at one size."""

    size: int
    requested_bytes: int  # peak of the steady step
    allocated_bytes: int
    need_bytes: int  # the smallest limit of TensorFlow's pool under which the step runs
    need_low_bytes: int
    need_high_bytes: int
    op: str  # the op whose allocation makes the peak; empty if none does


class CardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one card of the catalogue."""

    id: str
    name: str
    memory_bytes: int
    limit_bytes: int  # the part of its memory that TensorFlow's allocator may use
    largest: int | None  # as in ``FitAnswer``, interpolated between estimates; None if not searched
    safe: int | None
    most: int | None = None  # larger sizes do not fit even with the lower bound of the need
    holds_wanted: bool | None  # whether the wanted size fits; None if none was given
    price: float | None = None  # per hour, from the user's table; None without one


class SizeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A size at which the step cannot be made or run; ``detail`` is the error in one line."""

    size: int
    kind: FailureKind
    detail: str


class ConfirmingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the step that tests the answer: all steps finished, or the reason and the error."""

    size: int
    ran: bool
    kind: FailureKind | None = None
    detail: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether it failed; a run that did not end in time says nothing."""
        return not self.ran and self.kind is not FailureKind.TIMED_OUT

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        if self.ran:
            return "ran"
        words = {
            FailureKind.TIMED_OUT: "did not end in time",
            FailureKind.OUT_OF_MEMORY: "ran out of memory",
        }
        kind = self.kind or FailureKind.OTHER
        return words.get(kind, f"failed ({kind})")


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """Runs at and around the predicted size."""

    # ``phantom`` (TensorFlow's GPU runtime on a simulated card) or ``cpu`` (TensorFlow's CPU
    # allocator under the limit; the kernels run)
    by: Literal["phantom", "cpu"]
    runs: tuple[ConfirmingRun, ...]
    predicted: int  # the largest size by the estimates


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The largest size that fits a memory limit."""

    schema_version: int = FIT_VERSION
    kind: Literal["fit"] = "fit"
    target: str
    varied: Literal["batch size", "input size"]
    shape: str = ""  # input axes with an N, such as ``tokens=N``; empty for the batch
    batch_size: int | None = None  # of an input-size search; None for the target's own
    mode: str
    jit: bool
    optimizer: str
    dtype_policy: str
    options: tuple[str, ...] = ()  # the user's further options of the step, as words
    device: Literal["cpu", "gpu"]
    card: str  # names of the card in the catalogue and by its driver; empty for none
    card_name: str
    limit_of: LimitOwner
    # the allocator's limit and its bounds; of many cards the largest, the smallest and the largest
    limit_bytes: int
    limit_low_bytes: int
    limit_high_bytes: int
    beside_pool_bytes: int = 0  # memory beside the pool on the card; 0 if the limit is the user's
    # the largest size that fits: by a run if there were runs, else by the expected need; 0 if none
    # fits. Of many cards, on the card that holds most.
    largest: int
    # the smallest larger size that failed in a run, is not possible, or whose expected need exceeds
    # the limit; None if none was found
    failing: int | None = None
    safe: int  # the largest size whose upper bound of the need fits the lower bound of the limit
    most: int | None = None  # larger sizes do not fit even with the lower bound of the need
    refused: SizeFailure | None = None  # the smallest failure for a reason other than memory
    # peak at ``largest``, of an estimate or interpolated; None if ``largest`` is 0
    peak_requested_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    # the need as a straight line in the batch size, fitted to the estimates that fit; at least the
    # variables are fixed. None for an input size, and if the need is not close to a line.
    fixed_bytes: int | None = None
    bytes_per_example: int | None = None
    wanted: int | None = None  # a size that the user asked about
    wanted_fits: bool | None = None
    captured_at: tuple[int, ...] = ()  # sizes that were estimated, rising
    swaps: bool = False  # whether TensorFlow swaps tensors to the host at one of these sizes
    curve: tuple[CurvePoint, ...] = ()
    next_command: str = ""
    # cards of the catalogue, by memory, or of the user's prices, the cheapest that fits first
    cards: tuple[CardAnswer, ...] = ()
    cheapest: str = ""  # the cheapest card that holds the wanted size; empty without prices
    confirmation: Confirmation | None = None
    remedies: tuple[StepRemedy, ...] = ()  # changes of the step, by saving, the largest first
    headline: str = ""
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @property
    def noun(self) -> str:
        """``batch`` or ``input``."""
        return "input" if self.shape else "batch"

    @property
    def is_priced(self) -> bool:
        """Whether the cards are those of the user's prices."""
        return bool(self.cards) and self.cards[0].price is not None

    @property
    def runs(self) -> tuple[ConfirmingRun, ...]:
        """The runs, by size."""
        return () if self.confirmation is None else self.confirmation.runs

    @property
    def is_bracketed(self) -> bool:
        """Whether ``largest`` ran and the next size failed in a run."""
        has_run = any(run.ran and run.size == self.largest for run in self.runs)
        return has_run and any(run.has_failed and run.size == self.largest + 1 for run in self.runs)

    @property
    def size_of_remedies(self) -> int:
        """The size at which remedies are estimated: the wanted one, else the largest."""
        return self.wanted or max(self.largest, 1)

    def __repr__(self) -> str:
        return f"<fit of {self.target}: {self.headline}>"

    def _repr_html_(self) -> str:
        from analyzer.fitting.fit_document import build_fit_document
        from analyzer.report.render.page_shell import to_page

        page = escape(to_page(build_fit_document(self)))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 640px; border: 0"></iframe>'

    def label(self, size: int) -> str:
        """Return the text of a size: ``1,024``, ``tokens=64``, ``224,224,3``."""
        return insert_size(self.shape, size) if self.shape else f"{size:,}"


class LogAnswer(OomDocument, frozen=True, kw_only=True):
    """The document of ``analyze oom LOG --fit``: the log, and the batch that fits its card."""

    fit: FitAnswer


def insert_size(shape: str, size: int) -> str:
    """Replace N by a number in the axes of one or more inputs, separated by spaces.

    >>> insert_size("image=32N,32N,3 tokens=N", 4)
    'image=128,128,3 tokens=4'
    """
    parts = []
    for part in shape.split(" "):
        name, equals, axes = part.rpartition("=")
        numbers = AXIS_OF_N.sub(lambda axis: str(int(axis[1] or 1) * size), axes)
        parts.append(name + equals + numbers)
    return " ".join(parts)
