"""Advice for one failure, as far as its figures support it.

TensorFlow prints its hint about ``cuda_malloc_async`` for every failure. Here it is given only if
fragmentation caused the failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from analyzer.model.contract.report.oom_file import OomAdvice
from analyzer.model.units import format_bytes
from analyzer.oom.failure_case import Cause, CauseOfFailure, OomCase, size_words
from analyzer.oom.log_records import FailedAllocator
from analyzer.oom.sizes_in_use import find_dominant_size

_CONSTANT_OPS: Final = ("EagerConst", "_EagerConst", "Const", "HostConst")
_VARIABLE_OPS: Final = (
    *("adam/", "sgd/", "rmsprop/", "adagrad/", "optimizer", "train_op", "apply", "assign"),
    *("initializer", "variable", "random_uniform", "truncatednormal", "truncated_normal", "const"),
)
"""Parts of the names of ops that create or update a variable, whose first axis is not the batch."""
_LARGE_CONSTANT: Final = 64 << 20  # bytes

_FIXED: Final = {
    Cause.HELD_BY_OTHERS: OomAdvice(
        "Stop the other processes on the card (nvidia-smi lists them), or use another card.",
        "TensorFlow can only take what was free at its start.",
    ),
    Cause.WASTED: OomAdvice(
        "Split chunks sooner (internal_fragmentation_fraction of GPUOptions.experimental), or keep "
        "tensor sizes the same from step to step.",
        "Unused bytes inside chunks would have been enough for the request.",
    ),
    Cause.BESIDE_THE_POOL: OomAdvice(
        "Leave room for the libraries with a memory limit below the card's memory or with memory "
        "growth, and check with nvidia-smi whether another process holds the card.",
        "The library takes its memory from the driver, not from the pool.",
    ),
    Cause.HOST: OomAdvice(
        "Check the input pipeline for shuffle buffers, caches and large arrays, or give the machine or "
        "the container more memory.",
        "Host memory ran out; a smaller model on the card does not help.",
    ),
}


def find_advice(case: OomCase, verdict: CauseOfFailure) -> list[OomAdvice]:
    """Return the advice, the most direct first."""
    return [*_advice_by_cause(case, verdict.cause), *_advice_by_contents(case, verdict.cause)]


def _advice_by_cause(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    if cause in _FIXED:
        yield _FIXED[cause]
    elif cause is Cause.FRAGMENTED:
        yield from _against_fragmentation(case)
    elif cause in (Cause.FULL, Cause.LARGER_THAN_LIMIT, Cause.LARGER_THAN_CARD):
        yield from _against_size(case, cause)
    elif cause is Cause.DRIVER_REFUSED and case.is_on_card:
        yield from _against_refusal(case)
    elif cause is Cause.DRIVER_REFUSED and case.failure.is_pinned:
        yield OomAdvice(
            "Hold less host memory (shuffle buffers, caches, prefetched batches), or give the machine "
            "or the container more of it.",
            "Pinned memory is host memory.",
        )


def _against_fragmentation(case: OomCase) -> Iterator[OomAdvice]:
    state, failure = case.state, case.failure
    if case.is_on_card and failure.kind is FailedAllocator.POOL and state.free is not None:
        yield OomAdvice(
            "Try TF_GPU_ALLOCATOR=cuda_malloc_async (TensorFlow 2.5 and later), which can combine free "
            "memory that is not contiguous.",
            f"{size_words(state.free)} were free, more than the request.",
        )
    name = failure.allocator.lower()
    can_choose = (
        "cpu" not in name and "host" not in name
    )  # host pools always grow: process_state.cc
    if (state.regions or 0) > 1 and can_choose:
        yield OomAdvice(
            "Turn memory growth off: TensorFlow then takes its pool at the start, as one region.",
            f"The pool has {state.regions} regions, and no chunk spans two of them.",
        )
    if state.free is not None:
        yield OomAdvice(
            "Keep shapes the same from step to step, and allocate the largest tensors first.",
            "A freed chunk then fits the next request.",
        )


def _against_size(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    shape = case.failure.tensor.shape or ()
    request, state, total = case.request, case.state, case.card_total
    room = state.largest_hole if cause is Cause.FULL else state.limit
    if request is not None and room is not None and _may_have_batch(case, shape):
        each = math.ceil(request.requested.high / shape[0])
        most = room.low // each
        if 0 < most < shape[0]:
            yield OomAdvice(
                f"Use a smaller batch, if the first axis of {list(shape)} is the batch: at most "
                f"{most:,} of {shape[0]:,} for this tensor alone.",
                f"The largest place for it is {size_words(room)}; one item takes {format_bytes(each)}.",
            )
    if total is not None and state.limit is not None and request is not None:
        need_bytes = (case.in_use_bytes or 0) + request.rounded.high
        if case.is_limited and case.is_on_card and need_bytes < total.low:
            yield OomAdvice(
                "Raise the memory limit, or stop other processes on the card.",
                f"The card has {size_words(total)}; the limit of this process was "
                f"{size_words(state.limit)}.",
            )
    if case.failure.is_pinned:
        yield OomAdvice(
            "Raise TF_GPU_HOST_MEM_LIMIT_IN_MB, the limit of pinned host memory.",
            "The host's allocator failed, not the card's.",
        )


def _may_have_batch(case: OomCase, shape: tuple[int, ...]) -> bool:
    """Return whether the first axis may be the batch: not if a variable or its update failed."""
    if len(shape) < 2 or shape[0] < 2:
        return False
    names = f"{case.failure.op} {case.failure.requested_by}".lower()
    kernel = case.failure.kernel
    return not any(word in names for word in _VARIABLE_OPS) and "variable" not in kernel


def _against_refusal(case: OomCase) -> Iterator[OomAdvice]:
    pool, total, limit = case.state.pool, case.card_total, case.state.limit
    if total is not None and limit is not None and limit.low > total.high:
        yield OomAdvice(
            "Set a memory limit below the card's memory, with room for the CUDA context.",
            f"The limit is {size_words(limit)}, the card has {size_words(total)}.",
        )
    pool_words = "" if pool is None else f" The pool had {size_words(pool)} then."
    yield OomAdvice(
        "Find out with nvidia-smi which process holds the rest of the card; stop it, or use another "
        "card.",
        f"The driver refused although the limit left room.{pool_words}",
    )


def _advice_by_contents(case: OomCase, cause: Cause) -> Iterator[OomAdvice]:
    """Yield advice about the contents of the pool."""
    if cause in (Cause.HOST, Cause.BESIDE_THE_POOL):
        return
    dominant = find_dominant_size(case.sizes, case.in_use_bytes)
    if dominant is not None:
        yield OomAdvice(
            "Look for a list, a dictionary or a loop that keeps each step's tensors; keep Python "
            "numbers instead.",
            f"{dominant.count:,} chunks of {dominant.size_bytes:,} bytes are alive at once.",
        )
    op = case.failure.op_type or case.failure.requested_by
    size_bytes = case.request.requested.middle if case.request else 0
    largest = max((size.size_bytes for size in case.sizes), default=0)
    if op in _CONSTANT_OPS and max(size_bytes, largest) >= _LARGE_CONSTANT:
        yield OomAdvice(
            "Keep the data set on the host: use tf.data with a generator or files, or convert it under "
            'tf.device("CPU").',
            "A whole array became a constant on the device (op _EagerConst).",
        )
