"""Whether a step fits the named card or the limit asked about, by how much, and how sure that is.

The allocator's limit is what decides. What the process holds beside the pool on a card (CUDA context,
libraries) is taken off before TensorFlow sets that limit, or lies in the reserve that it leaves; it is
told apart and never added in silence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from analyzer.errors import InputError
from analyzer.findings.analysis import Analysis
from analyzer.findings.cautions import cautions_of, is_lower_bound
from analyzer.findings.integrity import trust_of
from analyzer.findings.oom import failure_of
from analyzer.findings.verdict import (
    Basis,
    Bounds,
    LimitOf,
    NeedOf,
    Outcome,
    Verdict,
    basis_of,
    headline_of,
    outcome_of,
)
from analyzer.gpus import Gpu, MemoryRange, find_gpu, memory_limit, process_overhead
from analyzer.model import Recording
from analyzer.simulate import BfcOptions, from_recording, replay
from analyzer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The limit that a verdict is asked about, and whether a replay under it succeeds."""

    limit_of: LimitOf
    limit: Bounds
    runs_at_limit: bool


def card_of(recording: Recording) -> Gpu | None:
    """Return the card that a prediction is for; None for a trace or an unknown card."""
    if recording.kind.ran or recording.device.kind != "gpu":
        return None
    try:
        return find_gpu(recording.device.name)
    except InputError:
        return None


def card_options(recording: Recording) -> BfcOptions | None:
    """Return how the card's allocator is set up by default: one region of the whole limit."""
    limit = recording.device.memory_limit_bytes
    return BfcOptions.gpu(limit) if card_of(recording) is not None and limit else None


def judge(analysis: Analysis, limit_bytes: int | None) -> Analysis:
    """Return the analysis with its verdict, and with what lies on its card beside the pool.

    Args:
        analysis: With the facts that :func:`analyzer.findings.pool.add_pool` found.
        limit_bytes: The memory limit that the user asked about; None for none.
    """
    gpu = card_of(analysis.recording)
    verdict = _verdict(analysis, gpu, limit_bytes)
    analysis = replace(analysis, verdict=verdict)
    return analysis if gpu is None else _with_card(analysis, gpu, verdict)


def _verdict(analysis: Analysis, gpu: Gpu | None, limit_bytes: int | None) -> Verdict:
    recording = analysis.recording
    basis = basis_of(recording.kind)
    question = _question(analysis, gpu, limit_bytes)
    need = _need(analysis, basis)
    card = gpu.name if gpu is not None else ""
    if question is None:
        outcome = Outcome.FAILED if recording.error else Outcome.NO_LIMIT
        headline = _headline_without_limit(analysis)
    else:
        is_whole = not recording.error and not is_lower_bound(recording)
        limit = question.limit
        outcome = outcome_of(
            basis,
            limit,
            need,
            runs_at_limit=question.runs_at_limit,
            is_whole=is_whole and not _is_damaged(analysis),
        )
        headline = headline_of(outcome, question.limit_of, card, limit, need, is_whole=is_whole)
    return Verdict(
        outcome=outcome,
        basis=basis,
        limit_of=question.limit_of if question else None,
        card=card,
        limit=question.limit if question else None,
        need=need if question or _is_searched(analysis) else None,
        need_of=NeedOf.LEAST_LIMIT if _is_searched(analysis) else NeedOf.ALLOCATED,
        headline=headline,
        cautions=cautions_of(analysis),
    )


def _is_damaged(analysis: Analysis) -> bool:
    trust = trust_of(analysis)
    return trust is not None and trust.is_damaged


def _question(analysis: Analysis, gpu: Gpu | None, limit_bytes: int | None) -> _Question | None:
    """Return the lower of the two limits that may have been given; None without one."""
    card = None if gpu is None else memory_limit(gpu)
    if limit_bytes is not None and (card is None or limit_bytes <= card.bytes):
        replayed = analysis.pool.get("what_if") or {}
        return _Question(
            limit_of=LimitOf.USER,
            limit=Bounds.around(limit_bytes, limit_bytes, limit_bytes),
            runs_at_limit=bool(replayed.get("fits", True)),
        )
    if card is None:
        return None
    return _Question(
        limit_of=LimitOf.CARD,
        limit=Bounds.around(card.bytes, card.low_bytes, card.high_bytes),
        runs_at_limit=bool(analysis.pool.get("fits_limit", True)),
    )


def _is_searched(analysis: Analysis) -> bool:
    return analysis.pool.get("safe_limit_bytes") is not None


