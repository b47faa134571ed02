"""Advice for one failure, as far as its figures support it.

TensorFlow prints its hint about ``cuda_malloc_async`` for every failure. Here it is given only if
fragmentation caused the failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from analyzer.model.contract.report.oom_file import OomAdvice
from analyzer.model.ranges import Range
from analyzer.oom.dumped_state import find_dominant_size
from analyzer.oom.failure_case import Cause, OomCase, find_card_id, find_framework
from analyzer.oom.log_records import FailedAllocator, OutOf
from analyzer.oom.log_texts import size_words, write_advice

_CONSTANT_OPS: Final = ("EagerConst", "_EagerConst", "Const", "HostConst")
_VARIABLE_OPS: Final = (
    *("adam/", "sgd/", "rmsprop/", "adagrad/", "optimizer", "train_op", "apply", "assign"),
    *("initializer", "variable", "random_uniform", "truncatednormal", "truncated_normal", "const"),
)
"""Parts of the names of ops that create or update a variable, whose first axis is not the batch."""
_LARGE_CONSTANT: Final = 64 << 20  # bytes
_MUCH_PADDING: Final = 0.1  # of a TPU program's need


def find_advice(case: OomCase, cause: str) -> Iterator[OomAdvice]:
    """Yield the advice, the most direct first."""
    if case.failure.component:
        yield from _advice_for_component(case, cause)
    else:
        yield from _advice_by_cause(case, cause)
        if cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
            yield from _advice_by_contents(case)


def find_next_command(case: OomCase) -> str | None:
    """Return the command that finds a size that fits; None if TensorFlow did not fail on a card."""
    failure = case.failure
    is_own = not failure.component and not find_framework(failure.framework)
    if not is_own or not (case.is_on_card or failure.is_compiled):
        return None
    gpu = find_card_id(case.card.name) if case.card is not None else ""
    batch = _find_batch(case)
    size = f" --batch-size {batch}" if batch else ""
    return f"analyze fit TARGET --gpu {gpu or 'CARD'}{size}"


def _advice_for_component(case: OomCase, cause: str) -> Iterator[OomAdvice]:
    failure = case.failure
    row, need, plan = failure.row, failure.figures.get("need"), failure.xla
    padding = sum(each.padding.middle for each in plan.buffers if each.padding) if plan else 0
    if need is not None and padding > _MUCH_PADDING * need.middle:
        yield write_advice("tpu_padding", padding=Range.exactly(padding))
    name = "tpu_program" if failure.memory is OutOf.TPU else "smaller"
    if row is not None and row.advice:
        name = row.advice
    elif row is not None and row.fragmented_advice and cause == Cause.FRAGMENTED:
        name = row.fragmented_advice
    elif cause == Cause.HELD_BY_OTHERS and failure.memory in (OutOf.CARD, OutOf.TPU):
        name = cause
    elif failure.kind is FailedAllocator.LIBRARY:
        name = Cause.BESIDE_THE_POOL
    elif failure.memory is OutOf.UNCLEAR and failure.is_killed and cause != Cause.HOST:
        name = "killed"
    elif failure.memory in (OutOf.HOST, OutOf.UNCLEAR):
        name = Cause.HOST
    yield write_advice(name)


def _advice_by_cause(case: OomCase, cause: str) -> Iterator[OomAdvice]:
    failure, state, total = case.failure, case.state, case.card_total
    if cause in (Cause.HELD_BY_OTHERS, Cause.WASTED, Cause.BESIDE_THE_POOL, Cause.HOST):
        yield write_advice(cause)
    elif cause == Cause.FRAGMENTED:
        yield from _against_fragmentation(case)
    elif cause in (Cause.FULL, Cause.LARGER_THAN_LIMIT, Cause.LARGER_THAN_CARD):
        yield from _against_size(case, state.largest_hole if cause == Cause.FULL else state.limit)
    elif cause == Cause.DRIVER_REFUSED and case.is_on_card:
        if case.is_limit_above_card:
            yield write_advice("lower_limit", limit=state.limit, total=total)
        had = "" if state.pool is None else f" The pool had {size_words(state.pool)} then."
        yield write_advice("rest_of_card", pool=had)
    elif cause == Cause.DRIVER_REFUSED and failure.is_pinned:
        yield write_advice("pinned")
    elif cause == Cause.CANNOT_TELL and find_framework(failure.framework) == "JAX":
        yield write_advice("jax")


def _against_fragmentation(case: OomCase) -> Iterator[OomAdvice]:
    state, failure = case.state, case.failure
    if case.is_on_card and failure.kind is FailedAllocator.POOL and state.free is not None:
        yield write_advice("async_allocator", free=state.free)
    if (state.regions or 0) > 1 and not failure.is_on_host:  # its pools grow: process_state.cc
        yield write_advice("no_growth", regions=state.regions)
    if state.free is not None:
        yield write_advice("same_shapes")


def _against_size(case: OomCase, room: Range | None) -> Iterator[OomAdvice]:
    """Yield advice for a request that is too large; ``room`` is the largest place for it."""
    request, total, batch = case.request, case.card_total, _find_batch(case)
    if request is not None and room is not None and batch:
        item_bytes = math.ceil(request.requested.high / batch)
        most = room.low // item_bytes
        if 0 < most < batch:
            shape, item = list(case.failure.tensor.shape or ()), Range.exactly(item_bytes)
            values = {"shape": shape, "room": room, "item": item}
            yield write_advice("smaller_batch", most=most, batch=batch, **values)
    if total is not None and request is not None and case.is_limited and case.is_on_card:
        need_bytes = (case.in_use_bytes or 0) + request.rounded.high
        if need_bytes < total.low:
            yield write_advice("raise_limit", total=total, limit=case.state.limit)
    if case.failure.is_pinned:
        yield write_advice("raise_pinned_limit")


def _find_batch(case: OomCase) -> int:
    """Return the first axis of the request; 0 if it is not the batch, as in a variable's update."""
    failure, shape = case.failure, case.failure.tensor.shape or ()
    names = f"{failure.op} {failure.requested_by}".lower()
    is_variable = any(word in names for word in _VARIABLE_OPS) or "variable" in failure.kernel
    return 0 if len(shape) < 2 or shape[0] < 2 or is_variable else shape[0]


def _advice_by_contents(case: OomCase) -> Iterator[OomAdvice]:
    dominant = find_dominant_size(case.sizes, case.in_use_bytes)
    if dominant is not None:
        count, size_bytes = dominant.count, dominant.size_bytes
        yield write_advice("kept_tensors", count=count, size_bytes=size_bytes)
    op = case.failure.op_type or case.failure.requested_by
    sizes = [size.size_bytes for size in case.sizes]
    sizes += [case.request.requested.middle] if case.request else []
    if op in _CONSTANT_OPS and max(sizes, default=0) >= _LARGE_CONSTANT:
        yield write_advice("constant")
