"""One failure with everything that is computed from it, and the advice that its figures support.

TensorFlow prints its hint about ``cuda_malloc_async`` for every failure. Here it is given only if
fragmentation caused the failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from analyzer.cards import gpus_named, memory_limit
from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.choice import Choice
from analyzer.model.contract.report.oom_file import OomAdvice, OomSize
from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import format_option_bytes
from analyzer.oom.dumped_state import DumpedState, find_dominant_size, read_texts, write_advice
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    OutOf,
    RefusalRun,
    RequestedTensor,
    difference,
    round_up_request,
    shape_bytes,
)

_LIMITED_SHARE = 0.8  # of the card's memory: a lower limit was set, or follows from other processes


class Cause(Choice):
    """Why a request failed."""

    LARGER_THAN_CARD = "larger-than-card"
    LARGER_THAN_LIMIT = "larger-than-limit"
    FRAGMENTED = "fragmented"
    WASTED = "wasted-in-chunks"
    FULL = "full"
    DRIVER_REFUSED = "driver-refused"
    HELD_BY_OTHERS = "held-by-others"
    BESIDE_THE_POOL = "beside-the-pool"
    HOST = "host"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCase:
    """One failure with everything that is computed from it."""

    failure: LoggedFailure
    request: RequestSize | None  # None if the log does not give its size
    state: DumpedState
    card: LoggedCard | None  # None for the host and if no card is described
    sizes: list[OomSize]
    refusals: list[RefusalRun]
    budget: tuple[int, int] | None = None  # XLA's for a program, and the larger plan it reached

    @property
    def is_on_card(self) -> bool:
        """Whether card memory was requested."""
        if self.failure.is_on_host or self.failure.kind is FailedAllocator.HOST:
            return False
        return "gpu" in self.failure.allocator.lower() or "gpu:" in self.failure.device.lower()

    @property
    def in_use_bytes(self) -> int | None:
        """Bytes in use; the middle of their range."""
        return None if self.state.in_use is None else self.state.in_use.middle

    @property
    def limit_left(self) -> Range | None:
        """Limit minus bytes in use."""
        return difference(self.state.limit, self.state.in_use)

    @property
    def card_total(self) -> Range | None:
        """The card's memory: from the log, else from the catalogue by the card's name."""
        if self.failure.card_total is not None:
            return Range.exactly(self.failure.card_total)
        return None if self.card is None else find_card_memory(self.card)

    @property
    def is_limited(self) -> bool:
        """Whether the limit is well below the memory of the card."""
        return is_limited(self.state.limit, self.card_total)

    @property
    def is_limit_above_card(self) -> bool:
        """Whether the limit is more than the memory of the card."""
        limit, total = self.state.limit, self.card_total
        return limit is not None and total is not None and limit.low > total.high


def find_component(failure: LoggedFailure) -> str:
    """Return the program or the library that found no memory."""
    framework = find_framework(failure.framework)
    if failure.component or not failure.is_compiled:
        return failure.component or framework or "TensorFlow"
    return f"{framework} (XLA)" if framework else "XLA"


def find_framework(package: str) -> str:
    """Return the name of the framework of a package; empty for TensorFlow and if unknown."""
    name: str = read_texts()["framework"].get(package, "")
    return name


def is_limited(limit: Range | None, total: Range | None) -> bool:
    """Return whether a limit is well below the memory of a card."""
    return limit is not None and total is not None and limit.high < _LIMITED_SHARE * total.low


def find_card_memory(card: LoggedCard) -> Range | None:
    """Return a card's memory: from the log, else what CUDA reports for a card of its name."""
    if card.total is not None or not card.name:
        return card.total
    try:
        return Range.spanning(one.memory_bytes for one in gpus_named(card.name))
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Size of a request, also ``rounded`` up to a chunk; ``basis`` is its source."""

    requested: Range
    rounded: Range
    basis: str
    dtype: str

    @property
    def size(self) -> Range:
        """The size for sentences."""
        return self.requested if self.requested.is_exact else self.rounded


def size_by_shape(tensor: RequestedTensor) -> RequestSize | None:
    """Return the size that the shape and the type give, if the printed size agrees."""
    size = None if tensor.shape is None else shape_bytes(tensor.shape, tensor.dtype)
    if size is None:
        return None
    rounded = round_up_request(size)
    agrees = tensor.size is None or size in tensor.size
    if tensor.rounded_bytes is not None:
        agrees = rounded == tensor.rounded_bytes
    if not agrees:
        return None
    exact, chunk = Range.exactly(size), Range.exactly(rounded)
    return RequestSize(exact, chunk, "the shape and the type", tensor.dtype)


def size_by_figures(failure: LoggedFailure) -> RequestSize | None:
    """Return the size of a request by its figures; None if the log does not give it."""
    tensor = failure.tensor
    size, rounded_bytes = tensor.size, tensor.rounded_bytes
    if rounded_bytes is not None:
        requested = Range(max(rounded_bytes - 255, min(1, rounded_bytes)), rounded_bytes)
        if size is not None:
            requested = requested.intersection(size) or requested
        basis = "the allocator's line, which rounds up to 256 bytes"
        return RequestSize(requested, Range.exactly(rounded_bytes), basis, tensor.dtype)
    if size is None:
        return None
    rounded = Range(round_up_request(size.low), round_up_request(size.high))
    if size.is_exact:
        return RequestSize(size, rounded, "the size in the log", tensor.dtype)
    sizes = [listed for listed, _ in failure.dump.summary if listed in rounded]
    if len(sizes) == 1:
        basis = "the printed size, and the only size in the chunk list that matches it"
        requested = Range(max(sizes[0] - 255, size.low), min(sizes[0], size.high))
        return RequestSize(requested, Range.exactly(sizes[0]), basis, tensor.dtype)
    return RequestSize(size, rounded, "the printed size, which is rounded", "")


_CONSTANT_OPS: Final = ("EagerConst", "_EagerConst", "Const", "HostConst")
_VARIABLE_OPS: Final = (
    *("adam/", "sgd/", "rmsprop/", "adagrad/", "optimizer", "train_op", "apply", "assign"),
    *("initializer", "variable", "random_uniform", "truncatednormal", "truncated_normal", "const"),
    "tensordot/",
)
"""Parts of the names of ops that create or update a variable, or multiply with joined axes. The first
axis of their results is not the batch."""
_LARGE_CONSTANT: Final = 64 << 20  # bytes


def find_advice(case: OomCase, cause: str) -> Iterator[OomAdvice]:
    """Yield the advice, the most direct first."""
    if case.failure.component:
        yield from _advice_for_component(case, cause)
    else:
        yield from _advice_by_cause(case, cause)
        if cause not in (Cause.HOST, Cause.BESIDE_THE_POOL):
            yield from _advice_by_contents(case)


class FitCall(NamedTuple):
    """Options of ``analyze fit`` for a failed step; "", None and 0 if the log does not give them."""

    gpu: str
    limit_bytes: int | None
    batch: int

    @property
    def command(self) -> str:
        """The command that finds a size that fits."""
        limit = f" --limit {format_option_bytes(self.limit_bytes)}" if self.limit_bytes else ""
        size = f" --batch-size {self.batch}" if self.batch else ""
        return f"analyze fit TARGET --gpu {self.gpu or 'CARD'}{limit}{size}"


def find_fit_call(case: OomCase) -> FitCall | None:
    """Return the step's card, limit and batch; None if TensorFlow did not fail on a card."""
    failure, limit = case.failure, case.state.limit
    is_own = not failure.component and not find_framework(failure.framework)
    if not is_own or not (case.is_on_card or failure.is_compiled):
        return None
    gpu = look_up_gpu(case.card.name) if case.card is not None and case.card.name else None
    if limit is not None and gpu is not None and limit.low > memory_limit(gpu).range.high:
        limit = None  # the driver gives less than such a limit
    return FitCall(gpu.id if gpu else "", limit.low if limit else None, _find_batch(case))


def _advice_for_component(case: OomCase, cause: str) -> Iterator[OomAdvice]:
    failure = case.failure
    name = "smaller"
    if failure.row is not None and failure.row.advice:
        name = failure.row.advice
    elif cause == Cause.HELD_BY_OTHERS:
        name = cause
    elif failure.kind is FailedAllocator.LIBRARY:
        name = Cause.BESIDE_THE_POOL
    elif failure.is_killed and cause != Cause.HOST:
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
        had = "" if state.pool is None else f" The pool had {state.pool} then."
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
