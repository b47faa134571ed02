"""The JSON document of ``analyze device``: a card's memory in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

from analyzer.model.contract.child_messages import AllocatorFigures
from analyzer.model.contract.fields import ReportRecord
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

DEVICE_VERSION: Final = 1

Source = Literal["tensorflow", "driver", "difference", "predicted", "reports"]


class CardPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a card's memory."""

    id: str  # stable name of the part
    what: str
    low_bytes: int  # its size; different if it is known within bounds only
    high_bytes: int
    source: Source  # source of the figure
    note: str = ""  # A remark for the reader


def card_part(
    ident: str, what: str, low: int, high: int, source: Source, note: str = ""
) -> CardPart:
    """Return a part of a card's memory of ``low`` to ``high`` bytes."""
    return CardPart(id=ident, what=what, low_bytes=low, high_bytes=high, source=source, note=note)


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


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory outside TensorFlow's pool after one stage of a measured process."""

    what: str
    outside_bytes: int  # the driver's figure of the process minus the pool
    added_bytes: int  # difference from the stage before


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The whole account."""

    schema_version: int = DEVICE_VERSION
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


_LONGEST: Final = 200  # characters of a value
_OTHER: Final = "other"
_JAX_PREFIXES: Final = ("XLA_PYTHON_CLIENT_", "XLA_CLIENT_MEM_FRACTION", "JAX_")
_JAX_EFFECT: Final = "read by JAX only: no effect on TensorFlow's pool"

_PROGRAM_SETTINGS: Final[Mapping[str, str]] = {
    "allow_growth": "set in the program: the pool grows on demand",
    "per_process_gpu_memory_fraction": "limit: this share of the card; above 1, unified memory",
    "experimental": "set in the program: virtual devices with their own limits, the async allocator",
}
"""Effects of the fields of ``GPUOptions``."""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable or field of ``GPUOptions``, its untrusted value, and the effect."""

    name: str
    value: str
    does: str


@cache
def _effects() -> dict[str, dict[str, str]]:
    text = (files("analyzer.session") / "device_switches.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, dict[str, str]])


def switches_of(
    environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> tuple[Switch, ...]:
    """Return the active settings, first the fields of ``GPUOptions`` that the program set."""
    return tuple(
        Switch(name=name, value=value[:_LONGEST], does=effect)
        for name, value, effect in _active_settings(environment, settings or {})
    )


def _active_settings(
    environment: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for name, value in settings.items():
        if value and name in _PROGRAM_SETTINGS:
            yield name, value, _PROGRAM_SETTINGS[name]
    for name, effects in _effects().items():
        value = environment.get(name, "")
        if name in environment:
            is_hidden = name == "CUDA_VISIBLE_DEVICES" and not value.strip()
            yield name, value, effects.get("-1" if is_hidden else value.strip(), effects[_OTHER])
    for name in sorted(environment):
        if name.startswith(_JAX_PREFIXES):
            yield name, environment[name], _JAX_EFFECT


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
