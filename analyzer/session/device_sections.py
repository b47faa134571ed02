"""The account of a card as sections for the terminal; it computes no figures."""

from __future__ import annotations

from typing import Final

from analyzer.model.units import format_bytes
from analyzer.report.render.sections import (
    Block,
    CellValue,
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
)
from analyzer.session.device_file import CardAccount, CardPart, DeviceFile

_SOURCES: Final = {
    "tensorflow": "TensorFlow",
    "driver": "the driver",
    "difference": "difference",
    "predicted": "predicted",
    "reports": "public reports",
}


def build_sections(document: DeviceFile) -> Document:
    """Return the account as sections."""
    sections = []
    if document.stages:
        columns = (TableColumn("added", "bytes"), TableColumn("total", "bytes"))
        rows = tuple((one.added_bytes, one.outside_bytes, one.what) for one in document.stages)
        table = Table((*columns, TableColumn("outside the pool", least=24)), rows)
        sections.append(Section("", (table,)))
    sections += [_card_section(card) for card in document.cards]
    if document.switches and (document.cards or document.allocators):
        lines = (f"{one.name}={one.value}: {one.does}" for one in document.switches)
        sections.append(Section("Settings", tuple(map(Paragraph, lines))))
    if document.notes:
        sections.append(Section("", tuple(map(Paragraph, document.notes))))
    phantom = "Simulated card: TensorFlow's own runtime without the memory of CUDA's libraries."
    lead = (Paragraph(phantom, "strong"),) if document.is_phantom else ()
    return Document("", document.headline, lead=lead, sections=tuple(sections))


def _card_section(card: CardAccount) -> Section:
    columns = (
        TableColumn("size", least=10),
        TableColumn("part", least=24),
        TableColumn("source", least=12, rank=1),
    )
    rows: tuple[tuple[CellValue, ...], ...] = tuple(
        (_size_words(row), row.what, _SOURCES[row.source]) for row in card.rows
    )
    blocks: list[Block] = [Table(columns, rows)]
    blocks += [Paragraph(row.note) for row in card.rows if row.note]
    if card.would_take_bytes is not None:
        blocks.append(
            Paragraph(
                f"TensorFlow would take {format_bytes(card.would_take_bytes)} of it now: the free "
                "memory minus a context and its reserve; with growth, as much as it needs up to that."
            )
        )
    blocks += map(Paragraph, card.notes)
    heading = f"Card {card.index}: {card.name}, {format_bytes(card.total_bytes)}"
    return Section(heading, tuple(blocks))


def _size_words(row: CardPart) -> str:
    low, high = format_bytes(row.low_bytes), format_bytes(row.high_bytes)
    return low if row.low_bytes == row.high_bytes else f"{low} to {high}"
