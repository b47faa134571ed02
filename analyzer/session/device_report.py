"""A card's memory in parts that add up to the card: of this process, or of the machine.

Each part has its source: TensorFlow's statistics, the driver (NVML), or their difference.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import field

from analyzer.cards.driver_reading import own_pids, read_cards
from analyzer.model.contract.child_messages import (
    AllocatorFigures,
    NvmlCard,
    NvmlReading,
)
from analyzer.model.contract.fields import Lengths, ReportRecord
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.report.answer import LABELS
from analyzer.report.output_files import DocumentOutput
from analyzer.report.render.sections import (
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
)

Source = Literal["tensorflow", "driver", "difference"]

_HIDDEN_PROCESS: Final = (
    "The driver does not show this process, as in a container: its memory outside the "
    "pool and other processes are in one row."
)


class CardPart(msgspec.Struct, frozen=True):
    """A part of a card's memory."""

    id: str
    what: str
    size_bytes: int
    source: Source = "driver"
    note: str = ""


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card; its parts add up to ``total_bytes``."""

    index: int  # the driver's
    name: str
    total_bytes: int
    rows: tuple[CardPart, ...]
    notes: tuple[str, ...] = ()


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The JSON document of ``analyze device``."""

    schema_version: int = 3
    kind: Literal["device"] = "device"
    headline: str
    cards: tuple[CardAccount, ...] = ()
    notes: tuple[str, ...] = ()
    next_command: str = "analyze trace train.py"
    # full length of each list that was shortened
    shortened: Lengths = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DeviceReport(DocumentOutput):
    """The parts of a card's memory; ``document`` is the JSON document."""

    document: DeviceFile

    def __str__(self) -> str:
        from rich.console import Console

        from analyzer.report.render.terminal import print_terminal

        text = io.StringIO()
        console = Console(file=text, width=100, no_color=True)
        print_terminal(build_sections(self.document), console)
        lines = text.getvalue().splitlines()

        return "\n".join(line.rstrip() for line in lines)


def device() -> DeviceReport:
    """Return the memory of this process as TensorFlow and the driver count it now.

    This initializes TensorFlow's devices, so call it after your program has configured them.
    """
    from analyzer.capture.run.allocator_figures import read_allocators

    allocators = read_allocators()
    try:
        return DeviceReport(divide_process(allocators, read_cards(own_pids())))
    except InputError as error:
        headline = error.message
        if allocators:
            headline = _describe_process(allocators, [])

        return DeviceReport(DeviceFile(headline=headline, notes=(error.message,)))


def read_machine() -> DeviceReport:
    """Return the driver's figures of this machine's cards, without TensorFlow."""
    try:
        return DeviceReport(divide_machine(read_cards()))
    except InputError as error:
        return DeviceReport(DeviceFile(headline=error.message))


def divide_machine(reading: NvmlReading) -> DeviceFile:
    """Return the cards of a machine as the driver counts them."""
    used = sum(card.used_bytes for card in reading.cards)
    total = sum(card.total_bytes for card in reading.cards)
    count = len(reading.cards)
    cards = "1 card" if count == 1 else f"{count} cards"

    return DeviceFile(
        headline=f"{cards}: {format_bytes(used)} of {format_bytes(total)} in use.",
        cards=tuple(_divide_card(card, ()) for card in reading.cards),
    )


def divide_process(
    allocators: Sequence[AllocatorFigures], reading: NvmlReading
) -> DeviceFile:
    """Return TensorFlow's and the driver's figures of one process side by side."""
    is_only = len(reading.cards) == 1  # then no identifier has to match
    cards = []

    for card in reading.cards:
        identifiers = (card.uuid, "") if is_only else (card.uuid,)
        own = [one for one in allocators if one.card_uuid in identifiers]
        cards.append(_divide_card(card, own))

    headline = _describe_process(allocators, reading.cards)
    return DeviceFile(headline=headline, cards=tuple(cards))


def build_sections(document: DeviceFile) -> Document:
    """Return the document as sections."""
    sections = [_make_card_section(card) for card in document.cards]
    if document.notes:
        sections.append(Section("", tuple(map(Paragraph, document.notes))))
    return Document(
        "",
        document.headline,
        sections=tuple(sections),
        next_command=document.next_command if sections else "",
    )


