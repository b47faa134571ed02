"""One failure with everything that is computed from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analyzer.cards import gpus_named
from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.choice import Choice
from analyzer.model.contract.fields import numpy_name
from analyzer.model.contract.report.oom_file import OomSize
from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.oom.dumped_state import DumpedState
from analyzer.oom.log_records import (
    ITEM_SIZES,
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    RefusalRun,
    RequestedTensor,
    difference,
    possible_bytes,
    round_up_request,
)

_LIMITED_SHARE = 0.8  # of the card's memory: a lower limit was set, or follows from other processes

_FRAMEWORKS = {
    "torch": "PyTorch",
    "torch_xla": "PyTorch/XLA",
    "jax": "JAX",
    "jaxlib": "JAX",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "cupy": "CuPy",
    "XlaRuntimeError": "JAX",
}


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
    return _FRAMEWORKS.get(package, "")


def is_limited(limit: Range | None, total: Range | None) -> bool:
    """Return whether a limit is well below the memory of a card."""
    return limit is not None and total is not None and limit.high < _LIMITED_SHARE * total.low


def find_card_id(name: str) -> str:
    """Return the catalogue's id of a card; empty if the name is unknown."""
    gpu = look_up_gpu(name) if name else None
    return "" if gpu is None else gpu.id


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


def compute_size(failure: LoggedFailure) -> RequestSize | None:
    """Return the size of a request; None if the log does not give it."""
    return _size_by_shape(failure.tensor) or _size_by_figures(failure)


def size_without_type(tensor: RequestedTensor) -> Range | None:
    """Return bounds for a shape whose type the log lacks (TensorFlow 1.4 and before), else None."""
    if tensor.shape is None or tensor.dtype:
        return None
    return Range.spanning(possible_bytes(tensor.shape, ""))


def _size_by_shape(tensor: RequestedTensor) -> RequestSize | None:
    """Return the size that the shape and the type give, if the printed size agrees."""
    if tensor.shape is None:
        return None
    sizes: list[tuple[int, str, str]] = []
    if dtype := tensor.dtype or numpy_name(tensor.node_dtype):
        own = "the shape and the type" if tensor.dtype else "the shape and the op's own type"
        sizes = [(size, own, dtype) for size in possible_bytes(tensor.shape, dtype)]
    if not tensor.dtype and (tensor.size, tensor.rounded_bytes) != (None, None):
        for item in ITEM_SIZES:
            basis = f"the shape and the printed size, which give {item} bytes per element"
            sizes.append((math.prod(tensor.shape) * item, basis, "float" if item == 4 else ""))
    for size, basis, dtype in sizes:
        rounded = round_up_request(size)
        if tensor.rounded_bytes is not None:
            agrees = rounded == tensor.rounded_bytes
        else:
            agrees = tensor.size is None or size in tensor.size
        if agrees:
            return RequestSize(Range.exactly(size), Range.exactly(rounded), basis, dtype)
    return None


def _size_by_figures(failure: LoggedFailure) -> RequestSize | None:
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
    if "need" in failure.figures:
        basis = "the program's total, which is several allocations"
        return RequestSize(size, rounded, basis, tensor.dtype)
    if size.is_exact:
        return RequestSize(size, rounded, "the size in the log", tensor.dtype)
    sizes = [listed for listed, _ in failure.dump.summary if listed in rounded]
    if len(sizes) == 1:
        basis = "the printed size, and the only size in the chunk list that matches it"
        requested = Range(max(sizes[0] - 255, size.low), min(sizes[0], size.high))
        return RequestSize(requested, Range.exactly(sizes[0]), basis, tensor.dtype)
    return RequestSize(size, rounded, "the printed size, which is rounded", "")
