"""What ``analyze fit`` answers: one record, written as it is.

Schema version 1. Sizes are whole numbers of what was varied; bytes are whole bytes.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from analyzer.model.contract.report.finding import StepRemedy
from analyzer.model.contract.report.writing import build_schema

FIT_VERSION: Final = 1

AXIS_OF_N: Final = re.compile(r"(?<![A-Za-z0-9])(\d*)N(?![A-Za-z0-9])")
"""An axis that varies, as written: ``N``, or a multiple of it, ``32N``."""

LimitOwner = Literal["card", "given", "machine", "cards"]


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of the steady step at one size.

    Attributes:
        size: The size.
        requested_bytes: What its live tensors ask for.
        allocated_bytes: The chunks that hold them: under the limit, or with room for all where it fails.
        op: The op whose request makes the peak.
    """

    size: int
    requested_bytes: int
    allocated_bytes: int
    op: str


class PeakMove(msgspec.Struct, frozen=True, kw_only=True):
    """From a size on the peak is another op's.

    Attributes:
        from_size: The size.
        op, layer: Whose request makes the peak from there on.
        requested_bytes: The peak there.
    """

    from_size: int
    op: str
    layer: str
    requested_bytes: int


class CardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one card.

    Attributes:
        id, name: The card.
        memory_bytes: What CUDA reports as its memory.
        limit_bytes: What TensorFlow's allocator may use of it.
        largest, safe: As in ``FitAnswer``; None where only the wanted size was asked about.
        holds_wanted: Whether the wanted size fits; None where none was wanted.
    """

    id: str
    name: str
    memory_bytes: int
    limit_bytes: int
    largest: int | None
    safe: int | None
    holds_wanted: bool | None


class ConfirmingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the step that was to confirm the answer.

    Attributes:
        size: The size that it ran with.
        ran: Whether it came to its end.
        peak_bytes: Allocated bytes at its peak; None where it did not end.
        detail: What stopped it; empty where nothing did.
    """

    size: int
    ran: bool
    peak_bytes: int | None = None
    detail: str = ""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of the size found and of the next ones.

    Attributes:
        by: ``phantom`` (TensorFlow's GPU runtime without a card) or ``cpu`` (TensorFlow's allocator
            under the limit, kernels and all).
        runs: By size, rising.
        predicted: The largest size before any run.
    """

    by: Literal["phantom", "cpu"]
    runs: tuple[ConfirmingRun, ...]
    predicted: int


class FormsUsed(msgspec.Struct, frozen=True, kw_only=True):
    """How the sizes between were worked out.

    Attributes:
        captured_at: Sizes at which the step was captured.
        checked_at: Sizes among them at which the closed forms, made from others, were found right.
        planned_at: Sizes at which a compiler planned the step's memory; empty where XLA compiles none.
        is_closed_form: Whether other sizes are closed forms; else each figure is of a capture.
        why_not: Why there are none; empty where there are.
        swaps: Whether TensorFlow swaps tensors to the host about the largest size: which, is chance.
        another_from: Where TensorFlow's optimiser makes another graph of larger sizes, which does not
            fit: the least of them that was captured; between it and the largest, which graph is made is
            not known. None where the largest size is not for that reason.
    """

    captured_at: tuple[int, ...]
    checked_at: tuple[int, ...]
    planned_at: tuple[int, ...] = ()
    is_closed_form: bool
    why_not: str = ""
    swaps: bool = False
    another_from: int | None = None


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The largest size that fits.

    Attributes:
        schema_version: Which form of this record.
        kind: Always ``fit``.
        target: As the user named it.
        varied: What the size is of: ``batch size`` or ``input size``.
        shape: Of an input size: the inputs' axes as written, ``tokens=N`` or ``32N,32N,3``; the size is
            that N. Empty for the batch.
        batch_size: Of an input size: the batch; None for a batch size, or the target's own batch.
        mode, jit, optimizer, dtype_policy: How the step is run.
        device: ``cpu`` or ``gpu``.
        card: The catalogue's name of the card; empty for none.
        card_name: What the driver calls it.
        limit_of: Whose limit: the card's, the one given, this machine's memory, each card's of many.
        limit_bytes, limit_low_bytes, limit_high_bytes: What the allocator may use; of many cards the
            most, the least and the most.
        largest: The largest size that fits; 0 where not even 1 does; of many cards on the one that
            holds most.
        safe: The largest that fits in every order of ops that was drawn, with a margin and at the least
            that the limit may be.
        most: Above this it fits in none.
        in_each: The largest that fits in each order that was drawn, without a margin: where it is less
            than ``largest``, chance decides between them.
        orders_drawn: Orders of the ops that were tried at ``largest``, those of an estimate there; 0
            where none was.
        orders_fitting: In how many of them ``largest`` fits.
        taken: The largest size that the step takes, whatever the memory; None where none was refused.
        refusal: What was said of the next one; empty where none was refused.
        peak_requested_bytes, peak_allocated_bytes: At ``largest``; None where that is 0.
        wanted: A size asked about; None for none.
        wanted_fits: Whether it fits; None where none was asked about.
        forms: How the sizes between were worked out.
        curve: The peak against the size.
        moves: Where the peak moves to another op.
        cards: Cards of the catalogue, in order of memory; empty where not asked for.
        confirmation: Runs; None for none.
        remedies: What else could be changed, the one that saves most first.
        headline: The answer in one line.
        notes: Sentences for the reader.
        versions: Of TensorFlow, Keras and this package.
    """

    schema_version: int = FIT_VERSION
    kind: Literal["fit"] = "fit"
    target: str
    varied: Literal["batch size", "input size"]
    shape: str = ""
    batch_size: int | None = None
    mode: str
    jit: bool
    optimizer: str
    dtype_policy: str
    device: Literal["cpu", "gpu"]
    card: str
    card_name: str
    limit_of: LimitOwner
    limit_bytes: int
    limit_low_bytes: int
    limit_high_bytes: int
    largest: int
    safe: int
    most: int
    in_each: int = 0
    orders_drawn: int = 0
    orders_fitting: int = 0
    taken: int | None = None
    refusal: str = ""
    peak_requested_bytes: int | None
    peak_allocated_bytes: int | None
    wanted: int | None = None
    wanted_fits: bool | None = None
    forms: FormsUsed
    curve: tuple[CurvePoint, ...] = ()
    moves: tuple[PeakMove, ...] = ()
    cards: tuple[CardAnswer, ...] = ()
    confirmation: Confirmation | None = None
    remedies: tuple[StepRemedy, ...] = ()
    headline: str = ""
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @property
    def noun(self) -> str:
        """What a size is one of: ``batch`` or ``input``."""
        return "input" if self.shape else "batch"

    @property
    def remedied(self) -> int:
        """The size at which remedies are tried: the one asked about, else the largest."""
        return self.wanted or max(self.largest, 1)

    def label(self, size: int) -> str:
        """Return a size as it is written: ``8``, ``tokens=64``, ``224,224,3``."""
        return shape_at(self.shape, size) if self.shape else str(size)


def shape_at(shape: str, size: int) -> str:
    """Return inputs' axes with a number in the place of N.

    >>> shape_at("image=32N,32N,3 tokens=N", 4)
    'image=128,128,3 tokens=4'

    Args:
        shape: The axes of one input or more, apart from each other by spaces.
        size: The number.
    """
    parts = []
    for part in shape.split(" "):
        name, equals, axes = part.rpartition("=")
        parts.append(
            name + equals + AXIS_OF_N.sub(lambda axis: str(int(axis[1] or 1) * size), axes)
        )
    return " ".join(parts)


def fit_schema_text() -> str:
    """Return the JSON Schema of what ``analyze fit --json`` writes, ``docs/fit.schema.json``."""
    return build_schema("What analyze fit writes with --json", FitAnswer)


def encode_answer(answer: FitAnswer) -> bytes:
    """Return an answer as JSON text."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"


def decode_answer(content: bytes) -> FitAnswer:
    """Return the answer that ``encode_answer`` wrote.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return msgspec.json.decode(content, type=FitAnswer)