def _describe_process(
    allocators: Sequence[AllocatorFigures], cards: Sequence[NvmlCard]
) -> str:
    if not allocators:
        return "TensorFlow sees no GPU in this process."

    text = f"Tensors hold {format_bytes(sum(one.in_use_bytes for one in allocators))}"
    if not any(one.grows for one in allocators):
        pool = format_bytes(sum(one.pool_bytes for one in allocators))
        text += f", TensorFlow's pool {pool}"

    own = sum(_find_own_bytes(card) or 0 for card in cards)
    if own:
        text += (
            f", the process {format_bytes(own)} according to the driver (nvidia-smi)"
        )

    return f"{text}."


def _divide_card(card: NvmlCard, allocators: Sequence[AllocatorFigures]) -> CardAccount:
    rows: list[CardPart] = []
    if allocators:
        rows += _list_own_parts(card, allocators)

    rows += _list_processes(card, is_own_divided=bool(allocators))
    reserved = card.reserved_bytes or 0
    known = sum(row.size_bytes for row in rows) + reserved + card.free_bytes
    rest = card.total_bytes - known

    if rest > 0:
        rows.append(CardPart("unattributed", "used, not shown for any process", rest))
    if reserved:
        what = "reserved by the driver and the firmware"
        rows.append(CardPart("reserved", what, reserved))

    rows.append(CardPart("free", "free", card.free_bytes))
    return CardAccount(
        index=card.index,
        name=card.name,
        total_bytes=card.total_bytes,
        rows=tuple(rows),
        notes=tuple(_list_notes(card, allocators)),
    )


def _find_own_bytes(card: NvmlCard) -> int | None:
    """Return the driver's bytes for this process; None if it does not list them."""
    sizes = [one.used_bytes for one in card.processes if one.is_own]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _list_own_parts(
    card: NvmlCard, allocators: Sequence[AllocatorFigures]
) -> Iterator[CardPart]:
    """Yield this process' parts: tensors, the rest of the pool, and outside the pool."""
    own = _find_own_bytes(card)
    known = sum(one.in_use_bytes for one in allocators)
    yield CardPart("in-use", "in use by tensors", known, "tensorflow")

    outside = "outside the pool: CUDA context, libraries, kernels"
    if any(one.grows for one in allocators):
        outside = f"in TensorFlow's pool, which grows, and {outside}"
    else:
        idle = sum(one.pool_bytes - one.in_use_bytes for one in allocators)
        known += idle
        yield CardPart(
            "pool-unused", "in TensorFlow's pool, not in use", idle, "difference"
        )

    if own is not None:
        yield CardPart("outside-pool", outside, max(own - known, 0), "difference")


def _list_processes(card: NvmlCard, *, is_own_divided: bool) -> Iterator[CardPart]:
    """Yield a part for each process, except this one if its parts are known."""
    for process in card.processes:
        if process.is_own and is_own_divided:
            continue

        what = f"process {process.pid} ({process.name or 'name not visible here'})"
        note = ""
        if process.used_bytes is None:
            note = f"The driver does not report the memory of process {process.pid}."

        size_bytes = process.used_bytes or 0
        yield CardPart("other-process", what, size_bytes, note=note)


def _list_notes(
    card: NvmlCard, allocators: Sequence[AllocatorFigures]
) -> Iterator[str]:
    has_tensors = any(one.peak_in_use_bytes for one in allocators)
    if has_tensors and not any(process.is_own for process in card.processes):
        yield _HIDDEN_PROCESS
    if card.is_partitioned:
        yield "The card is partitioned into instances (MIG): the figures are the whole card's."

    for one in allocators:
        growth = "takes it at its first tensor"
        if one.grows:
            growth = "grows on demand up to it and is not returned"

        yield (
            f"{one.device}: limit {format_bytes(one.limit_bytes)}; the pool {growth}. "
            f"Most ever in use: {format_bytes(one.peak_in_use_bytes)}."
        )


def _make_card_section(card: CardAccount) -> Section:
    columns = (
        TableColumn("size", least=10),
        TableColumn("part", least=24),
        TableColumn("source", least=12, rank=1),
    )
    rows = [
        (format_bytes(row.size_bytes), row.what, LABELS["source"][row.source])
        for row in card.rows
    ]
    notes = [row.note for row in card.rows if row.note]
    paragraphs = map(Paragraph, (*notes, *card.notes))
    heading = f"Card {card.index}: {card.name}, {format_bytes(card.total_bytes)}"

    return Section(heading, (Table(columns, tuple(rows)), *paragraphs))
