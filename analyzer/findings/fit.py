"""Does a predicted step fit the named card, by how much, and how sure that is.

The allocator's limit on the card is what decides. What the process holds beside the pool (CUDA context,
libraries) is taken off before TensorFlow sets that limit, or lies in the reserve that it leaves; it is
told apart and never added in silence.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from analyzer.errors import InputError
from analyzer.findings.analysis import Analysis
from analyzer.gpus import Gpu, MemoryRange, find_gpu, memory_limit, process_overhead
from analyzer.model import Kind, Recording
from analyzer.simulate import BfcOptions, from_recording, replay
from analyzer.units import format_bytes

MAY_NOT: Final = "may not"
"""Neither certain to fit nor certain not to."""


def card_of(recording: Recording) -> Gpu | None:
    """Return the card that a prediction is for; None for a trace or an unknown card."""
    if recording.kind is not Kind.ESTIMATE or recording.device.kind != "gpu":
        return None
    try:
        return find_gpu(recording.device.name)
    except InputError:
        return None


def card_options(recording: Recording) -> BfcOptions | None:
    """Return how the card's allocator is set up by default: one region of the whole limit."""
    limit = recording.device.memory_limit_bytes
    return BfcOptions.gpu(limit) if card_of(recording) is not None and limit else None


def add_fit(analysis: Analysis) -> Analysis:
    """Return the analysis with ``fit`` among its pool's facts, where it is for a card.

    Needs the facts that :func:`analyzer.findings.pool.add_pool` found, with the minimum limit.
    """
    recording = analysis.recording
    gpu, options = card_of(recording), card_options(recording)
    if gpu is None or options is None:
        return analysis
    limit, overhead = memory_limit(gpu), process_overhead(gpu)
    growth = replay(from_recording(recording), replace(options, growth=True))
    central = int(analysis.pool.get("safe_limit_bytes") or analysis.peak_ever.allocated_bytes)
    low, high = _range(recording, analysis, central)
    fits: bool | str = MAY_NOT
    if analysis.pool.get("fits_limit", central <= limit.bytes) and high <= limit.low_bytes:
        fits = True
    elif low > limit.high_bytes:
        fits = False
    fit: dict[str, Any] = {
        "fits": fits,
        "card": gpu.id,
        "limit_bytes": limit.bytes,
        "limit_low_bytes": limit.low_bytes,
        "limit_high_bytes": limit.high_bytes,
        "needed_bytes": central,
        "needed_low_bytes": low,
        "needed_high_bytes": high,
        "margin_bytes": limit.bytes - central,
        "growth_pool_bytes": None if growth.failure is not None else growth.peak_pool_bytes,
        "outside_pool": asdict(overhead),
        "limit_source": limit.source,
    }
    fit["says"] = _says(gpu, fit, limit, overhead)
    facts = {
        **analysis.pool,
        "fit": fit,
        "pool_bytes": limit.bytes,
        "pool_ever_bytes": limit.bytes,
        "process_bytes": limit.bytes + overhead.bytes,
    }
    return replace(analysis, pool=facts)


def _range(recording: Recording, analysis: Analysis, central: int) -> tuple[int, int]:
    """Return the least and the most that the step may need as a limit, bytes.

    A library's workspace is not in it: where it cannot be had, TensorFlow takes an algorithm without
    one (``conv_ops_gpu.h``, ``LaunchAutotunedConv``).
    """
    doubt = recording.extra.get("uncertainty") or {}
    allocated = analysis.peak.allocated_bytes
    workspace = int(doubt.get("workspace_bytes") or 0)
    low = int(doubt.get("allocated_low_bytes") or doubt.get("low_bytes") or allocated)
    high = int(doubt.get("allocated_high_bytes") or doubt.get("high_bytes") or allocated)
    high -= workspace
    return central - max(allocated - low, 0), central + max(high - allocated, 0)


def _says(gpu: Gpu, fit: dict[str, Any], limit: MemoryRange, overhead: MemoryRange) -> list[str]:
    margin = abs(int(fit["margin_bytes"]))
    need = (
        f"the step needs {format_bytes(fit['needed_bytes'])} "
        f"({format_bytes(fit['needed_low_bytes'])} to {format_bytes(fit['needed_high_bytes'])}) of "
        f"TensorFlow's limit on {gpu.name}, {format_bytes(limit.bytes)} "
        f"({format_bytes(limit.low_bytes)} to {format_bytes(limit.high_bytes)})"
    )
    spare = f"{format_bytes(margin)} {'to spare' if fit['margin_bytes'] >= 0 else 'too much'}"
    head = {True: "Fits", False: "Does not fit"}.get(fit["fits"], "May not fit")
    says = [f"{head}: {need}, {spare}."]
    pool = fit["growth_pool_bytes"]
    if pool is not None:
        says.append(
            f"Pool: TensorFlow takes the whole limit at its first allocation; with memory growth the "
            f"pool would be {format_bytes(pool)}."
        )
    says.append(
        f"Outside the pool: about {format_bytes(overhead.bytes)} "
        f"({format_bytes(overhead.low_bytes)} to {format_bytes(overhead.high_bytes)}) for the CUDA "
        "context, cuBLAS, cuDNN and loaded kernels; from public reports, not measured."
    )
    return says
