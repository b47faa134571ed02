"""The card's memory as a run folder tells it: at the peak of the step that was traced or estimated."""

from __future__ import annotations

from typing import Final

from analyzer.cards import Gpu, find_gpu, process_overhead
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes
from analyzer.session.devices.device_account import CardAccount, CardPart, DeviceFile

_PREDICTED: Final = "estimate"


def account_of_run(report: ReportFile, name: str) -> DeviceFile:
    """Return the parts of the card at the steady step's peak.

    Args:
        report: The run's report.
        name: What the user named.

    Raises:
        InputError: it ran on no card, or on one that is not in the catalogue.
    """
    device = report.device
    if device.kind != "gpu":
        raise InputError(
            f"{name} ran on {device.name or 'a CPU'}: it has no card.",
            hint="analyze device looks at the machine's cards; analyze trace --gpu t4 runs on one that "
            "is not there.",
        )
    try:
        gpu = find_gpu(device.name)
    except InputError:
        raise InputError(
            f"The card of {name}, {device.name or 'without a name'}, is not in the catalogue: its "
            "memory is not known.",
            hint="analyze trace shows what the run itself says.",
        ) from None
    limit = device.memory_limit_bytes
    return DeviceFile(
        headline=_headline(report, gpu, limit),
        cards=(_card(report, gpu, limit),),
        is_phantom=report.kind == "phantom",
        notes=(
            "At the peak of the step that was "
            f"{'predicted' if report.kind == _PREDICTED else 'traced'}; what other processes held is "
            "not in a trace.",
        ),
    )


def _headline(report: ReportFile, gpu: Gpu, limit: int | None) -> str:
    most = "" if limit is None else f" of the {format_bytes(limit)} that TensorFlow's pool may take"
    return (
        f"At the peak tensors hold {format_bytes(report.peak.requested_bytes)} in chunks of "
        f"{format_bytes(report.peak.allocated_bytes)},{most} on {gpu.name}."
    )


def _card(report: ReportFile, gpu: Gpu, limit: int | None) -> CardAccount:
    peak, beside = report.peak, process_overhead(gpu)
    idle = [max(size - peak.allocated_bytes, 0) for size in _pool(report, limit)]
    predicted = report.kind == _PREDICTED
    rows = [
        CardPart(
            id="in-use",
            what="in chunks of tensors at the peak",
            low_bytes=peak.allocated_bytes,
            high_bytes=peak.allocated_bytes,
            source="predicted" if predicted else "tensorflow",
        ),
        CardPart(
            id="pool-idle",
            what="in TensorFlow's pool, not in use",
            low_bytes=idle[0],
            high_bytes=idle[1],
            source="difference",
            note=""
            if idle[0] == idle[1]
            else "With memory growth the pool is as large as it had to become, without it the limit is "
            "taken whole.",
        ),
        CardPart(
            id="beside",
            what="beside the pool: CUDA's context, libraries, kernels",
            low_bytes=beside.low_bytes,
            high_bytes=beside.high_bytes,
            source="reports",
        ),
    ]
    taken = [sum(row.low_bytes for row in rows), sum(row.high_bytes for row in rows)]
    rows.append(
        CardPart(
            id="free",
            what="free, or other processes'",
            low_bytes=max(gpu.memory_bytes - taken[1], 0),
            high_bytes=max(gpu.memory_bytes - taken[0], 0),
            source="difference",
        )
    )
    return CardAccount(
        index=0,
        name=gpu.name,
        uuid="",
        total_bytes=gpu.memory_bytes,
        used_bytes=taken[0],
        free_bytes=rows[-1].high_bytes,
        compute_mode="",
        rows=tuple(rows),
    )


def _pool(report: ReportFile, limit: int | None) -> tuple[int, int]:
    """Return the pool at the peak, bytes: exact where the run tells it, else what it may be."""
    known = report.peak.pool_bytes
    if known is not None:
        return known, known
    return report.peak.allocated_bytes, max(limit or 0, report.peak.allocated_bytes)
