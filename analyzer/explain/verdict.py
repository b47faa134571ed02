"""The verdict: does the step fit the named card or the given limit, by how much and how surely?

On a card, the need is TensorFlow's pool plus CUDA's context, libraries and kernels, and the limit is
the largest pool plus the same memory: the card's memory without the unused rest of TensorFlow's
reserve. A limit of the user is for the pool alone. The limit of the allocator that a capture happened
to use gives no verdict.
"""

from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from analyzer.cards.catalogue import Gpu, memory_beside_pool, memory_limit
from analyzer.explain.analysis import Analysis, card_of
from analyzer.explain.need import find_need, with_replay
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.trace_integrity import trust_figures
from analyzer.model.contract.report_file import (
    Fits,
    LimitOf,
    Need,
    NeedOf,
    Outcome,
    VerdictFigures,
)
from analyzer.model.recording.records import Kind, find_own_peak
from analyzer.model.units import BoundedBytes, format_bytes

# The ``fits`` of the JSON for each outcome; null for any other.
FITS: dict[Outcome, Fits] = {
    Outcome.FITS: True,
    Outcome.DOES_NOT_FIT: False,
    Outcome.CANNOT_TELL: "may not",
}

# Least limit of a pool, in peaks of its chunks: at most 2.0 in 61 programs of others.
_FRAGMENTATION = 2


@dataclass(frozen=True, kw_only=True)
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
        if self.beside_pool is None:
            return self.limit

        return self.limit + self.beside_pool

    def answer(self, place: str, need: Need, incomplete: str) -> tuple[Outcome, str]:
        """Return the outcome and its headline.

        The headline is one line: ``FITS Tesla T4: needs 3.00 GiB of 13.42 GiB, ...``. ``incomplete``
        is why the need is only a lower bound (the step did not end, a tensor has no size, the trace is
        damaged); empty if it is not.
        """
        own_bytes = need.own_peak_bytes
        limit = self.whole

        size = need.total
        is_least = bool(incomplete) or (
            own_bytes is not None and need.before_trace is not None
        )
        verb = "needs at least" if is_least else "needs"
        is_below = size.range.high <= limit.range.low

        if size.range.low > limit.range.high:
            outcome = Outcome.DOES_NOT_FIT
            head = "DOES NOT FIT"
            word = "too much"
        elif is_below and not incomplete:
            outcome = Outcome.FITS
            head = "FITS"
            word = "to spare"
        else:
            head = "CANNOT TELL if it fits" if is_below else "MAY NOT FIT"
            reason = f"; {incomplete}" if incomplete else ""
            return (
                Outcome.CANNOT_TELL,
                f"{head} {place}: {verb} {size} of {limit}{reason}",
            )

        margin = format_bytes(abs(limit.bytes - size.bytes))
        sizes = f"{format_bytes(size.bytes)} of {format_bytes(limit.bytes)}"

        return outcome, f"{head} {place}: {verb} {sizes}, {margin} {word}"


def judge(analysis: Analysis, limit_bytes: int | None) -> Analysis:
    """Return the analysis, after ``add_pool``, with its verdict.

    ``limit_bytes`` is the memory limit that the user asked about; None for none.
    """
    recording = analysis.recording
    gpu = card_of(recording)
    question = _question(analysis, gpu, limit_bytes)
    is_searched = analysis.safe_limit_bytes is not None

    base = VerdictFigures(
        outcome=Outcome.FAILED if recording.error is not None else Outcome.NO_LIMIT,
        card=None if gpu is None else gpu.name,
        need_of=NeedOf.LEAST_LIMIT if is_searched else NeedOf.ALLOCATED,
        headline=_headline_without_limit(analysis),
    )

    verdict = make_verdict(
        base,
        question,
        *find_need(analysis),
        is_measured=recording.kind is Kind.TRACE,
        incomplete=_find_gap(analysis, question),
        has_run_out=failure_of(analysis) is not None,
    )

    return replace(analysis, verdict=verdict)


def _find_gap(analysis: Analysis, question: Question | None) -> str:
    """Return why the need is only a lower bound; empty if it is not."""
    recording = analysis.recording
    trust = trust_figures(analysis)
    watch = recording.watch
    stated = recording.uncertainty

    if recording.error:
        return "the step did not end"

    if watch and watch.failed:
        return f"step {watch.failed.step} ran out of memory"

    if watch and watch.whole_run and watch.ended:
        return f"the program ended with {watch.ended}"

    if stated and stated.unsized:
        return f"{stated.unsized} tensors have no known size"

    if trust and trust.is_damaged:
        return "the trace is damaged"

    if question is None or question.is_own:
        return ""

    own_bytes = find_own_peak(recording) or 0
    is_hidden = own_bytes > analysis.peak_ever.allocated_bytes
    if is_hidden and question.limit.range.low < _FRAGMENTATION * own_bytes:
        return "the peak lies outside the traced steps, so fragmentation is unknown"

    return ""


