"""The figures that are all called a card's memory, side by side: the JSON of ``analyze device``.

A card's rows add up to its memory, and each has its source: TensorFlow, the driver, or the difference of
the two. Where one is known within bounds alone, both ends are given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from analyzer.cards import Gpu, find_gpu, process_overhead
from analyzer.cards.card_memory import context_bytes, system_reserve
from analyzer.model.contract.device_figures import (
    AllocatorFigures,
    MeasuredStages,
    NvmlCard,
    NvmlReading,
    ProcessFigures,
)
from analyzer.model.contract.report.writing import build_schema
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.session.devices.switches import Switch, switches_of

DEVICE_VERSION: Final = 1

Source = Literal["tensorflow", "driver", "difference", "predicted", "reports"]


class CardPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a card's memory.

    Attributes:
        id: Stable name of the part.
        what: It in words.
        low_bytes, high_bytes: Its size; two figures where it is not known to the byte.
        source: Whose figure it is.
        note: What the reader should know of it.
    """

    id: str
    what: str
    low_bytes: int
    high_bytes: int
    source: Source
    note: str = ""


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card.

    Attributes:
        index: The driver's number.
        name, uuid: What the driver calls it.
        total_bytes, used_bytes, free_bytes: As ``nvidia-smi`` shows them.
        compute_mode: Whether several processes may use it.
        rows: Its memory, part by part; they add up to ``total_bytes`` wherever one is exact.
        own_bytes: The driver's figure of the process that was read in; None where it shows none.
        would_take_bytes: What TensorFlow would take of it now without any setting; None where it has it
            already, or the card is not in the catalogue.
        notes: What keeps a figure from being exact.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    compute_mode: str
    rows: tuple[CardPart, ...]
    own_bytes: int | None = None
    would_take_bytes: int | None = None
    notes: tuple[str, ...] = ()


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one more thing took of a card outside TensorFlow's pool, as a process of ours read it.

    Attributes:
        what: The thing.
        outside_bytes: The driver's figure of the process less the pool, after it.
        added_bytes: What it added to that.
    """

    what: str
    outside_bytes: int
    added_bytes: int


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole account.

    Attributes:
        headline: The answer in one line.
        driver: The driver's version; empty where there is none.
        cards: One for each card.
        allocators: TensorFlow's own figures; empty where no TensorFlow was asked.
        pid: The process that they are of, or that was asked about; None for none.
        libraries: CUDA libraries that it has loaded.
        switches: What is set.
        stages: What a process of ours took, thing by thing; empty unless that was asked for.
        is_phantom: The cards are not there.
        notes: Plain sentences.
    """

    schema_version: int = DEVICE_VERSION
    kind: Literal["device"] = "device"
    headline: str
    driver: str = ""
    cards: tuple[CardAccount, ...] = ()
    allocators: tuple[AllocatorFigures, ...] = ()
    pid: int | None = None
    libraries: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    stages: tuple[StageRow, ...] = ()
    is_phantom: bool = False
    notes: tuple[str, ...] = ()


def device_schema_text() -> str:
    """Return the JSON Schema of what ``analyze device --json`` writes, ``docs/device.schema.json``."""
    return build_schema("What analyze device writes with --json", DeviceFile)


def account_of_cards(
    reading: NvmlReading,
    environment: Mapping[str, str],
    *,
    pid: int | None = None,
    libraries: Sequence[str] = (),
) -> DeviceFile:
    """Return what the driver alone says.

    Args:
        reading: The cards.
        environment: The variables of the process asked about, else of this one.
        pid: The process asked about.
        libraries: What it has loaded.
    """
    cards = tuple(_card(card, (), pid, libraries) for card in reading.cards)
    shown = cards if pid is None else tuple(card for card in cards if _holds(card, pid))
    return DeviceFile(
        headline=_driver_headline(shown, pid),
        driver=reading.driver,
        cards=shown,
        pid=pid,
        libraries=tuple(libraries),
        switches=switches_of(environment),
        notes=() if pid is None else (_OUTSIDE,),
    )


_OUTSIDE: Final = (
    "Only the process itself can read TensorFlow's figures: print(analyzer.device()) there."
)


def account_of_process(figures: ProcessFigures, environment: Mapping[str, str]) -> DeviceFile:
    """Return TensorFlow's and the driver's figures of one process side by side.

    Args:
        figures: Both, read in that process.
        environment: Its variables.
    """
    cards: tuple[CardAccount, ...] = ()
    if figures.reading is not None:
        cards = tuple(
            _card(card, _on(card, figures, len(figures.reading.cards)), None, figures.libraries)
            for card in figures.reading.cards
        )
    notes = []
    if figures.reading is None:
        notes.append(f"{figures.refusal} The driver's side is missing.")
    return DeviceFile(
        headline=_process_headline(figures, cards),
        driver="" if figures.reading is None else figures.reading.driver,
        cards=cards,
        allocators=figures.allocators,
        pid=figures.pid,
        libraries=figures.libraries,
        switches=switches_of(environment, figures.settings),
        notes=tuple(notes),
    )


