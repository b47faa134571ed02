"""What to do about a failure, as far as its figures support it.

TensorFlow prints its hint about ``cuda_malloc_async`` for every failure. Here it is given only if
fragmentation caused the failure.
"""

import math
from collections.abc import Iterator

from analyzer.cards.catalogue import look_up_gpu, memory_limit
from analyzer.model.contract.oom_file import OomAdvice
from analyzer.model.contract.reading import read_table
from analyzer.oom.cause import Words
from analyzer.oom.failures import Cause, FailedAllocator, LoggedFailure
from analyzer.oom.figures import find_batch, find_dominant_size, is_data_set, is_weight
from analyzer.oom.wordings import OTHER_CAUSES

# An action and its reason by name.
_ADVICE = read_table("oom/advice.toml", dict[str, tuple[str, str]])
_CONSTANT_OPS = ("EagerConst", "_EagerConst")
_LARGE_BYTES = 64 << 20  # of a tensor that explains a failure by itself
_UNKNOWN_USE = (
    " The log does not show what else held memory, such as kept tensors, other models and other "
    "processes (nvidia-smi)."
)


def find_advice(
    failure: LoggedFailure,
    cause: str,
    words: Words,
) -> Iterator[OomAdvice]:
    """Yield the advice, the most direct first."""
    words["batch"] = batch = find_batch(failure)
    without_batch = "unsure" if failure.shape else "smaller"
    words["less"] = (without_batch, "single", "smaller_batch")[min(batch, 2)]
    words["most"], words["hole"] = _find_smaller_batch(failure, cause, batch)

    is_known = failure.in_use or failure.is_on_host or failure.other_cause
    words["rest"] = "" if is_known else _UNKNOWN_USE

    for name in _choose(failure, cause, words):
        action, because = _ADVICE[name]
        yield OomAdvice(action.format(**words), because.format(**words))


def _choose(failure: LoggedFailure, cause: str, words: Words) -> Iterator[str]:
    """Yield the names of the advice."""
    row = OTHER_CAUSES.get(failure.other_cause)
    if row is not None:
        if cause == row.cause:
            yield row.advice

        return

    if failure.kind is FailedAllocator.HOST:
        yield from _choose_for_host(failure, words)
        return

    if cause != Cause.HELD_BY_OTHERS:
        if failure.has_low_limit:
            yield "limit"
        elif failure.has_tiny_limit:
            yield "held-by-others"

    sizes = _find_copied_sizes(failure)
    if max(sizes, default=0) >= _LARGE_BYTES:
        yield "constant"
    elif 0 in sizes:
        yield "copied"

    if cause in _ADVICE:
        yield cause
    elif cause == Cause.FRAGMENTED and failure.free is not None:
        if failure.is_on_card:
            yield "async"
        if len(failure.regions) > 1 and not failure.is_on_host:  # its pools always grow
            yield "growth"

        yield "shapes"
        yield words["less"]
    elif cause == Cause.DRIVER_REFUSED:
        yield "pinned" if failure.is_pinned else "refused"
    else:
        yield from _choose_for_size(failure, words)

    if find_dominant_size(failure) is not None:
        yield "list"


def _find_copied_sizes(failure: LoggedFailure) -> list[int]:
    """Return sizes of an array that may be copied to the device; 0 if the log gives none."""
    op = failure.op_type or failure.requested_by
    is_copied = op in _CONSTANT_OPS or "run GatherV2: Dst tensor" in failure.words
    if failure.makes_weights or not is_copied:
        return []

    sizes = [size.size_bytes for size in failure.sizes]
    if failure.asked is not None:
        sizes.append(failure.asked.requested_bytes)
    elif failure.free is not None:
        sizes.append(failure.free.low)  # the request was larger

    return sizes or [0]


def _choose_for_host(failure: LoggedFailure, words: Words) -> Iterator[str]:
    """Yield advice for a tensor in host memory, such as an activation on the CPU."""
    if is_data_set(failure):
        yield "batches"
    else:
        if _is_small(failure):
            yield "small_request"

        yield from _choose_for_size(failure, words)


def _is_small(failure: LoggedFailure) -> bool:
    """Return whether other tensors than the requested one explain a failure."""
    asked = failure.asked
    return asked is not None and asked.high_bytes < _LARGE_BYTES


def _choose_for_size(failure: LoggedFailure, words: Words) -> Iterator[str]:
    """Yield advice for a request that is too large, or whose cause is unknown."""
    if words["rest"] and words["batch"] < 2 and _is_small(failure):
        yield "small_on_card"

    left = words["left"]
    if failure.asked is None and left and left.low > failure.in_use_bytes:
        yield "request"

    if failure.is_pinned:
        yield from ("pinned", "pinned_limit")
    elif is_weight(failure):
        yield "weight"
    elif failure.op_type == "Const" and not _is_small(failure):
        yield "graph_constant"
    elif 0 < words["most"] < words["batch"]:
        yield "known_batch"
    else:
        yield words["less"]


def _find_smaller_batch(
    failure: LoggedFailure,
    cause: str,
    batch: int,
) -> tuple[int, object]:
    """Return the batch whose tensors of the requested size fit, and the place for one of them."""
    place = failure.largest_hole if cause == Cause.FULL else failure.limit
    if failure.asked is None or place is None:
        return 0, None

    size_bytes = failure.asked.high_bytes
    equal = sum(row.count for row in failure.sizes if row.is_asked)
    available_bytes = place.low + equal * size_bytes

    return available_bytes * batch // max(size_bytes * (equal + 1), 1), place


def find_fit_options(failure: LoggedFailure) -> tuple[str, int | None] | None:
    """Return the card and the limit for ``analyze fit``; None if TensorFlow did not fail on a card."""
    is_foreign = failure.other_cause or failure.framework
    if is_foreign or not (failure.is_on_card or failure.is_compiled):
        return None

    gpu = look_up_gpu(failure.card_name) if failure.card_name else None
    limit = failure.limit

    if limit and gpu and limit.low > memory_limit(gpu).range.high:
        limit = None  # the driver gives less

    return gpu.id if gpu else "", limit.low if limit else None


def write_next_command(failure: LoggedFailure) -> str | None:
    """Return the command that continues: a size that fits, the card's users, or the script's need."""
    fit = write_fit_command(failure)
    if fit is not None or failure.framework:
        return fit

    if failure.kind is FailedAllocator.LIBRARY:
        return "analyze device"

    return "analyze trace SCRIPT" if failure.is_on_host else None


def write_fit_command(failure: LoggedFailure) -> str | None:
    """Return the command that finds a size that fits; None if TensorFlow did not fail on a card."""
    options = find_fit_options(failure)
    if options is None:
        return None

    gpu, limit_bytes = options
    if failure.has_tiny_limit:
        limit_bytes = 0  # what others left

    limit = f" --limit {_write_limit(limit_bytes)}" if limit_bytes else ""
    return f"analyze fit TARGET --gpu {gpu or 'CARD'}{limit}"


def _write_limit(size_bytes: int) -> str:
    """Return a limit as an option takes it, rounded down: ``1024MiB`` or ``13.27GiB``."""
    mib = size_bytes >> 20
    if size_bytes % (1 << 20) and mib >= 1024:
        return f"{math.floor(mib / 10.24) / 100}GiB"

    return f"{mib}MiB"
