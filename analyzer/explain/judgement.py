"""Judge whether a step fits the named card or the given limit, by how much and how surely.

The allocator's limit decides. Other memory of the process on a card (CUDA context, libraries) is
subtracted before TensorFlow sets that limit or is part of the reserve; it is reported separately and
never added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from analyzer.cards import Gpu, MemoryRange, find_gpu, memory_limit, process_overhead
from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.trace_integrity import trust_figures
from analyzer.explain.verdict import BASES, FITS, cautions_of, headline_of, outcome_of
from analyzer.model.contract.report.limit_figures import (
    Basis,
    CardFit,
    LimitOf,
    NeedOf,
    Outcome,
    SourcedBytes,
    VerdictFigures,
)
from analyzer.model.errors import InputError
from analyzer.model.ranges import BoundedBytes
from analyzer.model.recording.records import Kind, Recording
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator import BfcOptions, from_recording, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The limit that the verdict is about.

    Attributes:
        limit_of: Whether it is the card's or the user's.
        limit: The limit.
        runs_at_limit: Whether the step, or a replay of it, succeeds under it.
        is_own: Whether the step itself ran under it, on a simulated card.
    """

    limit_of: LimitOf
    limit: BoundedBytes
    runs_at_limit: bool
    is_own: bool = False


def card_of(recording: Recording) -> Gpu | None:
    """Return the card of a prediction or a run on a simulated card; None for any other recording."""
    if recording.kind is Kind.TRACE or recording.device.kind != "gpu":
        return None
    try:
        return find_gpu(recording.device.name)
    except InputError:
        return None


def card_options(recording: Recording) -> BfcOptions | None:
    """Return the default allocator of a predicted card: one region of the whole limit.

    None for a recording that ran: its events show its settings.
    """
    limit = recording.device.memory_limit_bytes
    if recording.kind.ran or card_of(recording) is None or not limit:
        return None
    return BfcOptions.gpu(limit)


def judge(analysis: Analysis, limit_bytes: int | None) -> Analysis:
    """Return the analysis with its verdict and the other memory on its card.

    Args:
        analysis: The analysis, after ``add_pool``.
        limit_bytes: The memory limit that the user asked about; None for none.
    """
    gpu = card_of(analysis.recording)
    question = _question(analysis, gpu, limit_bytes)
    need = _need(analysis)
    if question is not None and question.is_own and not analysis.recording.error:
        # It ran under its limit by waiting for frees, which a replay does not do.
        need = need.at_most(question.limit.range.high)
    is_searched = analysis.pool.safe_limit_bytes is not None
    shown = need if question is not None or is_searched else None
    limit = None if question is None else question.limit
    outcome, headline = _answer(analysis, question, need, gpu.name if gpu is not None else "")
    verdict = VerdictFigures(
        outcome=outcome,
        basis=BASES[str(analysis.recording.kind)],
        limit_of=question.limit_of if question else None,
        card=gpu.name if gpu is not None else None,
        **_name_bytes("limit", limit),
        need_of=NeedOf.LEAST_LIMIT if is_searched else NeedOf.ALLOCATED,
        **_name_bytes("need", shown),
        margin_bytes=None if limit is None or shown is None else limit.bytes - shown.bytes,
        headline=headline,
        cautions=cautions_of(analysis),
    )
    analysis = replace(analysis, verdict=verdict)
    return analysis if gpu is None else _with_card(analysis, gpu, verdict, shown)


def _name_bytes(name: str, size: BoundedBytes | None) -> dict[str, int]:
    """Return a size and its range as fields of a record; no fields for None."""
    if size is None:
        return {}
    return {
        f"{name}_bytes": size.bytes,
        f"{name}_low_bytes": size.range.low,
        f"{name}_high_bytes": size.range.high,
    }


