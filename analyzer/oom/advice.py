"""What to do about a failure, as far as its figures support it.

TensorFlow prints its hint about ``cuda_malloc_async`` for every failure. Here it is given only if
fragmentation caused the failure.
"""

import math
from collections.abc import Iterator
from typing import Final

from analyzer.cards import memory_limit
from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.contract.report.oom_file import OomAdvice
from analyzer.model.ranges import Range
from analyzer.model.units import format_bytes, format_option_bytes
from analyzer.oom.failures import Cause, FailedAllocator, LoggedFailure
from analyzer.oom.figures import find_dominant_size
from analyzer.oom.wordings import OTHER_CAUSES

_ACTIONS: Final = {
    "held-by-others": (
        "Stop the other processes on the card (nvidia-smi lists them), or use another card.",
        "A process can only take what the others leave free.",
    ),
    "wasted-in-chunks": (
        "Split chunks sooner (internal_fragmentation_fraction of GPUOptions.experimental), "
        "or keep tensor sizes the same from step to step.",
        "Unused bytes inside chunks would have been enough for the request.",
    ),
    "beside-the-pool": (
        "Leave room for the libraries with a memory limit below the card's memory or with memory "
        "growth, and check with nvidia-smi whether another process holds the card.",
        "The library takes its memory from the driver, not from the pool.",
    ),
    "host": (
        "Check the input pipeline for shuffle buffers, caches and large arrays, or give the "
        "machine or the container more memory.",
        "Host memory ran out; a smaller model on the card does not help.",
    ),
    "shared_memory": (
        "Enlarge /dev/shm (docker run --shm-size=8g; an emptyDir with medium: Memory in "
        "Kubernetes), or use fewer workers.",
        "Workers pass data through shared memory, 64 MiB in a container by default.",
    ),
    "job_limit": (
        "Raise the memory limit of the container or the job, or reduce what it holds: "
        "shuffle buffers, caches, workers, large arrays.",
        "The process was killed at the limit; it could not report where the memory went.",
    ),
    "killed": (
        "Look for an OOM kill in dmesg, kubectl describe pod, docker inspect or the job's report.",
        "The log of the process itself cannot tell who killed it.",
    ),
    "smaller": (
        "Use a smaller batch, input or model, or a card with more memory.",
        "The card had less free memory than the request.",
    ),
}
"""Actions and reasons without figures, by cause or by name in ``wordings.toml``."""
_CONSTANT_OPS: Final = ("EagerConst", "_EagerConst", "Const", "HostConst")
_LARGE_CONSTANT: Final = 64 << 20  # bytes
_VARIABLE_OPS: Final = (
    *(
        "adam/",
        "sgd/",
        "rmsprop/",
        "adagrad/",
        "optimizer",
        "train_op",
        "apply",
        "assign",
    ),
    *(
        "initializer",
        "variable",
        "random_uniform",
        "truncatednormal",
        "truncated_normal",
        "const",
    ),
    "tensordot/",
)
"""Parts of the names of ops that create or update a variable, or multiply with joined axes. The first
axis of their results is not the batch."""


def find_advice(failure: LoggedFailure, cause: str) -> Iterator[OomAdvice]:
    """Yield the advice, the most direct first."""
    row = OTHER_CAUSES.get(failure.other_cause)
    if row is not None:
        is_found = cause == Cause.HOST and row.is_unclear
        yield OomAdvice(*_ACTIONS["host" if is_found else row.advice])
        return

    if cause in _ACTIONS:
        yield OomAdvice(*_ACTIONS[cause])
    elif cause == Cause.FRAGMENTED:
        yield from _against_fragmentation(failure)
    elif cause in (Cause.FULL, Cause.LARGER_THAN_LIMIT, Cause.LARGER_THAN_CARD):
        name = "largest_hole" if cause == Cause.FULL else "limit"
        yield from _against_size(failure, failure.figures.get(name))
    elif cause == Cause.DRIVER_REFUSED:
        yield from _against_refusal(failure)

    if cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
        yield from _against_contents(failure)


def _against_fragmentation(failure: LoggedFailure) -> Iterator[OomAdvice]:
    free, regions = failure.figures.get("free"), len(failure.regions)
    if failure.is_on_card and failure.kind is FailedAllocator.POOL and free is not None:
        yield OomAdvice(
            "Try TF_GPU_ALLOCATOR=cuda_malloc_async (TensorFlow 2.5 and later), which can "
            "combine free memory that is not contiguous.",
            f"{free} were free, more than the request.",
        )
    if regions > 1 and not failure.is_on_host:  # its pools grow: process_state.cc
        yield OomAdvice(
            "Turn memory growth off: TensorFlow then takes its pool at the start, as one region.",
            f"The pool has {regions} regions, and no chunk spans two of them.",
        )
    if free is not None:
        yield OomAdvice(
            "Keep shapes the same from step to step, and allocate the largest tensors first.",
            "A freed chunk then fits the next request.",
        )


