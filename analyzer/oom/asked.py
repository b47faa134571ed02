"""How many bytes the request that failed was for: every digit, where the log allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analyzer.oom.amounts import Amount, exactly, rounded_up
from analyzer.oom.log_records import Mishap, Wanted
from analyzer.oom.typesizes import ITEM_SIZES, item_bytes


@dataclass(frozen=True, slots=True)
class AskedBytes:
    """What was asked for.

    Attributes:
        requested: Bytes of the tensor.
        rounded: What the allocator looked for: the same, up to the next multiple of 256.
        basis: What they rest on, in words.
        dtype: The type of the tensor in TensorFlow's word; empty where neither the log nor its figures
            give it.
    """

    requested: Amount
    rounded: Amount
    basis: str
    dtype: str


def asked_bytes(mishap: Mishap) -> AskedBytes | None:
    """Return what a failure was for; None where the log does not say."""
    return _by_shape(mishap) or _by_figures(mishap)


def by_shape_alone(wanted: Wanted) -> Amount | None:
    """Return what a tensor of which the log has no type (to TensorFlow 1.4) may take; else None."""
    if wanted.shape is None or wanted.dtype or min(wanted.shape, default=0) < 0:
        return None
    elements = math.prod(wanted.shape)
    return Amount(elements * min(ITEM_SIZES), elements * max(ITEM_SIZES))


def _by_shape(mishap: Mishap) -> AskedBytes | None:
    """Take the shape and the type, if they agree with what the allocator printed."""
    wanted = mishap.wanted
    if wanted.shape is None or any(axis < 0 for axis in wanted.shape):
        return None
    elements = math.prod(wanted.shape)
    known = item_bytes(wanted.dtype) if wanted.dtype else None
    if known is not None:
        size_bytes = math.ceil(elements * known)
        if not _agrees(mishap, size_bytes):
            return None
        basis = "the shape and the type"
        return _exact(size_bytes, basis, wanted.dtype)
    if wanted.dtype:
        return None
    own = item_bytes(_python(wanted.node_dtype)) if wanted.node_dtype else None
    if own is not None and _agrees(mishap, math.ceil(elements * own)):
        return _exact(
            math.ceil(elements * own), "the shape and the op's own type", _python(wanted.node_dtype)
        )
    if wanted.size is None and wanted.rounded_bytes is None:
        return None
    for item in ITEM_SIZES:
        if _agrees(mishap, elements * item):
            basis = f"the shape and the printed size, which make {item} bytes an element"
            return _exact(elements * item, basis, "float" if item == 4 else "")
    return None


def _by_figures(mishap: Mishap) -> AskedBytes | None:
    wanted = mishap.wanted
    if wanted.rounded_bytes is not None:
        least = max(wanted.rounded_bytes - 255, 1)
        requested = Amount(least, wanted.rounded_bytes)
        if wanted.size is not None:
            requested = requested.within(wanted.size) or requested
        basis = "the allocator's line, which rounds up to 256 bytes"
        return AskedBytes(requested, exactly(wanted.rounded_bytes), basis, wanted.dtype)
    if wanted.size is None:
        return None
    rounded = Amount(rounded_up(wanted.size.low), rounded_up(wanted.size.high))
    if wanted.size.is_exact:
        return AskedBytes(wanted.size, rounded, "the log's own figure", wanted.dtype)
    sizes = [size for size, _ in mishap.dump.census if rounded.holds(size)]
    if len(sizes) == 1:
        basis = "the printed size, and the one size of the chunk list that it may be"
        requested = Amount(max(sizes[0] - 255, wanted.size.low), min(sizes[0], wanted.size.high))
        return AskedBytes(requested, exactly(sizes[0]), basis, wanted.dtype)
    return AskedBytes(
        wanted.size, rounded, "the printed size, of which the last digits are lost", ""
    )


def _agrees(mishap: Mishap, size_bytes: int) -> bool:
    wanted = mishap.wanted
    if wanted.rounded_bytes is not None:
        return rounded_up(size_bytes) == wanted.rounded_bytes
    return wanted.size is None or wanted.size.holds(size_bytes)


def _exact(size_bytes: int, basis: str, dtype: str) -> AskedBytes:
    return AskedBytes(exactly(size_bytes), exactly(rounded_up(size_bytes)), basis, dtype)


def _python(word: str) -> str:
    return {"float": "float32", "half": "float16", "double": "float64"}.get(word, word)
