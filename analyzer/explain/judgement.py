"""Judge whether a step fits the named card or the given limit, by how much and how surely.

On a card, the need is TensorFlow's pool plus CUDA's context, libraries and kernels, and the limit is the
largest pool plus the same memory: the card's memory without the unused rest of TensorFlow's reserve. A
limit of the user is for the pool alone.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from analyzer.cards import Gpu, memory_beside_pool, memory_limit, process_overhead
from analyzer.cards.catalogue import look_up_gpu
from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import TEXTS
from analyzer.explain.need import find_need, with_replay
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.running.slope import find_own_peak
from analyzer.explain.trace_integrity import trust_figures
from analyzer.explain.verdict import BASES, FITS, cautions_of, headline_of, outcome_of
from analyzer.model.contract.report.limit_figures import (
    Basis,
    CardFit,
    LimitOf,
    Need,
    NeedOf,
    Outcome,
    VerdictFigures,
)
from analyzer.model.ranges import BoundedBytes
from analyzer.model.recording.records import Kind, Recording
from analyzer.model.units import format_bytes
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import from_recording, replay

_FRAGMENTATION: Final = 2
"""Least limit of a pool, in peaks of its chunks: at most 2.0 in 61 programs of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The limit that the verdict is about."""

    limit_of: LimitOf
    limit: BoundedBytes  # the limit of TensorFlow's pool
    # memory beside the pool on the card; None if the limit is the user's
    beside_pool: BoundedBytes | None = None
    runs_at_limit: bool  # whether the step, or a replay of it, succeeds under it
    is_own: bool = False  # whether the step itself ran under it, on a simulated card

    @property
    def whole(self) -> BoundedBytes:
        """The pool's limit plus the memory beside the pool; it is compared with the need."""
        return self.limit if self.beside_pool is None else self.limit + self.beside_pool

    def answer(self, place: str, need: Need, incomplete: str) -> tuple[Outcome, str]:
        """Return the outcome and its headline, of a program for its pool and the pool's limit."""
        own_bytes = need.own_peak_bytes
        limit, size = (self.whole, need.total) if own_bytes is None else (self.limit, need.pool)
        outcome = outcome_of(limit, size, is_complete=not incomplete)
        is_least = own_bytes is not None and need.before_trace is not None
        line = headline_of(outcome, place, limit, size, incomplete, own_bytes, is_least=is_least)
        return outcome, line


def card_of(recording: Recording) -> Gpu | None:
    """Return the card of a prediction or a run on a simulated card; None for any other recording."""
    if recording.kind is Kind.TRACE or recording.device.kind != "gpu":
        return None
    return look_up_gpu(recording.device.name)