def _need(analysis: Analysis, basis: Basis) -> Bounds:
    """Return the least limit from which on the step runs; not searched for, the allocated peak."""
    central = int(analysis.pool.get("safe_limit_bytes") or analysis.peak_ever.allocated_bytes)
    if basis is Basis.MEASURED:
        return Bounds.around(central, central, central)
    return Bounds.around(central, *_range(analysis.recording, analysis, central))


def _range(recording: Recording, analysis: Analysis, central: int) -> tuple[int, int]:
    """Return the least and the most that the step may need as a limit, bytes.

    A library's workspace is not in it: where it cannot be had, TensorFlow takes an algorithm without
    one (``conv_ops_gpu.h``, ``LaunchAutotunedConv``).
    """
    doubt = recording.extra.get("uncertainty") or {}
    allocated = analysis.peak.allocated_bytes
    workspace = int(doubt.get("workspace_bytes") or 0)
    low = int(doubt.get("allocated_low_bytes") or allocated)
    high = int(doubt.get("allocated_high_bytes") or allocated) - workspace
    most = central + max(high - allocated, 0)
    return central - max(allocated - low, 0), max(most, int(doubt.get("limit_high_bytes") or 0))


def _headline_without_limit(analysis: Analysis) -> str:
    """Say how high the peak is, or what did not fit where the step ended for want of memory."""
    peak = analysis.peak
    if not analysis.recording.error:
        return (
            f"Peak {format_bytes(peak.allocated_bytes)} allocated for "
            f"{format_bytes(peak.requested_bytes)} requested"
        )
    failure = failure_of(analysis) or {}
    wanted, limit = failure.get("requested_bytes"), failure.get("memory_limit_bytes")
    if wanted is None or limit is None:
        allocated = format_bytes(peak.allocated_bytes)
        return f"The step did not finish. Peak {allocated} allocated until then"
    return (
        f"Out of memory: {format_bytes(wanted)} more do not fit beside the "
        f"{format_bytes(failure['in_use_bytes'])} in use of {format_bytes(limit)}"
    )


def _with_card(analysis: Analysis, gpu: Gpu, verdict: Verdict) -> Analysis:
    """Return the analysis with ``fit``: the verdict's numbers, and what lies on the card beside them."""
    recording = analysis.recording
    options = card_options(recording)
    if options is None:
        return analysis
    limit, overhead = memory_limit(gpu), process_overhead(gpu)
    growth = replay(from_recording(recording), replace(options, growth=True))
    grown = None if growth.failure is not None else growth.peak_pool_bytes
    numbers = verdict.as_plain()
    fit: dict[str, Any] = {
        "fits": verdict.fits,
        "card": gpu.id,
        **{key: numbers[key] for key in ("limit_bytes", "limit_low_bytes", "limit_high_bytes")},
        "needed_bytes": numbers["need_bytes"],
        "needed_low_bytes": numbers["need_low_bytes"],
        "needed_high_bytes": numbers["need_high_bytes"],
        "margin_bytes": numbers["margin_bytes"],
        "growth_pool_bytes": grown,
        "outside_pool": asdict(overhead),
        "limit_source": limit.source,
        "says": _says(gpu, verdict, limit, overhead, grown),
    }
    facts = {**analysis.pool, "fit": fit}
    if analysis.pool.get("fits_limit", True):  # else there is no pool that holds the step
        facts["pool_bytes"] = facts["pool_ever_bytes"] = limit.bytes
        facts["process_bytes"] = limit.bytes + overhead.bytes
    return replace(analysis, pool=facts)


def _says(
    gpu: Gpu, verdict: Verdict, limit: MemoryRange, overhead: MemoryRange, grown: int | None
) -> list[str]:
    on_card = Bounds.around(limit.bytes, limit.low_bytes, limit.high_bytes)
    need = "" if verdict.need is None else f"; the step needs {verdict.need.told}"
    says = [f"TensorFlow's limit on {gpu.name} is {on_card.told}{need}."]
    if grown is not None:
        says.append(
            f"Pool: TensorFlow takes the whole limit at its first allocation; with memory growth the "
            f"pool would be {format_bytes(grown)}."
        )
    outside = Bounds.around(overhead.bytes, overhead.low_bytes, overhead.high_bytes)
    says.append(
        f"Outside the pool: about {outside.told} for the CUDA context, cuBLAS, cuDNN and loaded "
        "kernels; from public reports, not measured."
    )
    return says
