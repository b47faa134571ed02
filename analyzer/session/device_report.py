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

from analyzer.cards import process_overhead
from analyzer.cards.catalogue import look_up_gpu
from analyzer.cards.driver_reading import read_cards
from analyzer.model.contract.child_messages import (
    AllocatorFigures,
    NvmlCard,
    NvmlReading,
    ProcessFigures,
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
    """A part of a card's memory, between two bounds that are equal if its size is exact."""

    id: str
    what: str
    low_bytes: int
    high_bytes: int
    source: Source
    note: str = ""


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card; its exact parts add up to ``total_bytes``."""

    index: int  # the driver's
    name: str
    total_bytes: int
    rows: tuple[CardPart, ...]
    notes: tuple[str, ...] = ()


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The JSON document of ``analyze device``."""

    schema_version: int = 2
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
    from analyzer.capture.run.allocator_figures import read_process_figures

    figures = read_process_figures()
    if figures.reading is None and not figures.allocators:
        return DeviceReport(DeviceFile(headline=figures.refusal))
    return DeviceReport(divide_process(figures))


def read_machine() -> DeviceReport:
    """Return the driver's figures of this machine's cards, without TensorFlow."""
    try:
        reading = read_cards()
    except InputError as error:
        return DeviceReport(DeviceFile(headline=error.message))

    return DeviceReport(divide_machine(reading))


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


def divide_process(figures: ProcessFigures) -> DeviceFile:
    """Return TensorFlow's and the driver's figures of one process side by side."""
    reading = figures.reading or NvmlReading(cards=())
    is_only = len(reading.cards) == 1  # then no identifier has to match
    cards = []

    for card in reading.cards:
        identifiers = (card.uuid, "") if is_only else (card.uuid,)
        own = [one for one in figures.allocators if one.card_uuid in identifiers]
        cards.append(_divide_card(card, own))

    missing = f"{figures.refusal} The driver's figures are missing."
    return DeviceFile(
        headline=_describe_process(figures, reading),
        cards=tuple(cards),
        notes=() if figures.reading else (missing,),
    )


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


def _describe_process(figures: ProcessFigures, reading: NvmlReading) -> str:
    allocators = figures.allocators
    if not allocators:
        return "TensorFlow sees no GPU in this process."

    least = "" if all(one.is_pool_exact for one in allocators) else "at least "
    in_use = format_bytes(sum(one.in_use_bytes for one in allocators))
    pool = format_bytes(sum(one.pool_low_bytes for one in allocators))
    text = (
        f"Process {figures.pid}: tensors hold {in_use}, TensorFlow's pool {least}{pool}"
    )
    shown = [_find_own_bytes(card) for card in reading.cards]
    own = [size for size in shown if size is not None]

    if own:
        text += f", the process {format_bytes(sum(own))} according to the driver (nvidia-smi)"
    return f"{text}."


def _divide_card(card: NvmlCard, allocators: Sequence[AllocatorFigures]) -> CardAccount:
    own = _find_own_bytes(card)
    rows: list[CardPart] = []
    known = 0

    if allocators:
        rows += _list_own_parts(card, allocators)
        pools = sum(one.pool_low_bytes for one in allocators)
        known = pools if own is None else own

    others = list(_list_processes(card, is_own_divided=bool(allocators)))
    rows += others
    known += sum(row.high_bytes for row in others)
    reserved = card.reserved_bytes or 0
    rest = card.total_bytes - reserved - card.free_bytes - known

    if rest > 0:
        rows.append(
            _make_exact("unattributed", "used, not shown for any process", rest)
        )

    if reserved:
        rows.append(
            _make_exact("reserved", "reserved by the driver and the firmware", reserved)
        )

    rows.append(_make_exact("free", "free", card.free_bytes))
    return CardAccount(
        index=card.index,
        name=card.name,
        total_bytes=card.total_bytes,
        rows=tuple(rows),
        notes=tuple(_list_notes(card, allocators)),
    )


def _make_exact(ident: str, what: str, size: int, note: str = "") -> CardPart:
    """Return a part whose size the driver states."""
    return CardPart(ident, what, size, size, "driver", note)


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
    in_use = sum(one.in_use_bytes for one in allocators)
    low = high = sum(one.pool_low_bytes for one in allocators)
    note = ""

    if own is not None and not all(one.is_pool_exact for one in allocators):
        gpu = look_up_gpu(card.name)
        least_outside = 0 if gpu is None else process_overhead(gpu).range.low
        limits = [
            own if one.limit_bytes is None else one.limit_bytes for one in allocators
        ]
        high = max(low, min(own - least_outside, sum(limits)))
        note = "Only regions with a tensor of this program are visible."

    yield CardPart("in-use", "in use by tensors", in_use, in_use, "tensorflow")
    idle = "in TensorFlow's pool, not in use"
    low_idle, high_idle = low - in_use, high - in_use
    yield CardPart("pool-unused", idle, low_idle, high_idle, "difference", note)

    if own is not None:
        outside = "outside the pool: CUDA context, libraries, kernels"
        least, most = max(own - high, 0), max(own - low, 0)
        yield CardPart("outside-pool", outside, least, most, "difference")


def _list_processes(card: NvmlCard, *, is_own_divided: bool) -> Iterator[CardPart]:
    """Yield a part for each process, except this one if its parts are known."""
    for process in card.processes:
        if process.is_own and is_own_divided:
            continue

        what = f"process {process.pid} ({process.name or 'name not visible here'})"
        note = ""
        if process.used_bytes is None:
            note = f"The driver does not report the memory of process {process.pid}."

        yield _make_exact("other-process", what, process.used_bytes or 0, note)


def _list_notes(
    card: NvmlCard, allocators: Sequence[AllocatorFigures]
) -> Iterator[str]:
    has_tensors = any(one.peak_in_use_bytes for one in allocators)
    if has_tensors and not any(process.is_own for process in card.processes):
        yield _HIDDEN_PROCESS
    if card.is_partitioned:
        yield "The card is partitioned into instances (MIG): the figures are the whole card's."

    for one in allocators:
        if one.limit_bytes is None:
            continue

        growth = "takes it at its first tensor"
        if one.grows is not False:
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
    rows = []

    for row in card.rows:
        low, high = format_bytes(row.low_bytes), format_bytes(row.high_bytes)
        size = low if low == high else f"{low} to {high}"
        rows.append((size, row.what, LABELS["source"][row.source]))

    notes = [row.note for row in card.rows if row.note]
    paragraphs = map(Paragraph, (*notes, *card.notes))
    heading = f"Card {card.index}: {card.name}, {format_bytes(card.total_bytes)}"

    return Section(heading, (Table(columns, tuple(rows)), *paragraphs))
