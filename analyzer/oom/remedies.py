"""What to do about a failure: only what its own numbers support.

TensorFlow prints its hint of ``cuda_malloc_async`` under every failure. Here it is said where free
memory in pieces is what failed, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from analyzer.model.units import format_bytes
from analyzer.oom.crowds import growing_crowd
from analyzer.oom.failure_case import Cause, Judged, OomCase, size_words
from analyzer.oom.log_records import MishapKind

_CONSTANTS: Final = ("EagerConst", "_EagerConst", "Const", "HostConst")
_OF_VARIABLES: Final = (
    *("adam/", "sgd/", "rmsprop/", "adagrad/", "optimizer", "train_op", "apply", "assign"),
    *("initializer", "variable", "random_uniform", "truncatednormal", "truncated_normal", "const"),
)
"""What the name of an op has that makes or updates a variable, whose first axis is no batch."""
_LARGE_CONSTANT: Final = 64 << 20  # bytes from which a constant is told


@dataclass(frozen=True, slots=True)
class OomRemedy:
    """One thing to do, and the figures that support it."""

    action: str
    because: str


def remedies_of(case: OomCase, judged: Judged) -> list[OomRemedy]:
    """Return what to do, the most direct first."""
    return [*_by_cause(case, judged), *_by_what_fills(case, judged)]


def _by_cause(case: OomCase, judged: Judged) -> Iterator[OomRemedy]:
    cause = judged.cause
    if cause is Cause.FRAGMENTED:
        yield from _against_pieces(case)
    elif cause is Cause.WASTED:
        yield OomRemedy(
            "Let the allocator split sooner (internal_fragmentation_fraction of "
            "GPUOptions.experimental), or keep the same tensor sizes from step to step.",
            judged.title,
        )
    elif cause in (Cause.FULL, Cause.LARGER_THAN_LIMIT, Cause.LARGER_THAN_CARD):
        yield from _against_size(case, judged)
    elif cause is Cause.HELD_BY_OTHERS:
        yield OomRemedy(
            "End what else runs on the card (nvidia-smi lists it), or use another card.",
            judged.title,
        )
    elif cause is Cause.DRIVER_REFUSED and case.is_on_card:
        yield from _against_refusal(case)
    elif cause is Cause.DRIVER_REFUSED and case.is_pinned:
        yield OomRemedy(
            "Hold less of the machine's memory (shuffle buffers, caches, batches that wait), or give "
            "the machine or the container more of it.",
            "What is pinned for copies to a card is the machine's memory.",
        )
    elif cause is Cause.BESIDE_THE_POOL:
        yield OomRemedy(
            "Leave the libraries room: a memory limit below the card's, or memory growth; and look with "
            "nvidia-smi whether another process holds the card.",
            "The library asks the driver, not the pool.",
        )
    elif cause is Cause.HOST:
        yield OomRemedy(
            "Look at the input pipeline: shuffle buffers, caches and arrays held whole; or give the "
            "machine or the container more memory.",
            "The memory that ran out is the machine's; a smaller model on the card changes nothing.",
        )


def _against_pieces(case: OomCase) -> Iterator[OomRemedy]:
    state = case.state
    free = "" if state.free is None else f"{size_words(state.free)} were free"
    if case.is_on_card and case.mishap.kind is MishapKind.POOL and state.free is not None:
        yield OomRemedy(
            "Try TF_GPU_ALLOCATOR=cuda_malloc_async (TensorFlow 2.5 on), which joins free memory that "
            "does not lie together.",
            f"{free} and the request was smaller than that.",
        )
    name = case.mishap.allocator.lower()
    can_choose = "cpu" not in name and "host" not in name  # theirs always grow (process_state.cc)
    if (state.regions or 0) > 1 and can_choose:
        yield OomRemedy(
            "Let TensorFlow take its pool at the start: without memory growth it is one region.",
            f"The pool is {state.regions} regions, and no chunk reaches across two.",
        )
    if free:
        yield OomRemedy(
            "Keep shapes the same from step to step, and allocate the largest tensors first.",
            "A freed chunk then fits what comes next.",
        )


def _against_size(case: OomCase, judged: Judged) -> Iterator[OomRemedy]:
    shape = case.mishap.wanted.shape or ()
    asked, state = case.asked, case.state
    room = state.limit if judged.cause is not Cause.FULL else state.largest_hole
    if asked is not None and _has_a_batch(case, shape) and room is not None:
        each = math.ceil(asked.requested.high / shape[0])
        most = room.low // each
        if 0 < most < shape[0]:
            yield OomRemedy(
                f"A smaller batch, if the first axis of {list(shape)} is the batch: at most {most:,} of "
                f"{shape[0]:,} for this tensor alone.",
                f"The largest place for it is {size_words(room)}; one item takes {format_bytes(each)}.",
            )
    total = case.card_total
    is_small = total is not None and state.limit is not None and state.limit.high < 0.8 * total.low
    if is_small and case.is_on_card and asked is not None:
        assert total is not None
        if (case.in_use_bytes or 0) + asked.rounded.high < total.low:
            yield OomRemedy(
                "Raise the memory limit, or free the card of other processes.",
                f"The card has {size_words(total)}, this process was held to {size_words(state.limit)}."
                if state.limit is not None
                else "",
            )
    if case.is_pinned:
        yield OomRemedy(
            "Raise TF_GPU_HOST_MEM_LIMIT_IN_MB, which limits pinned memory of the machine.",
            "The allocator that failed is the host's own, not the card's.",
        )


def _has_a_batch(case: OomCase, shape: tuple[int, ...]) -> bool:
    """Say whether the first axis may be the batch: not that of a variable, its slots or its update."""
    if len(shape) < 2 or shape[0] < 2:
        return False
    names = f"{case.mishap.op} {case.mishap.requested_by}".lower()
    kernel = case.mishap.kernel
    return not any(word in names for word in _OF_VARIABLES) and "variable" not in kernel


def _against_refusal(case: OomCase) -> Iterator[OomRemedy]:
    pool = case.state.pool
    total = case.card_total
    limit = case.state.limit
    if total is not None and limit is not None and limit.low > total.high:
        yield OomRemedy(
            "Set a memory limit that the card has, with room for the context.",
            f"The limit is {size_words(limit)}, the card {size_words(total)}.",
        )
    taken = "" if pool is None else f" The pool had {size_words(pool)} when it failed."
    yield OomRemedy(
        "See with nvidia-smi who holds the rest of the card; end it, or use another card.",
        f"The driver refused although the limit left room.{taken}",
    )


def _by_what_fills(case: OomCase, judged: Judged) -> Iterator[OomRemedy]:
    if judged.cause in (Cause.HOST, Cause.BESIDE_THE_POOL):
        return
    many = growing_crowd(case.crowds, case.in_use_bytes)
    if many is not None:
        yield OomRemedy(
            "Look for a list, a dictionary or a loop that keeps each step's tensors, and keep Python "
            "numbers instead.",
            f"{many.count:,} chunks of {many.size_bytes:,} bytes are alive at once.",
        )
    op = case.mishap.op_type or case.mishap.requested_by
    size = case.asked.requested.middle if case.asked else 0
    largest = max((crowd.size_bytes for crowd in case.crowds), default=0)
    if op in _CONSTANTS and max(size, largest) >= _LARGE_CONSTANT:
        yield OomRemedy(
            "Keep the data set on the host: tf.data from a generator or files, or the conversion under "
            'tf.device("CPU").',
            "An array was made a constant on the device whole (op _EagerConst).",
        )
