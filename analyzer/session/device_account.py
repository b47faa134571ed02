"""Account for a card's memory by TensorFlow and the driver, or by a run's report.

A card's rows add up to its memory. Each has its source: TensorFlow, the driver, or their difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from analyzer.cards import Gpu, context_bytes, process_overhead
from analyzer.cards.card_memory import system_reserve
from analyzer.cards.catalogue import look_up_gpu
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
    switches_of,
)

_ASKED: Final = "asked-process"
_OUTSIDE_POOL: Final = "outside the pool: CUDA context, libraries, kernels"
_IDLE_POOL: Final = "in TensorFlow's pool, not in use"
_OF_THE_CARD: Final = (
    *("index", "name", "uuid", "total_bytes", "used_bytes", "free_bytes", "compute_mode"),
)


def account_from_driver(
    reading: NvmlReading,
    environment: Mapping[str, str],
    *,
    pid: int | None = None,
    libraries: Sequence[str] = (),
) -> DeviceFile:
    """Return an account from the driver's figures alone, of a process or (``pid`` None) whole cards."""
    cards = [_account_for_card(card, (), libraries, pid) for card in reading.cards]
    if pid is None:
        used, total = sum(one.used_bytes for one in cards), sum(one.total_bytes for one in cards)
        count = "1 card" if len(cards) == 1 else f"{len(cards)} cards"
        headline = f"{count}: {format_bytes(used)} of {format_bytes(total)} in use."
    else:
        cards = [one for one in cards if any(row.id == _ASKED for row in one.rows)]
        held = sum(row.high_bytes for one in cards for row in one.rows if row.id == _ASKED)
        place = f"card {cards[0].index}" if len(cards) == 1 else f"{len(cards)} cards"
        headline = f"Process {pid} holds {format_bytes(held)} of {place}."
        if not cards:
            headline = f"Process {pid} holds no memory of a card that the driver shows."
    inside = (
        "TensorFlow's figures are readable inside the process only: print(analyzer.device()) there."
    )
    return DeviceFile(
        headline=headline,
        driver=reading.driver,
        cards=tuple(cards),
        pid=pid,
        libraries=tuple(libraries),
        switches=switches_of(environment),
        notes=() if pid is None else (inside,),
    )


def account_for_process(figures: ProcessFigures, environment: Mapping[str, str]) -> DeviceFile:
    """Return TensorFlow's and the driver's figures of one process side by side."""
    reading = figures.reading or NvmlReading(driver="", cards=())
    is_only = len(reading.cards) == 1  # then no name has to match
    allocators = figures.allocators
    cards = []
    for card in reading.cards:
        uuids = (card.uuid, "") if is_only else (card.uuid,)
        on_card = [one for one in allocators if one.card_uuid in uuids]
        cards.append(_account_for_card(card, on_card, figures.libraries))
    headline = "TensorFlow sees no GPU in this process."
    if allocators:
        least = "" if all(one.is_pool_exact for one in allocators) else "at least "
        in_use = format_bytes(sum(one.in_use_bytes for one in allocators))
        pool = format_bytes(sum(one.pool_low_bytes for one in allocators))
        headline = f"Process {figures.pid}: tensors hold {in_use}, TensorFlow's pool {least}{pool}"
        own = [card.own_bytes for card in cards if card.own_bytes is not None]
        whole = f", the process {format_bytes(sum(own))} according to the driver (nvidia-smi)"
        headline += f"{whole if own else ''}."
    missing = f"{figures.refusal} The driver's figures are missing."
    return DeviceFile(
        headline=headline,
        driver=reading.driver,
        cards=tuple(cards),
        allocators=allocators,
        pid=figures.pid,
        libraries=figures.libraries,
        switches=switches_of(environment, figures.settings),
        notes=() if figures.reading else (missing,),
    )