def card_options(recording: Recording) -> BfcOptions | None:
    """Return the default allocator of a card: one region of the whole limit.

    None for a recording that ran under a limit: its events show its settings.
    """
    limit = recording.device.memory_limit_bytes
    if recording.ran_under_limit or card_of(recording) is None or not limit:
        return None
    return BfcOptions.gpu(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a recording that a verdict depends on, beside its need."""

    basis: Basis
    card: str
    peak_line: str  # the headline if no limit is asked about
    has_failed: bool = False
    has_run_out: bool = False  # whether the error is a lack of memory
    incomplete: str = ""  # why the need is only a lower bound
    need_of: NeedOf = NeedOf.LEAST_LIMIT
    cautions: tuple[str, ...] = ()


def judge(analysis: Analysis, limit_bytes: int | None) -> Analysis:
    """Return the analysis, after ``add_pool``, with its verdict and the other memory on its card.

    ``limit_bytes`` is the memory limit that the user asked about; None for none.
    """
    recording, trust = analysis.recording, trust_figures(analysis)
    gpu = card_of(recording)
    question = _question(analysis, gpu, limit_bytes)
    incomplete, watch = "", recording.watch
    if recording.error:
        incomplete = "the step did not end"
    elif watch is not None and watch.failed is not None:
        incomplete = f"step {watch.failed.step} ran out of memory"
    elif watch is not None and watch.whole_run and watch.ended:
        incomplete = f"the program ended with {watch.ended}"
    elif recording.uncertainty is not None and recording.uncertainty.unsized:
        incomplete = f"{recording.uncertainty.unsized} tensors have no known size"
    elif trust is not None and trust.is_damaged:
        incomplete = "the trace is damaged"
    elif question is not None and _has_hidden_peak(analysis, question):
        incomplete = "the peak lies outside the traced steps, so fragmentation is unknown"
    is_searched = analysis.pool.safe_limit_bytes is not None
    facts = RunFacts(
        basis=BASES[str(recording.kind)],
        card="" if gpu is None else gpu.name,
        peak_line=_headline_without_limit(analysis),
        has_failed=recording.error is not None,
        has_run_out=failure_of(analysis) is not None,
        incomplete=incomplete,
        need_of=NeedOf.LEAST_LIMIT if is_searched else NeedOf.ALLOCATED,
        cautions=cautions_of(analysis),
    )
    verdict = make_verdict(facts, question, *find_need(analysis))
    analysis = replace(analysis, verdict=verdict)
    if gpu is None or question is None or verdict.need is None:
        return analysis
    return _with_card(analysis, gpu, question.limit, verdict.need.pool)


def _has_hidden_peak(analysis: Analysis, question: Question) -> bool:
    """Return whether a limit may be too low for the fragmentation at a peak outside the trace."""
    own_bytes = 0 if question.is_own else find_own_peak(analysis.recording) or 0
    seen_bytes, near_bytes = analysis.peak_ever.allocated_bytes, _FRAGMENTATION * own_bytes
    return own_bytes > seen_bytes and question.limit.range.low < near_bytes


def make_verdict(
    facts: RunFacts, question: Question | None, least: Need, most: Need
) -> VerdictFigures:
    """Return the verdict, by the need in the pool without trials of algorithms and with all of them."""
    verdict = VerdictFigures(
        outcome=Outcome.FAILED if facts.has_failed else Outcome.NO_LIMIT,
        basis=facts.basis,
        card=facts.card or None,
        need_of=facts.need_of,
        headline=facts.peak_line,
        cautions=facts.cautions,
    )
    if question is None:
        if facts.need_of is NeedOf.LEAST_LIMIT or most.own_peak_bytes is not None:
            verdict = structs.replace(verdict, need=most, **_bounded("need", most.total))
        return verdict
    need = _answer_need(question, least, most, is_measured=facts.basis is Basis.MEASURED)
    outcome, headline = _answer(facts, question, need)
    processes = question.whole.range.low // max(need.total.range.high, 1)
    return structs.replace(
        verdict,
        outcome=outcome,
        limit_of=question.limit_of,
        need=need,
        **_bounded("limit", question.whole),
        **_bounded("need", need.total),
        margin_bytes=question.whole.bytes - need.total.bytes,
        processes=processes if question.limit_of is LimitOf.CARD else None,
        headline=headline,
    )


def _answer_need(question: Question, least: Need, most: Need, *, is_measured: bool) -> Need:
    """Return the need with all trials of algorithms if they fit, else without the others."""
    runs, limit = question.runs_at_limit, question.limit
    has_trials = runs and most.pool.range.high <= limit.range.low
    need = with_replay(
        most if has_trials else least,
        limit,
        runs=runs,
        is_measured=is_measured,
        is_own=question.is_own,
    )
    skipped = max(most.pool.bytes - need.pool.bytes, 0)
    return structs.replace(need, beside_pool=question.beside_pool, skipped_bytes=skipped)


def _bounded(name: str, size: BoundedBytes) -> dict[str, Any]:
    """Return the three fields of a report's record for a size with its bounds."""
    ends = {"bytes": size.bytes, "low_bytes": size.range.low, "high_bytes": size.range.high}
    return {f"{name}_{end}": value for end, value in ends.items()}


def _answer(facts: RunFacts, question: Question, need: Need) -> tuple[Outcome, str]:
    """Return the outcome and its headline."""
    if question.is_own and facts.has_failed and not facts.has_run_out:
        return Outcome.FAILED, facts.peak_line
    place = facts.card if question.limit_of is LimitOf.CARD else "the given limit"
    if question.limit_of is LimitOf.USER and facts.card:
        place += f" on {facts.card}"
    outcome, headline = question.answer(place, need, facts.incomplete)
    if question.is_own and facts.has_failed:
        headline = f"{headline.partition(':')[0]}. {facts.peak_line}"
    return outcome, headline


def _question(analysis: Analysis, gpu: Gpu | None, limit_bytes: int | None) -> Question | None:
    """Return the lower of the card's and the user's limit; None if there is none."""
    card = None if gpu is None else _card_question(analysis, gpu)
    if limit_bytes is None or (card is not None and limit_bytes > card.limit.bytes):
        return card
    replayed = analysis.pool.what_if
    runs, limit = replayed is None or replayed.fits, BoundedBytes.exactly(limit_bytes)
    return Question(limit_of=LimitOf.USER, limit=limit, runs_at_limit=runs)


def _card_question(analysis: Analysis, gpu: Gpu) -> Question:
    """Return the limit of the card, or the limit under which the step ran on a simulated one.

    A failure on a simulated card is about that card; a success also about others of the name.
    """
    recording = analysis.recording
    limit: BoundedBytes = memory_limit(gpu)
    own = recording.phantom_run
    if not recording.ran_under_limit:  # a replay decides
        own = None
    runs = analysis.pool.fits_limit if own is None else recording.error is None
    if own is not None and own.memory_limit_bytes is not None:
        limit = BoundedBytes.exactly(own.memory_limit_bytes)
        return Question(limit_of=LimitOf.USER, limit=limit, runs_at_limit=runs, is_own=True)
    if own is not None:
        own_bytes = recording.device.memory_limit_bytes or limit.bytes
        ends = (limit.range.low, limit.range.high) if runs else (own_bytes, own_bytes)
        limit = BoundedBytes.around(own_bytes, *ends)
    return Question(
        limit_of=LimitOf.CARD,
        limit=limit,
        beside_pool=BoundedBytes.exactly(memory_beside_pool(gpu)),
        runs_at_limit=runs,
        is_own=own is not None,
    )


def _headline_without_limit(analysis: Analysis) -> str:
    """Return the peak, or the request that failed, in one line."""
    peak, failure = analysis.peak, failure_of(analysis)
    allocated = format_bytes(peak.allocated_bytes)
    own_peak_bytes = find_own_peak(analysis.recording) or 0
    if not analysis.recording.error:
        if own_peak_bytes:
            own = format_bytes(own_peak_bytes)
            has_steps = not getattr(analysis.recording.watch, "whole_run", True)
            steady = f", {allocated} in a steady step" if has_steps else ""
            return f"TensorFlow's own peak is {own} since the program's start{steady}"
        return f"Peak {allocated} allocated for {format_bytes(peak.requested_bytes)} requested"
    if failure is None or failure.memory_limit_bytes is None:
        return f"The step did not finish. Peak {allocated} allocated until then"
    in_use = f"{format_bytes(failure.in_use_bytes)} of {format_bytes(failure.memory_limit_bytes)}"
    if failure.requested_bytes is None:
        return f"Out of memory: {in_use} are in use"
    wanted = format_bytes(failure.requested_bytes)
    return f"Out of memory: a request for {wanted} failed with {in_use} in use"


def _with_card(analysis: Analysis, gpu: Gpu, limit: BoundedBytes, need: BoundedBytes) -> Analysis:
    """Return the analysis with the card's figures: limit and need of the pool, other memory."""
    recording = analysis.recording
    own_limit = recording.device.memory_limit_bytes
    if not own_limit:
        return analysis
    overhead, card = process_overhead(gpu), memory_limit(gpu)
    growth_bytes = pool_bytes = analysis.pool.pool_ever_bytes  # None if the pool is too small
    has_grown = recording.kind.ran and pool_bytes is not None and pool_bytes < own_limit
    if not has_grown:
        options = replace(BfcOptions.gpu(own_limit), growth=True)
        replayed = replay(from_recording(recording), options)
        growth_bytes = None if replayed.failure is not None else replayed.peak_pool_bytes
    says = [TEXTS["card-limit"].format(gpu.name, card), TEXTS["card-overhead"].format(overhead)]
    if growth_bytes is not None:
        pool = TEXTS["card-grew" if has_grown else "card-would-grow"]
        says.insert(1, pool.format(format_bytes(growth_bytes)))
    fit = CardFit(
        fits=None if analysis.verdict is None else FITS.get(analysis.verdict.outcome),
        card=gpu.id,
        **_bounded("limit", limit),
        **_bounded("needed", need),
        margin_bytes=limit.bytes - need.bytes,
        growth_pool_bytes=growth_bytes,
        says=tuple(says),
    )
    process = None if pool_bytes is None else pool_bytes + overhead.bytes
    return replace(analysis, pool=structs.replace(analysis.pool, fit=fit, process_bytes=process))