def _answer(
    analysis: Analysis, question: _Question | None, need: BoundedBytes, card: str
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
        headline = headline_of(Outcome.DOES_NOT_FIT, limit_of, card, limit, need)
        answer = headline.partition(":")[0]
        return Outcome.DOES_NOT_FIT, f"{answer}. {_headline_without_limit(analysis)}"
    stated, trust = recording.uncertainty, trust_figures(analysis)
    is_sized = stated is None or not stated.unsized
    is_complete = not recording.error and is_sized
    outcome = outcome_of(
        BASES[str(recording.kind)],
        limit,
        need,
        runs_at_limit=question.runs_at_limit,
        is_complete=is_complete and not (trust is not None and trust.is_damaged),
    )
    return outcome, headline_of(outcome, limit_of, card, limit, need, is_complete=is_complete)


def _question(analysis: Analysis, gpu: Gpu | None, limit_bytes: int | None) -> _Question | None:
    """Return the lower of the card's and the user's limit; None if there is none."""
    own = _own_question(analysis.recording, gpu)
    card = None if gpu is None or own is not None else memory_limit(gpu)
    lowest = own.limit.bytes if own is not None else None if card is None else card.bytes
    if limit_bytes is not None and (lowest is None or limit_bytes <= lowest):
        replayed = analysis.pool.what_if
        return _Question(
            limit_of=LimitOf.USER,
            limit=BoundedBytes.around(limit_bytes, limit_bytes, limit_bytes),
            runs_at_limit=replayed is None or replayed.fits,
        )
    if own is not None or card is None:
        return own
    return _Question(
        limit_of=LimitOf.CARD,
        limit=card,
        runs_at_limit=analysis.pool.fits_limit,
    )


def _own_question(recording: Recording, gpu: Gpu | None) -> _Question | None:
    """Return the limit under which a step ran on a simulated card; None for any other step."""
    if recording.phantom_run is None or gpu is None:
        return None
    runs = recording.error is None
    given = recording.phantom_run.memory_limit_bytes
    if given is not None:
        limit = BoundedBytes.around(given, given, given)
        return _Question(limit_of=LimitOf.USER, limit=limit, runs_at_limit=runs, is_own=True)
    card = memory_limit(gpu)
    own_bytes = recording.device.memory_limit_bytes or card.bytes
    limit = BoundedBytes.around(own_bytes, card.range.low, card.range.high)
    return _Question(limit_of=LimitOf.CARD, limit=limit, runs_at_limit=runs, is_own=True)


def _need(analysis: Analysis) -> BoundedBytes:
    """Return the lowest limit that works; the allocated peak if it was not searched for.

    If the sampled schedules were replayed under limits, they give the range for any limit;
    else the range is as wide as the one of the allocated peak. A library's workspace is not in it: if
    it does not fit, TensorFlow uses an algorithm without one (``conv_ops_gpu.h``,
    ``LaunchAutotunedConv``).
    """
    central = analysis.pool.safe_limit_bytes or analysis.peak_ever.allocated_bytes
    stated = analysis.recording.uncertainty
    if stated is None or BASES[str(analysis.recording.kind)] is Basis.MEASURED:
        return BoundedBytes.around(central, central, central)
    if stated.limit_low_bytes is not None and stated.limit_high_bytes is not None:
        return BoundedBytes.around(central, stated.limit_low_bytes, stated.limit_high_bytes)
    allocated = analysis.peak.allocated_bytes
    low = stated.allocated_low_bytes or allocated
    high = (stated.allocated_high_bytes or allocated) - (stated.workspace_bytes or 0)
    return BoundedBytes.around(
        central, central - max(allocated - low, 0), central + max(high - allocated, 0)
    )


def _headline_without_limit(analysis: Analysis) -> str:
    """Return the peak, or the request that failed, in one line."""
    peak = analysis.peak
    allocated = format_bytes(peak.allocated_bytes)
    if not analysis.recording.error:
        return f"Peak {allocated} allocated for {format_bytes(peak.requested_bytes)} requested"
    failure = failure_of(analysis)
    if failure is None or failure.memory_limit_bytes is None:
        return f"The step did not finish. Peak {allocated} allocated until then"
    in_use = f"{format_bytes(failure.in_use_bytes)} of {format_bytes(failure.memory_limit_bytes)}"
    if failure.requested_bytes is None:
        return f"Out of memory: {in_use} are in use"
    return (
        f"Out of memory: a request for {format_bytes(failure.requested_bytes)} failed with {in_use} in "
        "use"
    )


def _with_card(
    analysis: Analysis, gpu: Gpu, verdict: VerdictFigures, need: BoundedBytes | None
) -> Analysis:
    """Return the analysis with the card's figures: limit, need, pool, other memory."""
    recording = analysis.recording
    own_limit = recording.device.memory_limit_bytes
    if not own_limit:
        return analysis
    limit, overhead = memory_limit(gpu), process_overhead(gpu)
    pool_bytes = analysis.pool.pool_ever_bytes  # None if the pool does not hold the step
    has_grown = recording.kind.ran and pool_bytes is not None and pool_bytes < own_limit
    growth_bytes = pool_bytes
    if not has_grown:
        replayed = replay(
            from_recording(recording), replace(BfcOptions.gpu(own_limit), growth=True)
        )
        growth_bytes = None if replayed.failure is not None else replayed.peak_pool_bytes
    fit = CardFit(
        fits=FITS.get(verdict.outcome),
        card=gpu.id,
        limit_bytes=verdict.limit_bytes,
        limit_low_bytes=verdict.limit_low_bytes,
        limit_high_bytes=verdict.limit_high_bytes,
        needed_bytes=verdict.need_bytes,
        needed_low_bytes=verdict.need_low_bytes,
        needed_high_bytes=verdict.need_high_bytes,
        margin_bytes=verdict.margin_bytes,
        growth_pool_bytes=growth_bytes,
        outside_pool=SourcedBytes(
            bytes=overhead.bytes,
            low_bytes=overhead.range.low,
            high_bytes=overhead.range.high,
            source=overhead.source,
        ),
        limit_source=limit.source,
        says=tuple(_card_words(gpu, need, limit, overhead, growth_bytes, has_grown=has_grown)),
    )
    process = None if pool_bytes is None else pool_bytes + overhead.bytes
    facts = structs.replace(analysis.pool, fit=fit, process_bytes=process)
    return replace(analysis, pool=facts)


def _card_words(
    gpu: Gpu,
    need: BoundedBytes | None,
    limit: MemoryRange,
    overhead: MemoryRange,
    growth_bytes: int | None,
    *,
    has_grown: bool,
) -> Iterator[str]:
    """Yield sentences on a card's memory.

    Args:
        gpu: The card.
        need: The lowest limit; None if unknown.
        limit: TensorFlow's limit on the card.
        overhead: Memory of the process outside the pool.
        growth_bytes: The pool with memory growth; None if the step fails with it.
        has_grown: Whether the step ran with memory growth.
    """
    needs = "" if need is None else f"; the step needs {need}"
    yield f"TensorFlow's limit on {gpu.name} is {limit}{needs}."
    if has_grown and growth_bytes is not None:
        yield f"Pool: with memory growth, as in this run, it grew to {format_bytes(growth_bytes)}."
    elif growth_bytes is not None:
        yield (
            "Pool: TensorFlow takes the whole limit at its first allocation; with memory growth, the "
            f"pool would grow to {format_bytes(growth_bytes)}."
        )
    yield (
        f"Outside the pool: about {overhead} for the CUDA context, cuBLAS, cuDNN and loaded kernels, "
        "from public reports, not measured."
    )
