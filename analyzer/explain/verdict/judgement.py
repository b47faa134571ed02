"""Whether a step fits the named card or the limit asked about, by how much, and how sure that is.

The allocator's limit is what decides. What the process holds beside the pool on a card (CUDA context,
libraries) is taken off before TensorFlow sets that limit, or lies in the reserve that it leaves; it is
told apart and never added in silence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from msgspec import structs

from analyzer.cards import Gpu, MemoryRange, find_gpu, memory_limit, process_overhead
from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.trace_integrity import trust_of
from analyzer.explain.verdict.cautions import cautions_of, is_lower_bound
from analyzer.explain.verdict.fit_verdict import (
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
from analyzer.model.contract.report.limit_figures import CardFit, SourcedBytes
from analyzer.model.errors import InputError
from analyzer.model.recording.records import Kind, Recording
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import BfcOptions, from_recording, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The limit that a verdict is asked about.

    Attributes:
        limit_of: Whose it is.
        limit: The limit.
        runs_at_limit: Whether the step, or a replay of it, succeeds under it.
        is_own: The step itself ran under it, on a phantom card: there is nothing to be replayed.
    """

    limit_of: LimitOf
    limit: Bounds
    runs_at_limit: bool
    is_own: bool = False


def card_of(recording: Recording) -> Gpu | None:
    """Return the card that a prediction or a phantom run is for; None for a trace or an unknown card."""
    if recording.kind is Kind.TRACE or recording.device.kind != "gpu":
        return None
    try:
        return find_gpu(recording.device.name)
    except InputError:
        return None


def card_options(recording: Recording) -> BfcOptions | None:
    """Return how a predicted card's allocator is set up by default: one region of the whole limit.

    What ran has set-up of its own, which its events show.
    """
    limit = recording.device.memory_limit_bytes
    if recording.kind.ran or card_of(recording) is None or not limit:
        return None
    return BfcOptions.gpu(limit)


