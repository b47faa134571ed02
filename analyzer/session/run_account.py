"""The account of a card from a run folder, at the peak of the step that was traced or estimated."""

from __future__ import annotations

from typing import Final

from analyzer.cards import Gpu, find_gpu, process_overhead
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.session.device_account import OUTSIDE_POOL
from analyzer.session.device_file import CardAccount, DeviceFile, Source, card_part

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
        cards=() if gpu is None else (_account_for_card(report, gpu, limit),),
        is_phantom=report.kind == "phantom",
        notes=tuple(notes),
    )


def _account_for_card(report: ReportFile, gpu: Gpu, limit: int | None) -> CardAccount:
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