def account_for_stages(measured: MeasuredStages, environment: Mapping[str, str]) -> DeviceFile:
    """Return the memory outside the pool after each stage, and the account at the end."""
    rows: list[StageRow] = []
    before = 0
    for figures in measured.stages:
        cards = figures.reading.cards if figures.reading else ()
        own = [size for card in cards if (size := _own_bytes(card)) is not None]
        if own:
            outside = sum(own) - sum(one.pool_low_bytes for one in figures.allocators)
            rows.append(StageRow(figures.stage, outside, outside - before))
            before = outside
    last = account_for_process(measured.stages[-1], environment)
    headline = last.headline
    if rows:
        parts = ", ".join(f"{row.what} {format_bytes(row.added_bytes)}" for row in rows)
        held = format_bytes(before)
        headline = f"A TensorFlow process holds {held} of the card outside its pool: {parts}."
    return msgspec.structs.replace(
        last, headline=headline, stages=tuple(rows), is_phantom=measured.is_phantom
    )


def _account_for_card(
    card: NvmlCard,
    allocators: Sequence[AllocatorFigures],
    libraries: Sequence[str],
    pid: int | None = None,
) -> CardAccount:
    gpu = look_up_gpu(card.name)
    own = _own_bytes(card)
    loaded = f"Libraries loaded: {', '.join(libraries)}." if libraries else ""
    others = tuple(_process_rows(card, bool(allocators), pid, loaded))
    known = sum(row.high_bytes for row in others)
    if allocators:
        known += sum(one.pool_low_bytes for one in allocators) if own is None else own
    reserved = card.reserved_bytes or 0
    rest = card.total_bytes - reserved - card.free_bytes - known
    driver_rows = (
        _exact("unattributed", "used, not shown for any process", max(rest, 0)),
        _exact("reserved", "reserved by the driver and the firmware", reserved),
    )
    rows = (
        *(_own_rows(allocators, own, gpu, loaded) if allocators else ()),
        *others,
        *(row for row in driver_rows if row.high_bytes),
        _exact("free", "free", card.free_bytes),
    )
    would_take = None
    if gpu is not None and not allocators:  # as in card_memory.memory_limit, but of what is free
        free = max(card.free_bytes - context_bytes(), 0)
        would_take = max(0, free - system_reserve(free, gpu.compute_capability))
    return CardAccount(
        **{name: getattr(card, name) for name in _OF_THE_CARD},
        rows=rows,
        own_bytes=own,
        would_take_bytes=would_take,
        notes=tuple(_card_notes(card, allocators)),
    )


def _exact(ident: str, what: str, size: int, note: str = "") -> CardPart:
    """Return a part whose size the driver states."""
    return CardPart(ident, what, size, size, "driver", note)


def _own_bytes(card: NvmlCard) -> int | None:
    """Return the driver's bytes for the process that was read; None if it lists none."""
    own = [one.used_bytes for one in card.processes if one.is_own and one.used_bytes is not None]
    return sum(own) if own else None


def _own_rows(
    allocators: Sequence[AllocatorFigures], own: int | None, gpu: Gpu | None, loaded: str
) -> Iterator[CardPart]:
    """Yield the parts of the process that was read: tensors, rest of the pool, outside the pool."""
    in_use = sum(one.in_use_bytes for one in allocators)
    low = high = sum(one.pool_low_bytes for one in allocators)
    if own is not None and not all(one.is_pool_exact for one in allocators):
        least_outside = 0 if gpu is None else process_overhead(gpu).range.low
        limits = [own if one.limit_bytes is None else one.limit_bytes for one in allocators]
        high = max(low, min(own - least_outside, sum(limits)))
    note = "" if low == high else "Only regions with a tensor of this program are visible."
    yield CardPart("in-use", "in use by tensors", in_use, in_use, "tensorflow")
    yield CardPart("pool-unused", _IDLE_POOL, low - in_use, high - in_use, "difference", note)
    if own is not None:
        least, most = max(own - high, 0), max(own - low, 0)
        yield CardPart("outside-pool", _OUTSIDE_POOL, least, most, "difference", loaded)