def _against_size(failure: LoggedFailure, room: Range | None) -> Iterator[OomAdvice]:
    """Yield advice for a request that is too large; ``room`` is the largest place for it."""
    request, total, batch = failure.request, failure.card_memory, find_batch(failure)
    if request is None:
        return

    if room is not None and batch:
        item_bytes = math.ceil(request.high_bytes / batch)
        most = room.low // item_bytes
        if 0 < most < batch:
            yield OomAdvice(
                f"Use a smaller batch, if the first axis of {list(failure.shape or ())} is the "
                f"batch: at most {most:,} of {batch:,} for this tensor alone.",
                f"At most {room} are available in one piece; one item takes "
                f"{format_bytes(item_bytes)}.",
            )

    need_bytes = failure.in_use_bytes + request.rounded_bytes
    if total and failure.is_limited and failure.is_on_card and need_bytes < total.low:
        limit = failure.figures["limit"]
        yield OomAdvice(
            "Raise the memory limit, or stop other processes on the card.",
            f"The card has {total}; the limit of this process was {limit}.",
        )

    if failure.is_pinned:
        yield OomAdvice(
            "Raise TF_GPU_HOST_MEM_LIMIT_IN_MB, the limit of pinned host memory.",
            "The host's allocator failed, not the card's.",
        )


def _against_refusal(failure: LoggedFailure) -> Iterator[OomAdvice]:
    if failure.is_pinned:
        yield OomAdvice(
            "Hold less host memory (shuffle buffers, caches, prefetched batches), or give the "
            "machine or the container more of it.",
            "Pinned memory is host memory.",
        )
    if not failure.is_on_card:
        return

    pool = failure.figures.get("pool")
    had = "" if pool is None else f" The pool had {pool} then."
    yield OomAdvice(
        "Find out with nvidia-smi which process holds the rest of the card; stop it, or use "
        "another card.",
        f"The driver refused although the limit left room.{had}",
    )


def _against_contents(failure: LoggedFailure) -> Iterator[OomAdvice]:
    dominant = find_dominant_size(failure)
    if dominant is not None:
        yield OomAdvice(
            "Look for a list, a dictionary or a loop that keeps each step's tensors; keep "
            "Python numbers instead.",
            f"{dominant.count:,} chunks of {dominant.size_bytes:,} bytes are alive at once.",
        )

    sizes = [size.size_bytes for size in failure.sizes]

    if failure.request is not None:
        sizes.append(failure.request.requested_bytes)

    op = failure.op_type or failure.requested_by
    if op in _CONSTANT_OPS and max(sizes, default=0) >= _LARGE_CONSTANT:
        yield OomAdvice(
            "Keep the data set on the host: use tf.data with a generator or files, or convert "
            'it under tf.device("CPU").',
            "A whole array became a constant on the device (op _EagerConst).",
        )


def find_batch(failure: LoggedFailure) -> int:
    """Return the first axis of the request; 0 if it is not the batch, as in a variable's update."""
    shape = failure.shape or ()
    names = f"{failure.op} {failure.requested_by}".lower()
    is_variable = (
        any(word in names for word in _VARIABLE_OPS) or "variable" in failure.kernel
    )
    if len(shape) < 2 or shape[0] < 2 or is_variable:
        return 0
    return shape[0]


def find_fit_options(failure: LoggedFailure) -> tuple[str, int | None] | None:
    """Return the card and the limit for ``analyze fit``; None if TensorFlow did not fail on a card."""
    is_own = not failure.other_cause and not failure.framework_name
    if not is_own or not (failure.is_on_card or failure.is_compiled):
        return None

    name = failure.card.name if failure.card else ""
    gpu, limit = look_up_gpu(name) if name else None, failure.figures.get("limit")
    if (
        limit is not None
        and gpu is not None
        and limit.low > memory_limit(gpu).range.high
    ):
        limit = None  # the driver gives less than such a limit
    return gpu.id if gpu else "", limit.low if limit else None


def write_fit_command(failure: LoggedFailure) -> str | None:
    """Return the command that finds a size that fits; None if TensorFlow did not fail on a card."""
    options = find_fit_options(failure)
    if options is None:
        return None

    gpu, limit_bytes = options
    batch = find_batch(failure)
    limit = f" --limit {format_option_bytes(limit_bytes)}" if limit_bytes else ""
    size = f" --batch-size {batch}" if batch else ""
    return f"analyze fit TARGET --gpu {gpu or 'CARD'}{limit}{size}"