def account_of_stages(measured: MeasuredStages, environment: Mapping[str, str]) -> DeviceFile:
    """Return what each thing took of the first card outside the pool, and the account at the end.

    Args:
        measured: What the process read of itself after each.
        environment: Its variables.
    """
    rows = []
    before = 0
    for figures in measured.stages:
        outside = _outside_bytes(figures)
        if outside is None:
            continue
        rows.append(
            StageRow(what=figures.stage, outside_bytes=outside, added_bytes=outside - before)
        )
        before = outside
    last = account_of_process(measured.stages[-1], environment)
    headline = last.headline
    if rows:
        headline = (
            f"A process with TensorFlow holds {format_bytes(before)} of the card beside its pool: "
            + ", ".join(f"{row.what} {format_bytes(row.added_bytes)}" for row in rows)
            + "."
        )
    return msgspec.structs.replace(
        last, headline=headline, stages=tuple(rows), is_phantom=measured.is_phantom
    )


def no_card(why: str, environment: Mapping[str, str]) -> DeviceFile:
    """Return the account of a machine without a card.

    Args:
        why: What the driver's library said.
        environment: The variables that are set.
    """
    return DeviceFile(headline=why, switches=switches_of(environment))


def _on(card: NvmlCard, figures: ProcessFigures, cards: int) -> tuple[AllocatorFigures, ...]:
    """Return the allocators on a card; one card needs no name to be told."""
    return tuple(
        one
        for one in figures.allocators
        if one.card_uuid == card.uuid or (cards == 1 and not one.card_uuid)
    )


def _outside_bytes(figures: ProcessFigures) -> int | None:
    """Return what the process holds beside its pools; None where the driver does not show it."""
    if figures.reading is None:
        return None
    own = [own for card in figures.reading.cards if (own := _own_bytes(card)) is not None]
    return sum(own) - sum(one.pool_low_bytes for one in figures.allocators) if own else None


def _card(
    card: NvmlCard,
    allocators: tuple[AllocatorFigures, ...],
    pid: int | None,
    libraries: Sequence[str],
) -> CardAccount:
    rows = [
        *_own_rows(card, allocators, libraries),
        *_process_rows(card, allocators, pid, libraries),
    ]
    rest = card.total_bytes - (card.reserved_bytes or 0) - card.free_bytes
    known = sum(row.high_bytes for row in rows if row.id not in _BOUNDED)
    if allocators:
        own = _own_bytes(card)
        known += sum(one.pool_low_bytes for one in allocators) if own is None else own
    if rest > known:
        rows.append(_row("unattributed", "used, and shown of no process", rest - known, "driver"))
    if card.reserved_bytes:
        rows.append(
            _row("reserved", "kept by the driver and the firmware", card.reserved_bytes, "driver")
        )
    rows.append(_row("free", "free", card.free_bytes, "driver"))
    gpu = _catalogued(card.name)
    return CardAccount(
        index=card.index,
        name=card.name,
        uuid=card.uuid,
        total_bytes=card.total_bytes,
        used_bytes=card.used_bytes,
        free_bytes=card.free_bytes,
        compute_mode=card.compute_mode,
        rows=tuple(rows),
        own_bytes=_own_bytes(card),
        would_take_bytes=None if gpu is None or allocators else _would_take(card, gpu),
        notes=tuple(_notes(card, allocators)),
    )


_REGIONS: Final = "A growing pool's regions are seen where a tensor of Python's lies."
_BOUNDED: Final = ("in-use", "pool-unused", "outside-pool")
"""Rows of the process that was read in: together they are the driver's figure of it."""


def _row(ident: str, what: str, size: int, source: Source, note: str = "") -> CardPart:
    return CardPart(id=ident, what=what, low_bytes=size, high_bytes=size, source=source, note=note)


def _own_bytes(card: NvmlCard) -> int | None:
    """Return the driver's figure of the process that was read in; None where it shows none."""
    own = [p.used_bytes for p in card.processes if p.is_own and p.used_bytes is not None]
    return sum(own) if own else None


def _own_rows(
    card: NvmlCard, allocators: Sequence[AllocatorFigures], libraries: Sequence[str]
) -> Iterator[CardPart]:
    """Yield the parts of the process that was read in: in use, the rest of its pool, beside the pool."""
    if not allocators:
        return
    in_use = sum(one.in_use_bytes for one in allocators)
    low = sum(one.pool_low_bytes for one in allocators)
    yield _row("in-use", "in use by tensors", in_use, "tensorflow")
    own = _own_bytes(card)
    gpu = _catalogued(card.name)
    least = process_overhead(gpu).low_bytes if gpu is not None else 0
    exact = all(one.is_pool_exact for one in allocators)
    high = low if exact or own is None else max(low, own - least)
    limits = [one.limit_bytes for one in allocators]
    if all(limit is not None for limit in limits):
        high = min(high, max(low, sum(limit or 0 for limit in limits)))
    yield CardPart(
        id="pool-unused",
        what="in TensorFlow's pool, not in use",
        low_bytes=low - in_use,
        high_bytes=high - in_use,
        source="difference",
        note="" if low == high else _REGIONS,
    )
    if own is not None:
        yield CardPart(
            id="outside-pool",
            what="beside the pool: CUDA's context, libraries, kernels",
            low_bytes=max(own - high, 0),
            high_bytes=max(own - low, 0),
            source="difference",
            note=f"Libraries loaded: {', '.join(libraries)}." if libraries else "",
        )


