"""Account for a card's memory by TensorFlow and the driver, or by a run's report.

A card's rows add up to its memory. Each has its source: TensorFlow, the driver, or their difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from analyzer.cards import Gpu, find_gpu, process_overhead
from analyzer.cards.card_memory import context_bytes, system_reserve
from analyzer.model.contract.child_messages import (
    AllocatorFigures,
    MeasuredStages,
    NvmlCard,
    NvmlReading,
    ProcessFigures,
)
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.session.device_file import (
    CardAccount,
    CardPart,
    DeviceFile,
    Source,
    StageRow,
    card_part,
    switches_of,
)

_OWN_ROWS: Final = ("in-use", "pool-unused", "outside-pool")
"""Rows of the process that was read; together they are the driver's figure of it."""
OUTSIDE_POOL: Final = "outside the pool: CUDA context, libraries, kernels"
_ASK_INSIDE: Final = (
    "TensorFlow's figures are readable inside the process only: print(analyzer.device()) there."
)


def account_from_driver(
    reading: NvmlReading,
    environment: Mapping[str, str],
    *,
    pid: int | None = None,
    libraries: Sequence[str] = (),
) -> DeviceFile:
    """Return an account from the driver's figures alone, of a process or (``pid`` None) whole cards."""
    cards = tuple(_account_for_card(card, (), pid, libraries) for card in reading.cards)
    if pid is not None:
        cards = tuple(card for card in cards if _asked_rows(card))
    return DeviceFile(
        headline=_driver_headline(cards, pid),
        driver=reading.driver,
        cards=cards,
        pid=pid,
        libraries=tuple(libraries),
        switches=switches_of(environment),
        notes=() if pid is None else (_ASK_INSIDE,),
    )


def account_for_process(figures: ProcessFigures, environment: Mapping[str, str]) -> DeviceFile:
    """Return TensorFlow's and the driver's figures of one process side by side."""
    reading = figures.reading
    cards = () if reading is None else reading.cards
    accounts = tuple(
        _account_for_card(card, _allocators_on(card, figures), None, figures.libraries)
        for card in cards
    )
    return DeviceFile(
        headline=_process_headline(figures, accounts),
        driver="" if reading is None else reading.driver,
        cards=accounts,
        allocators=figures.allocators,
        pid=figures.pid,
        libraries=figures.libraries,
        switches=switches_of(environment, figures.settings),
        notes=(f"{figures.refusal} The driver's figures are missing.",) if reading is None else (),
    )


def account_for_stages(measured: MeasuredStages, environment: Mapping[str, str]) -> DeviceFile:
    """Return the memory outside the pool after each stage, and the account at the end."""
    rows = []
    before = 0
    for figures in measured.stages:
        outside = _outside_bytes(figures)
        if outside is not None:
            added = outside - before
            rows.append(StageRow(what=figures.stage, outside_bytes=outside, added_bytes=added))
            before = outside
    last = account_for_process(measured.stages[-1], environment)
    headline = last.headline
    if rows:
        parts = ", ".join(f"{row.what} {format_bytes(row.added_bytes)}" for row in rows)
        size = format_bytes(before)
        headline = f"A TensorFlow process holds {size} of the card outside its pool: {parts}."
    return msgspec.structs.replace(
        last, headline=headline, stages=tuple(rows), is_phantom=measured.is_phantom
    )


def _allocators_on(card: NvmlCard, figures: ProcessFigures) -> tuple[AllocatorFigures, ...]:
    """Return the allocators on a card; a single card needs no matching name."""
    is_only = figures.reading is not None and len(figures.reading.cards) == 1
    return tuple(
        one
        for one in figures.allocators
        if one.card_uuid == card.uuid or (is_only and not one.card_uuid)
    )


def _outside_bytes(figures: ProcessFigures) -> int | None:
    """Return the process' memory outside its pools; None if the driver does not show it."""
    if figures.reading is None:
        return None
    own = [own for card in figures.reading.cards if (own := _own_bytes(card)) is not None]
    return sum(own) - sum(one.pool_low_bytes for one in figures.allocators) if own else None


def _account_for_card(
    card: NvmlCard,
    allocators: tuple[AllocatorFigures, ...],
    pid: int | None,
    libraries: Sequence[str],
) -> CardAccount:
    own = _own_bytes(card)
    rows = [
        *_own_rows(card, allocators, libraries),
        *_process_rows(card, bool(allocators), pid, libraries),
    ]
    used = card.total_bytes - (card.reserved_bytes or 0) - card.free_bytes
    known = sum(row.high_bytes for row in rows if row.id not in _OWN_ROWS)
    if allocators:
        known += sum(one.pool_low_bytes for one in allocators) if own is None else own
    if used > known:
        rows.append(_row("unattributed", "used, not shown for any process", used - known, "driver"))
    if card.reserved_bytes:
        reserved = card.reserved_bytes
        rows.append(_row("reserved", "reserved by the driver and the firmware", reserved, "driver"))
    rows.append(_row("free", "free", card.free_bytes, "driver"))
    gpu = _find_catalogued(card.name)
    return CardAccount(
        index=card.index,
        name=card.name,
        uuid=card.uuid,
        total_bytes=card.total_bytes,
        used_bytes=card.used_bytes,
        free_bytes=card.free_bytes,
        compute_mode=card.compute_mode,
        rows=tuple(rows),
        own_bytes=own,
        would_take_bytes=None if gpu is None or allocators else _default_limit(card, gpu),
        notes=tuple(_card_notes(card, allocators)),
    )


