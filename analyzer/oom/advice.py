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
from analyzer.oom.failure_case import (
    Cause,
    CauseOfFailure,
    OomCase,
    find_card_id,
    find_framework,
)
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


def find_advice(case: OomCase, verdict: CauseOfFailure) -> list[OomAdvice]:
    """Return the advice, the most direct first."""
    cause = verdict.cause
    if case.failure.component:
        return list(_advice_for_component(case, cause))
    return [*_advice_by_cause(case, cause), *_advice_by_contents(case, cause)]


def find_next_command(case: OomCase) -> str | None:
    """Return the command that finds a size that fits; None if TensorFlow did not fail on a card."""
    failure = case.failure
    is_own = not failure.component and not find_framework(failure.framework)
    if not is_own or not (case.is_on_card or failure.is_compiled):
        return None
    gpu = find_card_id(case.card.name) if case.card is not None else ""
    shape = failure.tensor.shape or ()
    batch = f" --batch-size {shape[0]}" if _may_have_batch(case, shape) else ""
    return f"analyze fit TARGET --gpu {gpu or 'CARD'}{batch}"


def _advice_for_component(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    failure = case.failure
    row, need, plan = failure.row, failure.figures.get("need"), failure.xla
    padding = sum(each.padding.middle for each in plan.buffers if each.padding) if plan else 0
    if need is not None and padding > _MUCH_PADDING * need.middle:
        yield write_advice("tpu_padding", padding=Range.exactly(padding))
    if row is not None and row.advice:
        yield write_advice(row.advice)
    elif cause is Cause.FRAGMENTED and row is not None and row.fragmented_advice:
        yield write_advice(row.fragmented_advice)
    elif failure.kind is FailedAllocator.LIBRARY and cause is not Cause.HELD_BY_OTHERS:
        yield write_advice(Cause.BESIDE_THE_POOL)
    elif failure.memory is OutOf.UNCLEAR and failure.is_killed and cause is not Cause.HOST:
        yield write_advice("killed")
    elif failure.memory in (OutOf.HOST, OutOf.UNCLEAR):
        yield write_advice(Cause.HOST)
    elif cause is Cause.HELD_BY_OTHERS:
        yield write_advice(cause)
    else:
        yield write_advice("tpu_program" if failure.memory is OutOf.TPU else "smaller")


def _advice_by_cause(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    if cause in (Cause.HELD_BY_OTHERS, Cause.WASTED, Cause.BESIDE_THE_POOL, Cause.HOST):
        yield write_advice(cause)
    elif cause is Cause.FRAGMENTED:
        yield from _against_fragmentation(case)
    elif cause in (Cause.FULL, Cause.LARGER_THAN_LIMIT, Cause.LARGER_THAN_CARD):
        yield from _against_size(case, cause)
    elif cause is Cause.DRIVER_REFUSED and case.is_on_card:
        if case.is_limit_above_card:
            yield write_advice("lower_limit", limit=case.state.limit, total=case.card_total)
        pool = case.state.pool
        had = "" if pool is None else f" The pool had {size_words(pool)} then."
        yield write_advice("rest_of_card", pool=had)
    elif cause is Cause.CANNOT_TELL and find_framework(case.failure.framework) == "JAX":
        yield write_advice("jax")
    elif cause is Cause.DRIVER_REFUSED and case.failure.is_pinned:
        yield write_advice("pinned")


def _against_fragmentation(case: OomCase) -> Iterator[OomAdvice]:
    state, failure = case.state, case.failure
    name, free = failure.allocator.lower(), state.free
    if case.is_on_card and failure.kind is FailedAllocator.POOL and free is not None:
        yield write_advice("async_allocator", free=free)
    is_host = "cpu" in name or "host" in name  # such pools always grow: process_state.cc
    if (state.regions or 0) > 1 and not is_host:
        yield write_advice("no_growth", regions=state.regions)
    if free is not None:
        yield write_advice("same_shapes")


def _against_size(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    shape = case.failure.tensor.shape or ()
    request, state, total = case.request, case.state, case.card_total
    room = state.largest_hole if cause is Cause.FULL else state.limit
    if request is not None and room is not None and _may_have_batch(case, shape):
        item_bytes = math.ceil(request.requested.high / shape[0])
        most = room.low // item_bytes
        if 0 < most < shape[0]:
            item, values = Range.exactly(item_bytes), {"most": most, "batch": shape[0]}
            yield write_advice("smaller_batch", shape=list(shape), room=room, item=item, **values)
    if total is not None and request is not None and case.is_limited and case.is_on_card:
        need_bytes = (case.in_use_bytes or 0) + request.rounded.high
        if need_bytes < total.low:
            yield write_advice("raise_limit", total=total, limit=state.limit)
    if case.failure.is_pinned:
        yield write_advice("raise_pinned_limit")


def _may_have_batch(case: OomCase, shape: tuple[int, ...]) -> bool:
    """Return whether the first axis may be the batch: not if a variable or its update failed."""
    if len(shape) < 2 or shape[0] < 2:
        return False
    names = f"{case.failure.op} {case.failure.requested_by}".lower()
    is_variable = any(word in names for word in _VARIABLE_OPS)
    return not is_variable and "variable" not in case.failure.kernel


def _advice_by_contents(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    if cause in (Cause.HOST, Cause.BESIDE_THE_POOL):
        return
    dominant = find_dominant_size(case.sizes, case.in_use_bytes)
    if dominant is not None:
        count, size_bytes = dominant.count, dominant.size_bytes
        yield write_advice("kept_tensors", count=count, size_bytes=size_bytes)
    op = case.failure.op_type or case.failure.requested_by
    size_bytes = case.request.requested.middle if case.request else 0
    largest = max((size.size_bytes for size in case.sizes), default=0)
    if op in _CONSTANT_OPS and max(size_bytes, largest) >= _LARGE_CONSTANT:
        yield write_advice("constant")