def _process_rows(
    card: NvmlCard,
    allocators: Sequence[AllocatorFigures],
    pid: int | None,
    libraries: Sequence[str],
) -> Iterator[CardPart]:
    for process in card.processes:
        if process.is_own and allocators:
            continue
        asked = process.pid == pid
        name = process.name or "its name is not shown here"
        note = f"Libraries loaded: {', '.join(libraries)}." if asked and libraries else ""
        if process.used_bytes is None:
            note = f"The driver does not say how much process {process.pid} holds."
        yield _row(
            "asked-process" if asked else "other-process",
            f"{'' if asked else 'another: '}process {process.pid} ({name})",
            process.used_bytes or 0,
            "driver",
            note,
        )


def _notes(card: NvmlCard, allocators: Sequence[AllocatorFigures]) -> Iterator[str]:
    is_used = any(one.peak_in_use_bytes for one in allocators)
    if is_used and not any(process.is_own for process in card.processes):
        yield (
            "The driver shows no process of this number, as in a container: what this process holds "
            "beside its pool, and other processes, are in one row."
        )
    if card.is_partitioned:
        yield "The card is cut into instances (MIG): the figures are the whole card's."
    if card.compute_mode.startswith("exclusive"):
        yield "One process may use the card: a second one finds no GPU."
    if card.compute_mode == "prohibited":
        yield "No process may use the card."
    yield from (why for one in allocators if (why := _limit_words(one, card)))


def _limit_words(one: AllocatorFigures, card: NvmlCard) -> str:
    """Return what a device's limit is, and how its pool comes to it."""
    if one.limit_bytes is None:
        return ""
    how = {
        True: "the pool grows on demand up to it and is not given back",
        False: f"the pool {'took' if one.peak_in_use_bytes else 'takes'} it whole at the first tensor",
        None: "whether the pool grows is not known",
    }[one.grows]
    if not one.is_pool:
        how = "the driver keeps the pool"
    left = card.total_bytes - one.limit_bytes
    return (
        f"{one.device}: limit {format_bytes(one.limit_bytes)}, {format_bytes(left)} less than the card; "
        f"{how}. Most ever in use: {format_bytes(one.peak_in_use_bytes)}."
    )


def _would_take(card: NvmlCard, gpu: Gpu) -> int:
    """Return the limit that TensorFlow would give itself now: what is free, less its reserve."""
    free = max(card.free_bytes - context_bytes(), 0)
    return max(0, free - system_reserve(free, gpu.compute_capability))


def _catalogued(name: str) -> Gpu | None:
    with contextlib.suppress(InputError):
        return find_gpu(name)
    return None


def _holds(card: CardAccount, pid: int) -> bool:
    return any(row.id == "asked-process" for row in card.rows)


def _driver_headline(cards: Sequence[CardAccount], pid: int | None) -> str:
    if pid is not None:
        held = [row for card in cards for row in card.rows if row.id == "asked-process"]
        if not held:
            return f"Process {pid} holds no memory of a card that the driver shows."
        size = format_bytes(sum(row.high_bytes for row in held))
        where = f"card {cards[0].index}" if len(cards) == 1 else f"{len(cards)} cards"
        return f"Process {pid} holds {size} of {where}."
    used = sum(card.used_bytes for card in cards)
    total = sum(card.total_bytes for card in cards)
    count = "1 card" if len(cards) == 1 else f"{len(cards)} cards"
    return f"{count}: {format_bytes(used)} of {format_bytes(total)} in use."


def _process_headline(figures: ProcessFigures, cards: Sequence[CardAccount]) -> str:
    if not figures.allocators:
        return "TensorFlow sees no GPU in this process."
    in_use = sum(one.in_use_bytes for one in figures.allocators)
    parts = [f"tensors hold {format_bytes(in_use)}"]
    low = sum(one.pool_low_bytes for one in figures.allocators)
    exact = all(one.is_pool_exact for one in figures.allocators)
    parts.append(f"TensorFlow's pool {'' if exact else 'at least '}{format_bytes(low)}")
    own = [card.own_bytes for card in cards if card.own_bytes is not None]
    if own:
        parts.append(f"the process {format_bytes(sum(own))} by the driver's figure, nvidia-smi's")
    return f"Process {figures.pid}: {', '.join(parts)}."
