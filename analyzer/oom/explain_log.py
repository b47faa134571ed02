"""The records of a log as its document, ``OomDocument``; names for its sizes, from a model's tensors.

A dump names no tensor. If a chunk has exactly the bytes of a model's tensor, rounded up to 256, it may
be that tensor. Several tensors may have one size; all are named, long-lived ones first.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgspec import convert
from msgspec.structs import replace

from analyzer.model.contract.fields import numpy_name
from analyzer.model.contract.report.oom_file import (
    AskedFor,
    OomBuffer,
    OomCard,
    OomDocument,
    OomFailure,
    OomHolder,
    OomPlan,
    OomRefusals,
    OomSurvived,
)
from analyzer.model.graph.graph_index import find_inlined
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes, times
from analyzer.oom import failure_case
from analyzer.oom.causes import find_cause
from analyzer.oom.dumped_state import compute_state, describe_sizes, sizes_in_use, write_sentence
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    LogRecords,
    RefusalRun,
    difference,
    round_up_request,
)

_MOST_SIZES: Final = 200  # of one failure
_MOST_BUDGETS: Final = 4  # notes on XLA's budgets
_LONGEST: Final = 2000  # characters of a failure's text
_SIZES: Final = ("limit", "in_use", "peak_in_use", "pool", "free", "largest_hole", "room", "waste")
_TEXTS: Final = ("device", "op_type", "requested_by", "kernel", "source")


def explain_log(records: LogRecords, log: str) -> tuple[OomDocument, list[failure_case.OomCase]]:
    """Return the document of a log, and each failure's case in the same order, for the drawing."""
    cases = [_case_of(records, failure) for failure in records.failures]
    failures = tuple(map(_explain_failure, cases))
    call = failure_case.find_fit_call(cases[0]) if cases else None
    document = OomDocument(
        log=log,
        lines=records.lines,
        headline=_headline(records, failures),
        failures=failures,
        failures_not_shown=records.more_failures,
        refusals=convert(records.refusals, tuple[OomRefusals, ...], from_attributes=True),
        survived=tuple(
            OomSurvived(each.allocator, each.times, each.largest.middle)
            for each in records.tolerated
        ),
        notes=tuple(_notes(records)),
        next_command=call.command if call else None,
    )
    return document, cases


def _case_of(records: LogRecords, failure: LoggedFailure) -> failure_case.OomCase:
    card, chunk = _card_of(records, failure), None
    request = failure_case.size_by_shape(failure.tensor) or failure_case.size_by_figures(failure)
    if request is not None:
        is_exact_size = failure.kind is FailedAllocator.ASYNC
        chunk = request.requested if is_exact_size else request.rounded
    refusals = failure.refusals
    if failure.is_pinned:
        before = [run for run in records.refusals if run.line <= failure.line]
        refusals = [run for run in before if run.is_host and run.tag == failure.tag]
    chunk_bytes = chunk.low if chunk is not None and chunk.is_exact else None
    return failure_case.OomCase(
        failure=failure,
        request=request,
        state=compute_state(failure, card),
        card=card,
        sizes=sizes_in_use(failure.dump, chunk_bytes),
        refusals=refusals,
        budget=max((pair for pair in records.xla_budgets if pair[0] < pair[1]), default=None),
    )


def _card_of(records: LogRecords, failure: LoggedFailure) -> LoggedCard | None:
    """Return the card that the allocator or the device names, or the only one if they name none."""
    device = failure.device.rpartition("/")[2].lower()
    if failure.is_on_host or "host" in device or "cpu" in device:
        return None
    number = re.search(r"(\d+)", failure.allocator) or re.search(r":.*:(.+)", device)
    cards = [card for card in records.cards if card.tag == failure.tag] or records.cards
    if number is None:
        return cards[0] if len(cards) == 1 else None
    return next((card for card in cards if str(card.index) == number[1]), None)


