"""From a target and a limit to the largest size that fits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fields

from analyzer.capture.targets.target_spec import write_options
from analyzer.cards import Gpu, memory_beside_pool, memory_limit
from analyzer.fitting.fit_answer import FitAnswer, LimitOwner
from analyzer.fitting.fit_document import add_headline
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.size_answers import (
    StepFacts,
    answer_sizes,
    assume_facts,
    can_run,
)
from analyzer.fitting.size_search import SizeSearch
from analyzer.fitting.step_access import StepAccess, access_target
from analyzer.fitting.varied_size import Varied, apply_size, choose_first_size
from analyzer.model.contract.capture_request import CaptureOptions, Progress, TargetSpec
from analyzer.model.interrupts import Terminated
from analyzer.model.machine import read_memory_bytes
from analyzer.model.units import BoundedBytes
from analyzer.session.target_results import share_progress
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulated_card.card_environment import find_smallest_card

# Takes an answer that a command can show if it is interrupted.
Keep = Callable[[FitAnswer], None]

_SEARCH_SHARE = 0.8  # of the progress; the rest is for the remedies


@dataclass(frozen=True, kw_only=True)
class FitQuestion:
    """A question about a target."""

    limit_bytes: int | None = None  # None for the card's own, or this machine's memory
    wanted: int | None = None  # a size to judge
    remedies: tuple[str, ...] | None = None  # names; empty for all, None for none
    varied: Varied = ()
    # Per hour; of all cards to judge
    prices: Mapping[Gpu, float] = field(default_factory=dict)


def fit_target(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    progress: Progress,
    keep: Keep,
) -> FitAnswer:
    """Find the largest size of a target's step under a limit; start at the options' batch size."""
    reached = [0.0]

    def report(stage: str, share: float) -> None:
        reached[0] = share
        progress(stage, share)

    with access_target(spec, lambda stage: progress(stage, reached[0])) as access:
        return fit_step(access, options, question, report, keep)


def fit_step(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    report: Progress,
    keep: Keep = lambda answer: None,
) -> FitAnswer:
    """Find the largest size of a step under a limit; ``keep`` gets the answer before an interruption."""
    limit_of, limit = resolve_limit(options, question.limit_bytes)
    varied = question.varied
    limited = limit_options(options, question.limit_bytes)

    # Right for the side of an image, and for attention.
    power = 2 if varied else 1
    search = SizeSearch(limit.bytes, choose_first_size(varied, options), power)

    def describe(facts: StepFacts) -> FitAnswer:
        limited_by = (limit_of, limit)
        return describe_sizes(access.name, options, search, facts, limited_by, question)

    try:
        facts = answer_sizes(
            access,
            limited,
            varied,
            search,
            share_progress(report, 0.0, _SEARCH_SHARE),
        )
    except (KeyboardInterrupt, Terminated):
        if search.points:
            known = assume_facts(limited, can_run(access, limited))
            keep(add_headline(describe(known)))

        raise

    answer = describe(facts)
    keep(add_headline(answer))

    if question.remedies is not None:
        chosen = apply_size(varied, limited, answer.size_of_remedies)
        rest = share_progress(report, _SEARCH_SHARE, 1.0)
        trial = RemedyTrial(access, chosen, answer.limit_bytes, rest)
        answer = replace_fields(answer, remedies=try_remedies(trial, question.remedies))

    report("done", 1.0)

    return add_headline(answer)


def limit_options(options: CaptureOptions, limit_bytes: int | None) -> CaptureOptions:
    """Return the options with the limit of a card, which its runs and the graph optimizer use."""
    if not options.gpu or limit_bytes is None:
        return options

    return replace(options, memory_limit_bytes=limit_bytes)


def resolve_limit(
    options: CaptureOptions,
    limit_bytes: int | None,
) -> tuple[LimitOwner, BoundedBytes]:
    """Return the owner and the value of the lower limit, the card's or the user's."""
    if limit_bytes is not None:
        # raises if no allocator has such a limit
        BfcOptions(memory_limit_bytes=limit_bytes)

    card = memory_limit(find_smallest_card(options.gpu)) if options.gpu else None
    if limit_bytes is not None and (card is None or limit_bytes <= card.bytes):
        return "given", BoundedBytes.exactly(limit_bytes)

    if card is not None:
        return "card", card

    return "machine", BoundedBytes.exactly(read_memory_bytes())


def find_safe_size(search: SizeSearch, low_bytes: int, largest: int) -> int:
    """Return the largest size whose upper bound of the need fits the lower bound of a limit.

    A run's peak near the limit shows how much of the limit the allocator can use.
    """
    point = search.points.get(largest)
    if (
        point is not None
        and point.need_bytes is not None
        and search.failing is not None
    ):
        low_bytes = min(low_bytes, point.need_bytes)

    safe = search.size_at(low_bytes, lambda one: one.need_high_bytes)

    return min(safe, largest)


def describe_sizes(
    name: str,
    options: CaptureOptions,
    search: SizeSearch,
    facts: StepFacts,
    limited_by: tuple[LimitOwner, BoundedBytes],
    question: FitQuestion,
) -> FitAnswer:
    """Return the answer of a search."""
    gpu = find_smallest_card(options.gpu) if options.gpu else None
    limit_of, limit = limited_by
    largest = search.fitting

    step = facts.step
    is_batch = not question.varied
    wanted = question.wanted

    return FitAnswer(
        target=name,
        shape=" ".join(question.varied),
        batch_size=None if is_batch else step.batch_size,
        mode=step.mode,
        jit=step.jit,
        optimizer=step.optimizer,
        dtype_policy=step.dtype_policy,
        options=write_options(replace(options, batch_size=None)),
        card=options.gpu,
        card_name="" if gpu is None else gpu.name,
        limit_of=limit_of,
        limit_bytes=limit.bytes,
        limit_low_bytes=limit.range.low,
        limit_high_bytes=limit.range.high,
        beside_pool_bytes=memory_beside_pool(gpu) if gpu and limit_of == "card" else 0,
        by=facts.by,
        largest=largest,
        failing=search.failing,
        safe=find_safe_size(search, limit.range.low, largest),
        bytes_per_example=search.slope() if is_batch else None,
        wanted=wanted,
        wanted_fits=None if wanted is None else wanted <= largest,
        points=tuple(search.points[size] for size in sorted(search.points)),
        notes=facts.notes,
        versions=facts.versions,
    )
