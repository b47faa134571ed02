"""From a target and a limit to the largest size that fits, on one card or on all of the catalogue.

The graph depends on the card's compute capability only: TensorFlow's layout optimizer asks for
tensor cores (7.0) and for TF32 (8.0; ``generic_layout_optimizer.cc``). So for all cards the step runs on
the largest card of each kind, at few sizes, and the other cards are judged by the needs there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replace_fields

from analyzer.capture.process.launch import is_model, name_live, save_model
from analyzer.capture.targets.target_spec import parse_target, write_options
from analyzer.cards.catalogue import Gpu, all_gpus, memory_beside_pool, memory_limit
from analyzer.fitting.fit_answer import (
    CardAnswer,
    FitAnswer,
    LimitOwner,
    Varied,
    apply_size,
    choose_first_size,
    parse_varied,
)
from analyzer.fitting.fit_document import add_headline
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.size_search import (
    CardSearch,
    Facts,
    SizeSearch,
    answer_sizes,
    assume_note,
    can_run,
)
from analyzer.fitting.step_access import (
    StepAccess,
    access_target,
    make_workplace,
    open_accesses,
    run_at_once,
)
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    StepOptions,
    TargetSpec,
)
from analyzer.model.errors import InputError
from analyzer.model.interrupts import Terminated
from analyzer.model.machine import read_memory_bytes
from analyzer.model.progress import listening
from analyzer.model.units import BoundedBytes, format_bytes, parse_bytes
from analyzer.session.target_results import (
    capture_object,
    is_xla_to_blame,
    leave_out_xla,
    make_options,
)
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulated_card.card_environment import find_smallest_card, normalize_cards

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Takes an answer that a command can show if it is interrupted.
Keep = Callable[[FitAnswer], None]


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
    keep: Keep,
) -> FitAnswer:
    """Find the largest size of a target's step under a limit; start at the options' batch size."""
    with access_target(spec) as access:
        return fit_step(access, options, question, keep)


def fit_step(
    access: StepAccess,
    options: CaptureOptions,
    question: FitQuestion,
    keep: Keep = lambda answer: None,
) -> FitAnswer:
    """Find the largest size of a step under a limit; ``keep`` gets the answer before an interruption."""
    limited_by = resolve_limit(options, question.limit_bytes)
    varied = question.varied
    limited = limit_options(options, question.limit_bytes)

    # Right for the side of an image, and for attention.
    power = 2 if varied else 1
    limit_bytes = limited_by[1].bytes
    search = SizeSearch(limit_bytes, choose_first_size(varied, options), power)

    def describe(facts: Facts) -> FitAnswer:
        return describe_sizes(access.name, options, search, facts, limited_by, question)

    try:
        facts = answer_sizes(access, limited, varied, search)
    except InputError as error:
        if not is_xla_to_blame(error, limited):
            raise

        return fit_step(access, leave_out_xla(error, options), question, keep)
    except (KeyboardInterrupt, Terminated):
        if search.points:
            known = can_run(access, limited), assume_note(limited)
            keep(add_headline(describe(known)))

        raise

    answer = describe(facts)
    keep(add_headline(answer))

    if question.remedies is not None:
        chosen = apply_size(varied, limited, answer.size_of_remedies)
        trial = RemedyTrial(access, chosen, answer.limit_bytes)
        answer = replace_fields(answer, remedies=try_remedies(trial, question.remedies))

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
    facts: Facts,
    limited_by: tuple[LimitOwner, BoundedBytes],
    question: FitQuestion,
) -> FitAnswer:
    """Return the answer of a search."""
    gpu = find_smallest_card(options.gpu) if options.gpu else None
    limit_of, limit = limited_by
    largest = search.fitting

    is_run, note = facts
    step = note.step
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
        by="runs" if is_run else "estimates",
        largest=largest,
        failing=search.failing,
        safe=find_safe_size(search, limit.range.low, largest),
        bytes_per_example=search.slope() if is_batch else None,
        wanted=wanted,
        wanted_fits=None if wanted is None else wanted <= largest,
        points=tuple(search.points[size] for size in sorted(search.points)),
        notes=note.notes,
        versions=note.versions,
    )


Rows = list[CardAnswer]

# Compute capability whose cards come first: XLA tries Triton's kernels from 8.0 on
# (``gemm_fusion.cc``), and compiling a transformer then takes twice as long.
_QUICK_KIND = 7

# Compute capability from which XLA fails to compile some products of matrices ("Failed to compute
# symbolic tile", TensorFlow 2.21). The older cards of the kind are then judged by themselves.
_NEWEST = 10


def fit_all_cards(
    spec: TargetSpec,
    options: CaptureOptions,
    question: FitQuestion,
    keep: Keep,
) -> FitAnswer:
    """Find the largest batch on each card, or on each one with a price; or judge one batch.

    ``keep`` gets the answer for the cards so far after each kind of card. A kind that compiles quickly
    and the most frequent one are judged first.
    """
    cards = list(question.prices) or [gpu for gpu in all_gpus() if not gpu.is_amd]
    cards.sort(key=lambda gpu: (_kind_of(gpu), memory_limit(gpu).bytes, gpu.id))

    kinds = [list(group) for _, group in groupby(cards, _kind_of)]
    kinds.sort(key=lambda group: (_kind_of(group[0]) != _QUICK_KIND, -len(group)))

    rows: Rows = []

    judged = 0  # kinds of cards

    def show(stage: str, share: float | None) -> None:
        known = f"{len(rows)} of {len(cards)} cards known"
        outer(f"{stage}, {known}", judged / len(kinds))

    fit_kind = partial(_fit_kind, options, question)

    def judge(access: StepAccess, group: list[Gpu]) -> tuple[FitAnswer, Rows]:
        try:
            return fit_kind(access, group)
        except InputError as error:
            if not is_xla_to_blame(error, options):
                raise

            newest = [gpu for gpu in group if gpu.compute_capability[0] >= _NEWEST]
            failing = newest or group
            rest = [gpu for gpu in group if gpu not in failing]
            plain = leave_out_xla(error, options)
            answer, rows = _fit_kind(plain, question, access, failing)
            if not rest:
                return answer, rows

            compiled, more_rows = fit_kind(access, rest)
            notes = (*compiled.notes, *answer.notes)
            return replace_fields(compiled, notes=notes), rows + more_rows

    with (
        listening(show) as outer,
        open_accesses(spec, len(kinds)) as accesses,
        closing(run_at_once(accesses, judge, kinds)) as found,
    ):
        for kind_answer, new_rows in found:
            rows += new_rows
            answer = _combine(kind_answer, rows, question.wanted, len(cards))
            keep(answer)
            judged += 1

    return answer


def _kind_of(gpu: Gpu) -> int:
    return min(gpu.compute_capability[0], 8)


def _fit_kind(
    options: CaptureOptions,
    question: FitQuestion,
    access: StepAccess,
    cards: list[Gpu],
) -> tuple[FitAnswer, Rows]:
    """Return the answer for the largest card of one kind, and the rows of all of them."""
    rows = []
    largest_card = cards[-1]

    limits = [memory_limit(gpu) for gpu in cards]
    chosen = replace(options, gpu=largest_card.id, skips_trials=True)
    own_access = replace(access, folder=access.folder / largest_card.id)

    is_one = question.wanted is not None
    all_bytes = [limit.bytes for limit in limits]
    search = CardSearch(all_bytes, choose_first_size((), options), is_one=is_one)
    facts = answer_sizes(own_access, chosen, (), search)

    for gpu, limit in zip(cards, limits, strict=True):
        largest = safe = holds_wanted = need_bytes = None
        if question.wanted is not None:
            need_bytes = search.points[question.wanted].need_bytes
            holds_wanted = need_bytes is not None and need_bytes <= limit.bytes
        else:
            largest = search.size_at(limit.bytes)
            safe = find_safe_size(search, limit.range.low, largest)

        rows.append(
            CardAnswer(
                id=gpu.id,
                memory_bytes=gpu.memory_bytes,
                limit_bytes=limit.bytes,
                beside_pool_bytes=memory_beside_pool(gpu),
                largest=largest,
                safe=safe,
                holds_wanted=holds_wanted,
                need_bytes=need_bytes,
                price=question.prices.get(gpu),
            )
        )

    answer = describe_sizes(
        access.name,
        chosen,
        search,
        facts,
        ("card", limits[-1]),
        question,
    )
    return answer, rows


def _combine(
    answer: FitAnswer,
    rows: list[CardAnswer],
    wanted: int | None,
    total: int,
) -> FitAnswer:
    """Return the answer for one card as the answer for the cards so far."""
    rows.sort(key=lambda row: (row.limit_bytes, row.id))
    smallest = rows[0]
    largest = rows[-1]

    if smallest.price is not None:
        rows.sort(
            key=lambda row: (not row.holds_wanted and wanted is not None, row.price)
        )

    holds = [row for row in rows if row.holds_wanted]

    if wanted is None:
        headline = (
            f"Batch {smallest.largest:,} fits the smallest card ({smallest.id}) and batch "
            f"{largest.largest:,} the largest ({largest.id})."
        )
    elif not holds:
        headline = f"Batch {wanted:,} fits none of the {len(rows)} cards."
    elif holds[0].price is not None:
        price = f"{holds[0].price:g} an hour"
        headline = (
            f"The cheapest card for batch {wanted:,} is {holds[0].id}, at {price}."
        )
    else:
        counts = f"{len(holds)} of {len(rows)} cards"
        headline = f"Batch {wanted:,} fits {counts}; the smallest is {holds[0].id}."

    if holds:
        beside_bytes = holds[0].beside_pool_bytes
        need = format_bytes((holds[0].need_bytes or 0) + beside_bytes)
        memory = format_bytes(holds[0].limit_bytes + beside_bytes)
        headline += f" The step needs {need} of its {memory}."

    note = (
        f"The needs are those on {answer.card_name}. --gpu NAME runs the sizes on one card, near "
        "its own limit."
    )
    if len(rows) < total:
        note = f"{total - len(rows)} of {total} cards are not judged. {note}"

    return replace_fields(
        answer,
        cards=tuple(rows),
        headline=headline,
        card="",
        card_name="",
        limit_of="cards",
        limit_bytes=largest.limit_bytes,
        limit_low_bytes=smallest.limit_bytes,
        limit_high_bytes=largest.limit_bytes,
        largest=(wanted or 0) if holds else max(row.largest or 0 for row in rows),
        failing=None,
        safe=max(row.safe or 0 for row in rows),
        notes=(note, *answer.notes),
        wanted_fits=None if wanted is None else bool(holds),
    )


def fit(
    target: Any,
    *,
    limit: int | str | None = None,
    vary: str | Sequence[str] = (),
    wanted: int | None = None,
    what_if: Sequence[str] | None = None,
    **step: Unpack[StepOptions],
) -> FitAnswer:
    """Return the largest batch, or the largest input, of a step on a card or under a limit.

    Args:
        target: A name, or a live Keras model or function, which is captured in this process.
        limit: The allocator's limit, in bytes or such as ``8GiB``; None for the card's or machine's.
        vary: Input axes with an N, such as ``tokens=N``, to find the largest N; empty for the batch.
        wanted: A size to judge.
        what_if: The names of the remedies to estimate; empty for all, None for none.
        step: As for ``estimate``. ``batch_size`` is the first batch of the search; with ``vary``, the
            batch.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if not vary:
        step.setdefault("batch_size", wanted)

    options = _make_options(step)
    question = FitQuestion(
        limit_bytes=parse_bytes(limit) if isinstance(limit, str) else limit,
        wanted=wanted,
        remedies=None if what_if is None else tuple(what_if),
        varied=parse_varied([vary] if isinstance(vary, str) and vary else vary),
    )

    with _access(target, options) as access:
        return fit_step(access, options, question)