def judge(analysis: Analysis, limit_bytes: int | None) -> Analysis:
    """Return the analysis with its verdict, and with what lies on its card beside the pool.

    Args:
        analysis: With the facts that ``add_pool`` found.
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
    if question is not None and question.is_own and not recording.error:
        # It ran under its limit, by waiting for frees where a replay may fail.
        need = _at_most(need, question.limit.high_bytes)
    outcome, headline = _answer(analysis, question, need, card)
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


def _answer(
    analysis: Analysis, question: _Question | None, need: Bounds, card: str
) -> tuple[Outcome, str]:
    """Return the outcome and its headline."""
    recording = analysis.recording
    if question is None:
        outcome = Outcome.FAILED if recording.error else Outcome.NO_LIMIT
        return outcome, _headline_without_limit(analysis)
    limit, limit_of = question.limit, question.limit_of
    if question.is_own and recording.error:
        if failure_of(analysis) is None:  # it ended for another reason
            return Outcome.FAILED, _headline_without_limit(analysis)
        told = headline_of(Outcome.DOES_NOT_FIT, limit_of, card, limit, need).partition(":")[0]
        return Outcome.DOES_NOT_FIT, f"{told}. {_headline_without_limit(analysis)}"
    is_whole = not recording.error and not is_lower_bound(recording)
    outcome = outcome_of(
        basis_of(recording.kind),
        limit,
        need,
        runs_at_limit=question.runs_at_limit,
        is_whole=is_whole and not _is_damaged(analysis),
    )
    return outcome, headline_of(outcome, limit_of, card, limit, need, is_whole=is_whole)


def _at_most(bounds: Bounds, size_bytes: int) -> Bounds:
    """Return bounds of what is known to be no more than so many bytes."""
    low, middle, high = bounds.low_bytes, bounds.bytes, bounds.high_bytes
    return Bounds(
        bytes=min(middle, size_bytes),
        low_bytes=min(low, size_bytes),
        high_bytes=min(high, size_bytes),
    )


def _is_damaged(analysis: Analysis) -> bool:
    trust = trust_of(analysis)
    return trust is not None and trust.is_damaged


def _question(analysis: Analysis, gpu: Gpu | None, limit_bytes: int | None) -> _Question | None:
    """Return the lower of the two limits that may have been given; None without one."""
    own = _own_question(analysis.recording, gpu)
    card = None if gpu is None or own is not None else memory_limit(gpu)
    lowest = own.limit.bytes if own is not None else None if card is None else card.bytes
    if limit_bytes is not None and (lowest is None or limit_bytes <= lowest):
        replayed = analysis.pool.what_if
        return _Question(
            limit_of=LimitOf.USER,
            limit=Bounds.around(limit_bytes, limit_bytes, limit_bytes),
            runs_at_limit=replayed is None or replayed.fits,
        )
    if own is not None or card is None:
        return own
    return _Question(
        limit_of=LimitOf.CARD,
        limit=Bounds.around(card.bytes, card.low_bytes, card.high_bytes),
        runs_at_limit=analysis.pool.fits_limit,
    )


def _own_question(recording: Recording, gpu: Gpu | None) -> _Question | None:
    """Return the limit that a step ran under on a phantom card; None where it ran on none."""
    if recording.phantom_run is None or gpu is None:
        return None
    is_out = recording.error is not None
    told = recording.phantom_run.memory_limit_bytes
    if told is not None:
        limit = Bounds.around(told, told, told)
        return _Question(limit_of=LimitOf.USER, limit=limit, runs_at_limit=not is_out, is_own=True)
    card = memory_limit(gpu)
    had = recording.device.memory_limit_bytes or card.bytes
    limit = Bounds.around(had, min(card.low_bytes, had), max(card.high_bytes, had))
    return _Question(limit_of=LimitOf.CARD, limit=limit, runs_at_limit=not is_out, is_own=True)


def _is_searched(analysis: Analysis) -> bool:
    return analysis.pool.safe_limit_bytes is not None


def _need(analysis: Analysis, basis: Basis) -> Bounds:
    """Return the least limit from which on the step runs; not searched for, the allocated peak."""
    central = analysis.pool.safe_limit_bytes or analysis.peak_ever.allocated_bytes
    if basis is Basis.MEASURED:
        return Bounds.around(central, central, central)
    return Bounds.around(central, *_range(analysis.recording, analysis, central))


def _range(recording: Recording, analysis: Analysis, central: int) -> tuple[int, int]:
    """Return the least and the most that the step may need as a limit, bytes.

    Where the orders that were drawn were played under limits, these are said by them, whatever limit is
    asked about; else as far from the figure as the allocated peak's range is from the peak. A library's
    workspace is not in it: where it cannot be had, TensorFlow takes an algorithm without one
    (``conv_ops_gpu.h``, ``LaunchAutotunedConv``).
    """
    stated = recording.uncertainty
    if stated is None:
        return central, central
    if stated.limit_low_bytes is not None and stated.limit_high_bytes is not None:
        return stated.limit_low_bytes, stated.limit_high_bytes
    allocated = analysis.peak.allocated_bytes
    low = stated.allocated_low_bytes or allocated
    high = (stated.allocated_high_bytes or allocated) - (stated.workspace_bytes or 0)
    most = central + max(high - allocated, 0)
    return central - max(allocated - low, 0), most


def _headline_without_limit(analysis: Analysis) -> str:
    """Say how high the peak is, or what did not fit where the step ended for want of memory."""
    peak = analysis.peak
    if not analysis.recording.error:
        return (
            f"Peak {format_bytes(peak.allocated_bytes)} allocated for "
            f"{format_bytes(peak.requested_bytes)} requested"
        )
    failure = failure_of(analysis)
    if failure and failure.requested_bytes is None and failure.memory_limit_bytes is not None:
        in_use = format_bytes(failure.in_use_bytes)
        return f"Out of memory: {in_use} in use of {format_bytes(failure.memory_limit_bytes)}"
    if failure is None or failure.requested_bytes is None or failure.memory_limit_bytes is None:
        allocated = format_bytes(peak.allocated_bytes)
        return f"The step did not finish. Peak {allocated} allocated until then"
    return (
        f"Out of memory: {format_bytes(failure.requested_bytes)} more do not fit beside the "
        f"{format_bytes(failure.in_use_bytes)} in use of {format_bytes(failure.memory_limit_bytes)}"
    )


def _with_card(analysis: Analysis, gpu: Gpu, verdict: Verdict) -> Analysis:
    """Return the analysis with ``fit``: the verdict's numbers, and what lies on the card beside them."""
    recording = analysis.recording
    had = recording.device.memory_limit_bytes
    if not had:
        return analysis
    options = BfcOptions.gpu(had)
    limit, overhead = memory_limit(gpu), process_overhead(gpu)
    ever = analysis.pool.pool_ever_bytes  # None where there is no pool that holds the step
    grew = recording.kind.ran and ever is not None and ever < had
    if grew:
        grown = ever
    else:
        growth = replay(from_recording(recording), replace(options, growth=True))
        grown = None if growth.failure is not None else growth.peak_pool_bytes
    numbers = verdict.figures()
    fit = CardFit(
        fits=verdict.fits,
        card=gpu.id,
        limit_bytes=numbers.limit_bytes,
        limit_low_bytes=numbers.limit_low_bytes,
        limit_high_bytes=numbers.limit_high_bytes,
        needed_bytes=numbers.need_bytes,
        needed_low_bytes=numbers.need_low_bytes,
        needed_high_bytes=numbers.need_high_bytes,
        margin_bytes=numbers.margin_bytes,
        growth_pool_bytes=grown,
        outside_pool=SourcedBytes(**asdict(overhead)),
        limit_source=limit.source,
        says=tuple(_says(gpu, verdict, limit, overhead, grown, grew=grew)),
    )
    process = None if ever is None else ever + overhead.bytes
    facts = structs.replace(analysis.pool, fit=fit, process_bytes=process)
    return replace(analysis, pool=facts)


def _says(
    gpu: Gpu,
    verdict: Verdict,
    limit: MemoryRange,
    overhead: MemoryRange,
    grown: int | None,
    *,
    grew: bool,
) -> list[str]:
    """Return what is said of a card's memory beside the verdict.

    Args:
        gpu: The card.
        verdict: The verdict.
        limit: TensorFlow's limit on it.
        overhead: What lies on it outside the pool.
        grown: The pool with memory growth; None where the step fails with it.
        grew: The step ran with memory growth.
    """
    on_card = Bounds.around(limit.bytes, limit.low_bytes, limit.high_bytes)
    need = "" if verdict.need is None else f"; the step needs {verdict.need.told}"
    says = [f"TensorFlow's limit on {gpu.name} is {on_card.told}{need}."]
    if grew and grown is not None:
        says.append(f"Pool: with memory growth, as it ran, it came to {format_bytes(grown)}.")
    elif grown is not None:
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