def _process_rows(
    card: NvmlCard, has_allocators: bool, pid: int | None, loaded: str
) -> Iterator[CardPart]:
    """Yield one part for each process except the process that was read."""
    for process in card.processes:
        if process.is_own and has_allocators:
            continue
        is_asked = process.pid == pid
        ident, prefix = (_ASKED, "") if is_asked else ("other-process", "another: ")
        note = loaded if is_asked else ""
        if process.used_bytes is None:
            note = f"The driver does not report the memory of process {process.pid}."
        what = f"{prefix}process {process.pid} ({process.name or 'name not visible here'})"
        yield _exact(ident, what, process.used_bytes or 0, note)


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
        if one.limit_bytes is None:
            continue
        if not one.is_pool:
            how = "the driver keeps the pool"
        elif one.grows is None:
            how = "whether the pool grows is not known"
        elif one.grows:
            how = "the pool grows on demand up to it and is not returned"
        else:
            verb = "took" if one.peak_in_use_bytes else "takes"
            how = f"the pool {verb} the whole limit at its first use"
        left = format_bytes(card.total_bytes - one.limit_bytes)
        yield (
            f"{one.device}: limit {format_bytes(one.limit_bytes)}, {left} less than the card; {how}. "
            f"Most ever in use: {format_bytes(one.peak_in_use_bytes)}."
        )


def account_for_run(report: ReportFile, name: str) -> DeviceFile:
    """Return the parts of the card at the peak of the steady step; InputError if there is none."""
    device = report.device
    if device.kind != "gpu":
        raise InputError(
            f"{name} ran on {device.name or 'a CPU'}: it has no card.",
            hint="analyze device reads the machine's cards; analyze trace --gpu t4 runs on a simulated "
            "one.",
        )
    peak, ever = report.peak, report.peak_ever
    step = "predicted" if report.kind == "estimate" else "traced"
    notes = [f"At the peak of the {step} step; a trace does not show other processes."]
    since_start = 0 if ever is None else ever.since_start_bytes or 0
    if since_start > peak.allocated_bytes:
        size = format_bytes(since_start)
        notes.append(f"Since the start of the process tensors held up to {size} in chunks.")
    gpu = look_up_gpu(device.name)
    if gpu is None:
        notes.append(f"{device.name} is not in the catalogue, so its memory is not divided.")
    limit = device.memory_limit_bytes
    pool = "" if limit is None else f" of the {format_bytes(limit)} of TensorFlow's pool"
    return DeviceFile(
        headline=f"At the peak tensors hold {format_bytes(peak.requested_bytes)} in chunks of "
        f"{format_bytes(peak.allocated_bytes)},{pool} on {gpu.name if gpu else device.name}.",
        cards=() if gpu is None else (_divide_card(report, gpu),),
        is_phantom=report.kind == "phantom",
        notes=tuple(notes),
    )


def _divide_card(report: ReportFile, gpu: Gpu) -> CardAccount:
    peak, beside = report.peak, process_overhead(gpu).range
    in_use, pool = peak.allocated_bytes, peak.pool_bytes
    limit = max(report.device.memory_limit_bytes or 0, in_use)
    # The pool is exact if the run shows it; else it lies between the peak and the limit.
    low, high = (in_use, limit) if pool is None else (max(pool, in_use), max(pool, in_use))
    note = "With memory growth the pool is as large as needed; without it, it is the limit."
    note = "" if low == high else note
    source: Source = "predicted" if report.kind == "estimate" else "tensorflow"
    parts = (
        CardPart("in-use", "in chunks of tensors at the peak", in_use, in_use, source),
        CardPart("pool-idle", _IDLE_POOL, low - in_use, high - in_use, "difference", note),
        CardPart("beside", _OUTSIDE_POOL, beside.low, beside.high, "reports"),
    )
    total, least = gpu.memory_bytes, low + beside.low
    free_low, free_high = max(total - high - beside.high, 0), max(total - least, 0)
    free = CardPart("free", "free, or other processes", free_low, free_high, "difference")
    return CardAccount(
        index=0,
        name=gpu.name,
        uuid="",
        total_bytes=total,
        used_bytes=least,
        free_bytes=free_high,
        compute_mode="",
        rows=(*parts, free),
    )