def _explain_failure(case: failure_case.OomCase) -> OomFailure:
    failure, state = case.failure, case.state
    verdict = find_cause(case)
    sizes = {f"{name}_bytes": getattr(state, name) for name in _SIZES}
    sizes["left_bytes"] = case.limit_left
    fields: dict[str, Any] = {
        name: None if size is None else size.middle for name, size in sizes.items()
    }
    fields |= {name: getattr(failure, name) or None for name in _TEXTS}
    return OomFailure(
        line=failure.line,
        told=max(failure.reports, 1),
        process=failure.tag,
        kind=str(failure.kind),
        component=failure_case.find_component(failure),
        allocator=failure.allocator or failure.dump.allocator or None,
        op=failure.op or failure.requested_by or failure.op_type or None,
        asked=_request_of(case),
        **fields,
        holes=state.holes,
        regions=state.regions,
        ranges={
            name: (size.low, size.high)
            for name, size in sizes.items()
            if size is not None and not size.is_exact
        },
        card=_card_figures(case),
        verdict=verdict,
        holders=tuple(_holders(case)),
        stories=tuple(describe_sizes(case.sizes, case.in_use_bytes)),
        sizes=tuple(case.sizes[:_MOST_SIZES]),
        remedies=tuple(failure_case.find_advice(case, verdict.id)),
        compiled=_xla_plan(failure),
        tensors_by_node=tuple(OomHolder(node, size.middle) for node, size in failure.usage),
        words=failure.text[:_LONGEST],
    )


def _request_of(case: failure_case.OomCase) -> AskedFor | None:
    request, tensor = case.request, case.failure.tensor
    if request is None:
        return None
    requested, basis, rounded_bytes = request.requested, request.basis, request.rounded.high
    likely_bytes = requested.high if requested.width < 256 else requested.middle
    dtype = numpy_name(request.dtype or tensor.dtype)
    return AskedFor(
        requested_bytes=likely_bytes,
        rounded_bytes=rounded_bytes,
        is_exact=requested.is_exact,
        low_bytes=requested.low,
        high_bytes=requested.high,
        basis=basis,
        shape=tensor.shape,
        dtype=dtype or None,
    )


def _card_figures(case: failure_case.OomCase) -> OomCard | None:
    card, failure, total = case.card or LoggedCard(0), case.failure, case.card_total
    if case.card is None and failure.card_total is None:
        return None
    return OomCard(
        name=card.name or None,
        total_bytes=total.middle if total is not None else None,
        free_bytes=failure.card_free,
        is_from_catalogue=total is not None and failure.card_total is None and card.total is None,
    )


def _holders(case: failure_case.OomCase) -> Iterator[OomHolder]:
    state, failure, total = case.state, case.failure, case.card_total
    if failure.component:
        return
    waste = state.waste if state.waste is not None and state.waste.middle else None
    tensors = state.in_use if waste is None else difference(state.in_use, waste)
    rows = [
        ("tensors", tensors),
        ("unused inside their chunks", None if state.in_use is None else waste),
        ("free", state.free),
        ("allowed by the limit, not taken", state.room),
    ]
    if failure.card_free is not None and failure.card_total is not None:
        rest = max(failure.card_total - failure.card_free - (case.in_use_bytes or 0), 0)
        rows.append(("free on the card", Range.exactly(failure.card_free)))
        rows.append(("context, pool's reserve, other processes", Range.exactly(rest)))
    elif case.is_on_card:
        rows.append(("the card beyond the limit", difference(total, state.limit)))
    for who, size in rows:
        if size is not None and size.middle:
            yield OomHolder(who, size.middle)


def _xla_plan(failure: LoggedFailure) -> OomPlan | None:
    if failure.xla is None:
        return None
    buffers = (
        OomBuffer(one.size.middle, one.operator, one.label, one.shape)
        for one in failure.xla.buffers
    )
    sums = {name: size.middle for name, size in failure.xla.stats.items()}
    return OomPlan(sums, tuple(buffers))


def _headline(records: LogRecords, failures: tuple[OomFailure, ...]) -> str:
    count = len(failures) + records.more_failures
    if count:
        more = "" if count == 1 else f" The first of {count:,} failures."
        return f"{failures[0].verdict.title}{more}"
    runs = [run for run in records.refusals if not run.is_host]
    if runs:
        return _describe_pool_refusals(runs, records.cards)
    if records.refusals:
        largest = max(run.first_bytes for run in records.refusals)
        return write_sentence("headline", "pinned", largest=Range.exactly(largest))
    return write_sentence("headline", "recovered" if records.tolerated else "none")


def _describe_pool_refusals(runs: list[RefusalRun], cards: list[LoggedCard]) -> str:
    """Return the headline of a log in which the driver refused the pool but no tensor failed."""
    least, largest = min(run.last_bytes for run in runs), max(run.first_bytes for run in runs)
    sizes = format_bytes(largest)
    if least != largest:
        sizes += f" down to {format_bytes(least)}"
    count = times(sum(run.times for run in runs))
    words = write_sentence("headline", "refused", times=count, sizes=sizes)
    for card in cards:
        total = failure_case.find_card_memory(card)
        if failure_case.is_limited(card.limit, total):
            return words + write_sentence("headline", "low_limit", limit=card.limit, total=total)
    return words