def fits(
    target: Any,
    size: int,
    *,
    limit: int | str | None = None,
    **step: Unpack[StepOptions],
) -> bool:
    """Say whether a step surely fits with a batch size, by one run or estimate; for search loops.

    True if the upper bound of the need fits the lower bound of the limit, so that a trial that starts
    does not run out of memory. The arguments are those of ``fit``.

    Raises:
        InputError: the target or an option cannot be used.
    """
    if size < 1:
        raise InputError(
            f"A batch size of {size} is too small.",
            "Give 1 or more.",
        )

    step["batch_size"] = size
    limit_bytes = parse_bytes(limit) if isinstance(limit, str) else limit
    options = limit_options(_make_options(step), limit_bytes)
    _, bounds = resolve_limit(options, limit_bytes)
    search = CardSearch([bounds.bytes], size, is_one=True)

    with _access(target, options) as access:
        answer_sizes(access, options, (), search)

    high_bytes = search.points[size].need_high_bytes

    return high_bytes is not None and high_bytes <= bounds.range.low


@contextmanager
def _access(target: Any, options: CaptureOptions) -> Iterator[StepAccess]:
    """Give access to a named target, a live model, or a live function.

    A model for a card is saved, so that other processes can run it. A function cannot be saved.
    """
    if isinstance(target, str | os.PathLike):
        with access_target(parse_target(os.fspath(target))) as access:
            yield access

        return

    if options.gpu and is_model(target):
        with save_model(target) as spec, access_target(spec) as access:
            yield access

        return

    def capture(options: CaptureOptions, folder: Path) -> Path:
        return capture_object(target, options, folder)

    with make_workplace() as folder:
        yield StepAccess(name=name_live(target), folder=folder, capture=capture)


def _make_options(step: StepOptions) -> CaptureOptions:
    """Return the options of the captures, on a card of the catalogue or the CPU."""
    gpu = step.get("gpu", "")
    step["gpu"] = normalize_cards(gpu) if gpu else ""
    step["device"] = "gpu" if gpu else "cpu"

    return make_options(step)