def _row(ident: str, what: str, size: int, source: Source, note: str = "") -> CardPart:
    return card_part(ident, what, size, size, source, note)


def _own_bytes(card: NvmlCard) -> int | None:
    """Return the driver's figure of the process that was read; None if it shows none."""
    own = [one.used_bytes for one in card.processes if one.is_own and one.used_bytes is not None]
    return sum(own) if own else None


def _own_rows(
    card: NvmlCard, allocators: Sequence[AllocatorFigures], libraries: Sequence[str]
) -> Iterator[CardPart]:
    """Yield the parts of the process that was read: tensors, rest of the pool, outside the pool."""
    if not allocators:
        return
    in_use = sum(one.in_use_bytes for one in allocators)
    low = sum(one.pool_low_bytes for one in allocators)
    yield _row("in-use", "in use by tensors", in_use, "tensorflow")
    own = _own_bytes(card)
    gpu = _find_catalogued(card.name)
    least = process_overhead(gpu).range.low if gpu is not None else 0
    is_exact = all(one.is_pool_exact for one in allocators)
    high = low if is_exact or own is None else max(low, own - least)
    limits = [one.limit_bytes for one in allocators]
    if all(limit is not None for limit in limits):
        high = min(high, max(low, sum(limit or 0 for limit in limits)))
    note = "" if low == high else "Only regions with a tensor of this program are visible."
    idle = low - in_use, high - in_use
    yield card_part("pool-unused", "in TensorFlow's pool, not in use", *idle, "difference", note)
    if own is not None:
        beside, note = (max(own - high, 0), max(own - low, 0)), _library_note(libraries)
        yield card_part("outside-pool", OUTSIDE_POOL, *beside, "difference", note)


def _library_note(libraries: Sequence[str]) -> str:
    return f"Libraries loaded: {', '.join(libraries)}." if libraries else ""


def _process_rows(
    card: NvmlCard, has_allocators: bool, pid: int | None, libraries: Sequence[str]
) -> Iterator[CardPart]:
    """Yield one part for each process except the process that was read."""
    for process in card.processes:
        if process.is_own and has_allocators:
            continue
        is_asked = process.pid == pid
        note = _library_note(libraries) if is_asked else ""
        if process.used_bytes is None:
            note = f"The driver does not say how much process {process.pid} holds."
        yield _row(
            "asked-process" if is_asked else "other-process",
            f"{'' if is_asked else 'another: '}process {process.pid} "
            f"({process.name or 'name not visible here'})",
            process.used_bytes or 0,
            "driver",
            note,
        )


def _card_notes(card: NvmlCard, allocators: Sequence[AllocatorFigures]) -> Iterator[str]:
    has_tensors = any(one.peak_in_use_bytes for one in allocators)
    if has_tensors and not any(process.is_own for process in card.processes):
        yield (
            "The driver does not show this process, as in a container: its memory outside the pool and "
            "other processes are in one row."
        )
    if card.is_partitioned:
        yield "The card is partitioned into instances (MIG): the figures are the whole card's."
    if card.compute_mode.startswith("exclusive"):
        yield "One process may use the card: a second one finds no GPU."
    if card.compute_mode == "prohibited":
        yield "No process may use the card."
    for one in allocators:
        if one.limit_bytes is not None:
            yield _limit_words(one, one.limit_bytes, card)


def _limit_words(one: AllocatorFigures, limit_bytes: int, card: NvmlCard) -> str:
    """Return a device's limit, and how its pool reaches it."""
    if not one.is_pool:
        how = "the driver keeps the pool"
    elif one.grows is None:
        how = "whether the pool grows is not known"
    elif one.grows:
        how = "the pool grows on demand up to it and is not returned"
    else:
        how = f"the pool {'took' if one.peak_in_use_bytes else 'takes'} the whole limit at its first use"
    left = card.total_bytes - limit_bytes
    return (
        f"{one.device}: limit {format_bytes(limit_bytes)}, {format_bytes(left)} less than the card; "
        f"{how}. Most ever in use: {format_bytes(one.peak_in_use_bytes)}."
    )


def _default_limit(card: NvmlCard, gpu: Gpu) -> int:
    """Return the limit that TensorFlow would set now: free memory minus its reserve."""
    free = max(card.free_bytes - context_bytes(), 0)
    return max(0, free - system_reserve(free, gpu.compute_capability))