def _notes(records: LogRecords) -> Iterator[str]:
    write = partial(write_sentence, "note")
    for each in records.tolerated:
        allocator = each.allocator or "An allocator"
        yield write("tolerated", allocator=allocator, times=times(each.times), largest=each.largest)
    if records.garbage_collections:
        yield write("garbage_collections", times=times(records.garbage_collections))
    host_count, largest = records.large_host
    if host_count:
        yield write("large_host", count=host_count, largest=Range.exactly(largest))
    for budget, reached in records.xla_budgets[:_MOST_BUDGETS]:
        yield write("xla_budget", budget=budget, reached=Range.exactly(reached))
    pinned = [run.first_bytes for run in records.refusals if run.is_host]
    if pinned and records.failures:
        yield write("pinned", times=times(len(pinned)), largest=Range.exactly(max(pinned)))
    if records.other_resources:
        yield write("other_resources", times=times(records.other_resources))
    if not (records.failures or records.tolerated or records.refusals or records.other_resources):
        yield write("nothing")


_MOST_NAMES: Final = 4  # of one size
_LONG_LIVED: Final = ("parameter", "optimizer_state", "input", "activation", "gradient", "constant")
_LEAST_BYTES: Final = 1024  # smaller chunks may be any counter, scalar or bias


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of a model; ``op`` is empty for variables and inputs."""

    name: str
    category: str
    op: str
    requested_bytes: int


Tensors = dict[str, list[ModelTensor]]


def add_names(
    document: OomDocument, tensors: Iterable[ModelTensor], model_name: str, *, is_target: bool
) -> OomDocument:
    """Return the document with a model's tensors named next to the sizes."""
    by_size: dict[int, list[ModelTensor]] = defaultdict(list)
    by_op: Tensors = defaultdict(list)
    for tensor in tensors:
        by_size[round_up_request(tensor.requested_bytes)].append(tensor)
        by_op[tensor.op].append(tensor)
    names = {size_bytes: _names_of(same) for size_bytes, same in by_size.items()}
    failures = tuple(_add_to_failure(one, names, by_op) for one in document.failures)
    command = document.next_command
    if command is not None and is_target:
        command = command.replace("TARGET", shlex.quote(model_name))
    return replace(document, failures=failures, matched_with=model_name, next_command=command)


def _add_to_failure(
    failure: OomFailure, names: dict[int, tuple[str, ...]], by_op: Tensors
) -> OomFailure:
    sizes = tuple(
        replace(row, names=names.get(row.size_bytes, ()) if row.size_bytes >= _LEAST_BYTES else ())
        for row in failure.sizes
    )
    sentences = []
    if failure.asked is not None:
        rounded_bytes, there = failure.asked.rounded_bytes, failure.asked.requested_bytes
        if rounded_bytes in names:
            listed = ", ".join(names[rounded_bytes])
            sentences.append(write_sentence("model", "same_size", names=listed))
        ops = filter(None, (failure.op, failure.requested_by))
        own = next((found for name in ops if (found := find_inlined(name, by_op))), [])
        if own and all(round_up_request(one.requested_bytes) != rounded_bytes for one in own):
            largest = max(own, key=lambda tensor: tensor.requested_bytes)
            here = Range.exactly(largest.requested_bytes)
            values = {"op": largest.op, "here": here, "there": Range.exactly(there)}
            sentences.append(write_sentence("model", "other_size", **values))
    if total := sum(row.total_bytes for row in sizes):
        known = sum(row.total_bytes for row in sizes if row.names)
        figures = {"named": Range.exactly(known), "total": Range.exactly(total)}
        sentences.append(write_sentence("model", "share", share=known / total, **figures))
    return replace(failure, sizes=sizes, matched=tuple(sentences))


def _names_of(tensors: Sequence[ModelTensor]) -> tuple[str, ...]:
    """Return the names of the tensors of one size: each once, the first few."""
    ranks = {category: rank for rank, category in enumerate(_LONG_LIVED)}
    ordered = sorted(tensors, key=lambda one: ranks.get(one.category, len(ranks)))
    names = list(dict.fromkeys(f"{one.name} ({one.category.replace('_', ' ')})" for one in ordered))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    return tuple(names)
