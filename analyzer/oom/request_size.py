"""The size of the request that failed: exact if the log allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analyzer.model.ranges import Range
from analyzer.oom.amounts import ITEM_SIZES, item_bytes, numpy_name, round_up_request
from analyzer.oom.log_records import LoggedFailure, RequestedTensor


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Size of a request, ``rounded`` up to 256 bytes as the allocator does; ``basis`` is its source."""

    requested: Range
    rounded: Range
    basis: str
    dtype: str


def compute_size(failure: LoggedFailure) -> RequestSize | None:
    """Return the size of a request; None if the log does not give it."""
    return _size_by_shape(failure.tensor) or _size_by_figures(failure)


def size_without_type(tensor: RequestedTensor) -> Range | None:
    """Return bounds for a shape whose type the log lacks (TensorFlow 1.4 and before), else None."""
    if tensor.shape is None or tensor.dtype or min(tensor.shape, default=0) < 0:
        return None
    elements = math.prod(tensor.shape)
    return Range(elements * min(ITEM_SIZES), elements * max(ITEM_SIZES))


def _size_by_shape(tensor: RequestedTensor) -> RequestSize | None:
    """Return the size that the shape and the type give, if the printed size agrees."""
    if tensor.shape is None or any(axis < 0 for axis in tensor.shape):
        return None
    elements = math.prod(tensor.shape)
    dtype = tensor.dtype or numpy_name(tensor.node_dtype)
    item = item_bytes(dtype) if dtype else None
    size_bytes = 0 if item is None else math.ceil(elements * item)
    if item is not None and _agrees(tensor, size_bytes):
        own = "the shape and the type" if tensor.dtype else "the shape and the op's own type"
        return _exact_size(size_bytes, own, dtype)
    if tensor.dtype or (tensor.size is None and tensor.rounded_bytes is None):
        return None
    return _size_by_printed_size(tensor, elements)


def _size_by_printed_size(tensor: RequestedTensor, elements: int) -> RequestSize | None:
    """Return the size for the first element size that agrees with the printed size."""
    for size in ITEM_SIZES:
        if _agrees(tensor, elements * size):
            basis = f"the shape and the printed size, which give {size} bytes per element"
            return _exact_size(elements * size, basis, "float" if size == 4 else "")
    return None


def _size_by_figures(failure: LoggedFailure) -> RequestSize | None:
    """Return the size that the allocator's line gives."""
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


def _agrees(tensor: RequestedTensor, size_bytes: int) -> bool:
    if tensor.rounded_bytes is not None:
        return round_up_request(size_bytes) == tensor.rounded_bytes
    return tensor.size is None or size_bytes in tensor.size


def _exact_size(size_bytes: int, basis: str, dtype: str) -> RequestSize:
    rounded = Range.exactly(round_up_request(size_bytes))
    return RequestSize(Range.exactly(size_bytes), rounded, basis, dtype)