def _find_catalogued(name: str) -> Gpu | None:
    with contextlib.suppress(InputError):
        return find_gpu(name)
    return None


def _asked_rows(card: CardAccount) -> list[CardPart]:
    return [row for row in card.rows if row.id == "asked-process"]


def _driver_headline(cards: Sequence[CardAccount], pid: int | None) -> str:
    if pid is not None:
        rows = [row for card in cards for row in _asked_rows(card)]
        if not rows:
            return f"Process {pid} holds no memory of a card that the driver shows."
        size = format_bytes(sum(row.high_bytes for row in rows))
        place = f"card {cards[0].index}" if len(cards) == 1 else f"{len(cards)} cards"
        return f"Process {pid} holds {size} of {place}."
    used = sum(card.used_bytes for card in cards)
    total = sum(card.total_bytes for card in cards)
    count = "1 card" if len(cards) == 1 else f"{len(cards)} cards"
    return f"{count}: {format_bytes(used)} of {format_bytes(total)} in use."


def _process_headline(figures: ProcessFigures, cards: Sequence[CardAccount]) -> str:
    if not figures.allocators:
        return "TensorFlow sees no GPU in this process."
    in_use = sum(one.in_use_bytes for one in figures.allocators)
    low = sum(one.pool_low_bytes for one in figures.allocators)
    is_exact = all(one.is_pool_exact for one in figures.allocators)
    parts = [
        f"tensors hold {format_bytes(in_use)}",
        f"TensorFlow's pool {'' if is_exact else 'at least '}{format_bytes(low)}",
    ]
    own = [card.own_bytes for card in cards if card.own_bytes is not None]
    if own:
        parts.append(f"the process {format_bytes(sum(own))} according to the driver (nvidia-smi)")
    return f"Process {figures.pid}: {', '.join(parts)}."


_PREDICTED: Final = "estimate"


def account_for_run(report: ReportFile, name: str) -> DeviceFile:
    """Return the parts of the card at the peak of the steady step.

    Raises:
        InputError: the run used no card.
    """
    device = report.device
    if device.kind != "gpu":
        raise InputError(
            f"{name} ran on {device.name or 'a CPU'}: it has no card.",
            hint="analyze device reads the machine's cards; analyze trace --gpu t4 runs on a simulated "
            "one.",
        )
    limit = device.memory_limit_bytes
    step = "predicted" if report.kind == _PREDICTED else "traced"
    notes = [f"At the peak of the {step} step; a trace does not show other processes."]
    ever = report.peak_ever
    if ever is not None and (ever.since_start_bytes or 0) > report.peak.allocated_bytes:
        start = format_bytes(ever.since_start_bytes or 0)
        notes.append(f"Since the start of the process tensors held up to {start} in chunks.")
    try:
        gpu = find_gpu(device.name)
    except InputError:
        gpu = None
        notes.append(f"{device.name} is not in the catalogue, so its memory is not divided.")
    card = device.name if gpu is None else gpu.name
    pool = "" if limit is None else f" of the {format_bytes(limit)} of TensorFlow's pool"
    return DeviceFile(
        headline=f"At the peak tensors hold {format_bytes(report.peak.requested_bytes)} in chunks of "
        f"{format_bytes(report.peak.allocated_bytes)},{pool} on {card}.",
        cards=() if gpu is None else (_divide_card(report, gpu, limit),),
        is_phantom=report.kind == "phantom",
        notes=tuple(notes),
    )


def _divide_card(report: ReportFile, gpu: Gpu, limit: int | None) -> CardAccount:
    peak, overhead = report.peak, process_overhead(gpu)
    # The pool is exact if the run shows it; else it lies between the peak and the limit.
    low = peak.allocated_bytes if peak.pool_bytes is None else peak.pool_bytes
    high = max(limit or 0, low) if peak.pool_bytes is None else peak.pool_bytes
    idle_low, idle_high = (max(size - peak.allocated_bytes, 0) for size in (low, high))
    source: Source = "predicted" if report.kind == _PREDICTED else "tensorflow"
    in_use = peak.allocated_bytes
    note = "With memory growth the pool is as large as needed; without it, it is the limit."
    note = "" if idle_low == idle_high else note
    idle = "in TensorFlow's pool, not in use"
    beside = overhead.range
    rows = [
        card_part("in-use", "in chunks of tensors at the peak", in_use, in_use, source),
        card_part("pool-idle", idle, idle_low, idle_high, "difference", note),
        card_part("beside", OUTSIDE_POOL, beside.low, beside.high, "reports"),
    ]
    least, most = sum(row.low_bytes for row in rows), sum(row.high_bytes for row in rows)
    low, high = (max(gpu.memory_bytes - size, 0) for size in (most, least))
    free = card_part("free", "free, or other processes", low, high, "difference")
    return CardAccount(
        index=0,
        name=gpu.name,
        uuid="",
        total_bytes=gpu.memory_bytes,
        used_bytes=least,
        free_bytes=free.high_bytes,
        compute_mode="",
        rows=(*rows, free),
    )
