"""The JSON document of ``analyze device``: a card's memory in parts, and its drawing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from analyzer.model.contract.child_messages import AllocatorFigures
from analyzer.model.contract.fields import ReportRecord
from analyzer.model.tables import read_table
from analyzer.model.units import format_bytes
from analyzer.report.render.sections import Block, Document, Paragraph, Section, Table, TableColumn
from analyzer.report.summary import LABELS

Source = Literal["tensorflow", "driver", "difference", "predicted", "reports"]


class CardPart(msgspec.Struct, frozen=True):
    """A part of a card's memory."""

    id: str  # stable name of the part
    what: str
    low_bytes: int  # its size; different if it is known within bounds only
    high_bytes: int
    source: Source  # source of the figure
    note: str = ""  # A remark for the reader


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card."""

    index: int  # the driver's
    name: str
    uuid: str
    total_bytes: int  # as ``nvidia-smi`` shows them
    used_bytes: int
    free_bytes: int
    compute_mode: str
    rows: tuple[CardPart, ...]  # its memory in parts; exact parts add up to ``total_bytes``
    # the driver's figure of the process that was read; None if it shows none
    own_bytes: int | None = None
    # memory that TensorFlow would take now without settings; None if it has taken it already, or
    # the card is not in the catalogue
    would_take_bytes: int | None = None
    notes: tuple[str, ...] = ()  # reasons why a figure is not exact


class StageRow(msgspec.Struct, frozen=True):
    """Memory outside TensorFlow's pool after one stage of a measured process."""

    what: str
    outside_bytes: int  # the driver's figure of the process minus the pool
    added_bytes: int  # difference from the stage before


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The whole account."""

    schema_version: int = 1
    kind: Literal["device"] = "device"
    headline: str  # the answer in one line
    driver: str = ""  # the driver's version; empty without one
    cards: tuple[CardAccount, ...] = ()  # one for each card
    # TensorFlow's own figures; empty if TensorFlow was not asked
    allocators: tuple[AllocatorFigures, ...] = ()
    # the process of these figures, or the process asked about; None for neither
    pid: int | None = None
    libraries: tuple[str, ...] = ()  # CUDA libraries that the process has loaded
    switches: tuple[Switch, ...] = ()  # active settings
    stages: tuple[StageRow, ...] = ()  # memory by stage; empty unless it was measured
    is_phantom: bool = False  # whether the cards are simulated
    notes: tuple[str, ...] = ()  # plain sentences
    next_command: str = "analyze trace train.py"  # which tensors of a script use the memory


class Switch(msgspec.Struct, frozen=True):
    """An environment variable or field of ``GPUOptions``, its untrusted value, and the effect."""

    name: str
    value: str
    does: str


def switches_of(
    environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> tuple[Switch, ...]:
    """Return the active settings, first the fields of ``GPUOptions`` that the program set."""
    own = {f"GPUOptions.{name}": value for name, value in (settings or {}).items() if value}
    values = {**environment, **own}
    table = read_table("session/device_switches.toml", dict[str, dict[str, str]])
    found = []
    for name, effects in table.items():
        if name in values:
            value = values[name].strip()
            is_hidden = name == "CUDA_VISIBLE_DEVICES" and not value
            effect = effects.get("-1" if is_hidden else value, effects["other"])
            found.append(Switch(name.removeprefix("GPUOptions."), values[name][:200], effect))
    return tuple(found)


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
    return Document(
        "",
        document.headline,
        lead=lead,
        sections=tuple(sections),
        next_command=document.next_command if sections else "",
    )


def _card_section(card: CardAccount) -> Section:
    columns = (
        TableColumn("size", least=10),
        TableColumn("part", least=24),
        TableColumn("source", least=12, rank=1),
    )
    rows = []
    for row in card.rows:
        sizes = dict.fromkeys((format_bytes(row.low_bytes), format_bytes(row.high_bytes)))
        rows.append((" to ".join(sizes), row.what, LABELS["source"][row.source]))
    notes = [row.note for row in card.rows if row.note]
    if card.would_take_bytes is not None:
        notes.append(
            f"TensorFlow would take {format_bytes(card.would_take_bytes)} of it now: the free memory "
            "minus a context and its reserve; with growth, as much as it needs up to that."
        )
    blocks: list[Block] = [Table(columns, tuple(rows)), *map(Paragraph, (*notes, *card.notes))]
    heading = f"Card {card.index}: {card.name}, {format_bytes(card.total_bytes)}"
    return Section(heading, tuple(blocks))