def make_verdict(
    base: VerdictFigures,
    question: Question | None,
    least: Need,
    most: Need,
    *,
    is_measured: bool,
    incomplete: str = "",
    has_run_out: bool = False,
) -> VerdictFigures:
    """Return the verdict, by the need in the pool without trials of algorithms and with all of them.

    ``base`` is the verdict without a limit, ``has_run_out`` whether the error is a lack of memory.
    """
    if question is None:
        if base.need_of is NeedOf.LEAST_LIMIT or most.own_peak_bytes is not None:
            return structs.replace(base, need=most, **_name_bounds("need", most.total))

        return base

    need = _answer_need(question, least, most, is_measured=is_measured)
    has_failed = base.outcome is Outcome.FAILED
    on_card = question.limit_of is LimitOf.CARD
    place = base.card or "" if on_card else "the given limit"

    if base.card and not on_card:
        place += f" on {base.card}"

    outcome, headline = question.answer(place, need, incomplete)
    if question.is_own and has_failed:
        headline = f"{headline.partition(':')[0]}. {base.headline}"
        if not has_run_out:
            outcome = Outcome.FAILED
            headline = base.headline

    whole = question.whole

    return structs.replace(
        base,
        outcome=outcome,
        limit_of=question.limit_of,
        need=need,
        **_name_bounds("limit", whole),
        **_name_bounds("need", need.total),
        margin_bytes=whole.bytes - need.total.bytes,
        headline=headline,
    )


def _answer_need(
    question: Question,
    least: Need,
    most: Need,
    *,
    is_measured: bool,
) -> Need:
    """Return the need with all trials of algorithms if they fit, else without the others."""
    runs = question.runs_at_limit
    limit = question.limit
    has_trials = runs and most.pool.range.high <= limit.range.low

    need = with_replay(
        most if has_trials else least,
        limit,
        runs=runs,
        is_measured=is_measured,
        is_own=question.is_own,
    )

    return structs.replace(need, beside_pool=question.beside_pool)


def _name_bounds(name: str, size: BoundedBytes) -> dict[str, Any]:
    """Return the three fields of a report's record for a size with its bounds."""
    return {
        f"{name}_bytes": size.bytes,
        f"{name}_low_bytes": size.range.low,
        f"{name}_high_bytes": size.range.high,
    }


def _question(
    analysis: Analysis,
    gpu: Gpu | None,
    limit_bytes: int | None,
) -> Question | None:
    """Return the lower of the card's and the user's limit; None if there is none."""
    card = None if gpu is None else _card_question(analysis, gpu)
    if limit_bytes is None or (card is not None and limit_bytes > card.limit.bytes):
        return card

    replayed = analysis.what_if

    return Question(
        limit_of=LimitOf.USER,
        limit=BoundedBytes.exactly(limit_bytes),
        runs_at_limit=replayed is None or replayed.fits,
    )


def _card_question(analysis: Analysis, gpu: Gpu) -> Question:
    """Return the limit of the card, or the limit under which the step ran on a simulated one.

    A failure on a simulated card is about that card; a success also about others of the name.
    """
    recording = analysis.recording
    limit: BoundedBytes = memory_limit(gpu)
    note = recording.simulated_run
    replayed = Question(
        limit_of=LimitOf.CARD,
        limit=limit,
        beside_pool=BoundedBytes.exactly(memory_beside_pool(gpu)),
        runs_at_limit=analysis.fits_limit,
    )

    if note is None or not recording.kind.ran:
        return replayed

    # a run with room for any step follows one that the card was too small for
    runs = recording.error is None and not note.is_unlimited
    if note.memory_limit_bytes is not None:
        limit = BoundedBytes.exactly(note.memory_limit_bytes)
        return Question(
            limit_of=LimitOf.USER,
            limit=limit,
            runs_at_limit=runs,
            is_own=True,
        )

    own_bytes = recording.device.memory_limit_bytes or limit.bytes
    ends = (limit.range.low, limit.range.high) if runs else (own_bytes, own_bytes)

    return replace(
        replayed,
        limit=BoundedBytes.around(own_bytes, *ends),
        runs_at_limit=runs,
        is_own=True,
    )


def _headline_without_limit(analysis: Analysis) -> str:
    """Return the request that failed, in one line; empty if the step ended."""
    if not analysis.recording.error:
        return ""

    failure = failure_of(analysis)
    if failure is None or failure.memory_limit_bytes is None:
        allocated = format_bytes(analysis.peak.allocated_bytes)
        return f"The step did not finish. Peak {allocated} allocated until then"

    return failure.describe()
