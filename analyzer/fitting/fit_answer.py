"""The answer of ``analyze fit``: one record, written to JSON as it is.

A size is the batch, or the N in the axes of inputs; both sizes and bytes are whole numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from analyzer.capture.targets.target_spec import parse_shapes
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.fields import Lengths, ReportRecord
from analyzer.model.contract.report_file import StepRemedy
from analyzer.model.errors import FailureKind, InputError

# Origin of the limit: the card, the user, this machine's memory, or many cards.
LimitOwner = Literal["card", "given", "machine", "cards"]


class SizePoint(ReportRecord, frozen=True, kw_only=True):
    """The answer for one size: of a run on a simulated card, or of an estimate."""

    size: int
    fits: bool  # whether it ran, or whether its estimated need is within the limit
    # peak of the allocator in a run, or the least limit by estimate; None if a run failed
    need_bytes: int | None = None
    need_high_bytes: int | None = None  # upper bound of the need
    kind: FailureKind | None = None  # why it failed; None if it fits, or by estimate
    detail: str = ""  # the error in one line

    @property
    def has_failed(self) -> bool:
        """Whether it does not fit; a run that did not end in time says nothing."""
        return not self.fits and self.kind is not FailureKind.TIMED_OUT

    @property
    def is_refused(self) -> bool:
        """Whether it failed for another reason than memory."""
        memory = (None, FailureKind.OUT_OF_MEMORY, FailureKind.TIMED_OUT)
        return self.kind not in memory


class CardAnswer(ReportRecord, frozen=True, kw_only=True):
    """The answer for one card of the catalogue."""

    id: str
    memory_bytes: int
    limit_bytes: int  # the part of its memory that TensorFlow's allocator may use
    beside_pool_bytes: int = 0  # of CUDA's context and libraries
    # as in ``FitAnswer``, read from a line between needs; None if one size was asked about
    largest: int | None
    safe: int | None
    holds_wanted: bool | None  # whether the wanted size fits; None if none was given
    need_bytes: int | None = None  # of the allocator at that size; None if unknown
    price: float | None = None  # per hour, from the user's table; None without one


class FitAnswer(ReportRecord, frozen=True, kw_only=True):
    """The largest size that fits a memory limit."""

    schema_version: int = 4
    kind: Literal["fit"] = "fit"
    target: str
    shape: str = ""  # input axes with an N, such as ``tokens=N``; empty for the batch
    batch_size: int | None = None  # of an input-size search; None for the target's own
    mode: str
    jit: bool | None  # None if the search was interrupted before it was known
    optimizer: str
    dtype_policy: str
    options: tuple[str, ...] = ()  # the user's further options of the step, as words
    card: str  # names of the card in the catalogue and by its driver; empty for none
    card_name: str
    limit_of: LimitOwner
    # the allocator's limit and its bounds; of many cards the largest, the smallest and the largest
    limit_bytes: int
    limit_low_bytes: int
    limit_high_bytes: int
    # memory beside the pool on the card; 0 if the limit is the user's
    beside_pool_bytes: int = 0
    by: Literal["runs", "estimates"]  # on a simulated card, or of the graph
    largest: int  # the largest size that ran or fits; 0 if none does
    # the smallest larger size that does not; None if none was found
    failing: int | None = None
    safe: int  # its upper bound of the need fits what the largest size took
    bytes_per_example: int | None = None  # between the two largest sizes that fit
    wanted: int | None = None  # a size that the user asked about
    wanted_fits: bool | None = None
    points: tuple[SizePoint, ...] = ()  # by size
    next_command: str = ""
    # full length of each list that was shortened
    shortened: Lengths = {}
    # cards of the catalogue, by memory, or of the user's prices, the cheapest that fits first
    cards: tuple[CardAnswer, ...] = ()
    # Changes of the step, by saving, the largest first
    remedies: tuple[StepRemedy, ...] = ()
    headline: str = ""
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @property
    def noun(self) -> str:
        """``batch`` or ``input``."""
        return "input" if self.shape else "batch"

    @property
    def is_run(self) -> bool:
        """Whether the sizes ran on a simulated card."""
        return self.by == "runs"

    @property
    def size_of_remedies(self) -> int:
        """The size at which remedies are estimated: the wanted one, else the largest."""
        return self.wanted or max(self.largest, 1)

    def __repr__(self) -> str:
        return f"<fit of {self.target}: {self.headline}>"

    def label(self, size: int) -> str:
        """Return the text of a size: ``1,024``, ``tokens=64``, ``224,224,3``."""
        if self.shape:
            return insert_size(self.shape, size)

        return f"{size:,}"


def describe_cards(cards: Sequence[CardAnswer], answer: FitAnswer) -> str:
    """Return the answer for cards of one kind in a line; they are sorted by memory."""
    first = cards[0]
    last = cards[-1]

    if answer.wanted is None:
        return (
            f"about batch {first.largest:,} on {first.id} to {last.largest:,} on {last.id}"
            f" ({len(cards)} cards)"
        )

    fitting = [card for card in cards if card.holds_wanted]
    smallest = f", from {fitting[0].id} on" if fitting else ""

    return (
        f"batch {answer.wanted:,} fits {len(fitting)} of {len(cards)} cards{smallest}"
    )


# An axis that varies: ``N``, or a multiple of it, ``32N``.
_AXIS_OF_N = re.compile(r"(?<![A-Za-z0-9])(\d*)N(?![A-Za-z0-9])")

# Length of the longest varied axis at the first size, which most models accept.
_FIRST_LENGTH = 128

_FORMAT_HINT = "Write it as tokens=N or 32N,32N,3."


# The shapes with an N, such as ``32N,32N,3``; none if the batch varies.
Varied = tuple[str, ...]


def apply_size(varied: Varied, options: CaptureOptions, size: int) -> CaptureOptions:
    """Return the options of the step at a size."""
    if not varied:
        return replace(options, batch_size=size)

    shapes = parse_shapes([insert_size(shape, size) for shape in varied])
    return replace(options, shapes={**options.shapes, **shapes})


def choose_first_size(varied: Varied, options: CaptureOptions) -> int:
    """Return the size at which a search starts."""
    if not varied:
        return max(options.open_batch_size, 1)

    factors = []
    for shape in varied:
        factors += [int(factor or 1) for factor in _factors_of_n(shape)]

    return max(_FIRST_LENGTH // max(factors), 2)


def split_shapes(shapes: Sequence[str]) -> tuple[list[str], Varied]:
    """Separate shapes without an N from those with one."""
    varied = [shape for shape in shapes if _factors_of_n(shape)]
    fixed = [shape for shape in shapes if shape not in varied]

    return fixed, parse_varied(varied)


def parse_varied(shapes: Sequence[str]) -> Varied:
    """Return the meaning of a size for shapes with an N."""
    parsed = []

    for shape in shapes:
        name, equals, axes = shape.rpartition("=")

        plain = name.strip() + equals + "".join(axes.split()).upper()
        if not _factors_of_n(plain):
            raise InputError(f"The shape {shape!r} has no N.", _FORMAT_HINT)

        parse_shapes([insert_size(plain, 1)])  # raises if it is not a shape
        parsed.append(plain)

    return tuple(parsed)


def _factors_of_n(shape: str) -> list[str]:
    """Return the digits before each N of a shape; ``""`` for a bare N."""
    return _AXIS_OF_N.findall(shape.rpartition("=")[2].upper())


def insert_size(shape: str, size: int) -> str:
    """Replace N by a number in the axes of one or more inputs, separated by spaces.

    >>> insert_size("image=32N,32N,3 tokens=N", 4)
    'image=128,128,3 tokens=4'
    """

    def multiply(axis: re.Match[str]) -> str:
        return str(int(axis[1] or 1) * size)

    parts = []
    for part in shape.split(" "):
        name, equals, axes = part.rpartition("=")
        parts.append(name + equals + _AXIS_OF_N.sub(multiply, axes))

    return " ".join(parts)
