"""Kernels that move or view elements: slices, transposes, tiles, concatenations, reductions."""

from __future__ import annotations

import math

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Output, Way
from analyzer.simulate.kernels.shared.op_call import (
    ALIGNMENT_BYTES,
    Call,
    alias,
    allocate,
    allocate_all,
)

_MAX_REDUCED_GROUPS = 3
"""Groups of axes, kept or reduced in turn, that a reduction has a kernel for; with more it transposes
first (``reduction_ops_common.h``)."""


def plan_transpose(call: Call) -> MemoryPlan:
    """Share the buffer where the order of the axes that are not 1 stays (``TransposeOp``)."""
    shape, order = call.shape(0), call.values[1] if len(call.values) > 1 else None
    if shape is not None and order is not None:
        moved = [axis for axis in order if shape[axis] != 1]
        if moved == sorted(moved):
            return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_same_or_copy(call: Call) -> MemoryPlan:
    """Share the buffer where the output has the input's shape (Tile, BroadcastTo of one)."""
    if call.shape(0) is not None and call.shape(0) == call.out_shape():
        return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_cast(call: Call) -> MemoryPlan:
    """Share the buffer where the type stays; ``CastOp`` never forwards."""
    if call.attr("SrcT") == call.attr("DstT"):
        return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_concat(call: Call) -> MemoryPlan:
    """Share the buffer where only one of the inputs has elements (``ConcatBaseOp``)."""
    count = int(call.attr("N", len(call.inputs)))
    first = 1 if call.op.type == "Concat" else 0
    full = [index for index in range(first, first + count) if call.input_size(index)]
    if len(full) == 1 and call.input_size(full[0]) == call.size():
        return MemoryPlan(outputs=(alias(full[0]),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_pack(call: Call) -> MemoryPlan:
    """Share the buffer of a single input (``PackOp``), else allocate."""
    if len(call.inputs) == 1:
        return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_slice(call: Call) -> MemoryPlan:
    """Share the whole, or a run of aligned rows of the first axis (``SliceOp``).

    The view keeps the whole parent buffer alive.
    """
    shape, out = call.shape(0), call.out_shape()
    if shape is None or out is None:
        return MemoryPlan(outputs=(allocate(call),))
    if shape == out:
        return MemoryPlan(outputs=(alias(),))
    begin = call.values[1] if len(call.values) > 1 else None
    if begin is not None and shape[1:] == out[1:] and _is_view(call, shape, begin[0], out[0]):
        return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def plan_strided_slice(call: Call) -> MemoryPlan:
    """Share the whole, or aligned rows of the first axis with stride 1 (``StridedSliceOp``)."""
    shape, out = call.shape(0), call.out_shape()
    if shape is None or out is None:
        return MemoryPlan(outputs=(allocate(call),))
    strides = call.values[3] if len(call.values) > 3 else None
    if strides is not None and all(stride == 1 for stride in strides):
        if math.prod(shape) == math.prod(out):
            return MemoryPlan(outputs=(alias(),))
        rows = rows_taken(call, shape, len(strides))
        if rows is not None and _is_view(call, shape, *rows):
            return MemoryPlan(outputs=(alias(),))
    return MemoryPlan(outputs=(allocate(call),))


def rows_taken(call: Call, shape: tuple[int, ...], entries: int) -> tuple[int, int] | None:
    """Return the first row that a slice with strides of 1 takes and the one behind its last.

    None where it takes a part of another axis, or where that depends on what is not known. Masks and
    negative places as ``ValidateStridedSliceOp`` resolves them.

    Args:
        call: The slice; its second and third inputs are ``begin`` and ``end``.
        shape: Shape of what is sliced.
        entries: Numbers in ``begin``.
    """
    if not shape:
        return None
    masks = {name: int(call.attr(f"{name}_mask", 0)) for name in _SLICE_MASKS}
    taken: tuple[int, int] | None = (0, shape[0])
    axis = 0
    for entry in range(entries):
        bit = 1 << entry
        if masks["ellipsis"] & bit:
            behind = [k for k in range(entry + 1, entries) if not masks["new_axis"] >> k & 1]
            axis = len(shape) - len(behind)
        elif not masks["new_axis"] & bit:
            span = _span(call, masks, entry, shape[axis])
            if axis == 0:
                taken = span
            elif span != (0, shape[axis]):
                return None
            axis += 1
    return taken


_SLICE_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _span(call: Call, masks: dict[str, int], entry: int, length: int) -> tuple[int, int] | None:
    """Return from where to where one entry of a slice takes an axis; None where it is not known."""
    begin, end = (
        values[entry]
        if (values := call.values[index]) is not None and entry < len(values)
        else None
        for index in (1, 2)
    )
    if masks["shrink_axis"] >> entry & 1:
        if begin is None:
            return None
        start = begin + length if begin < 0 else begin
        return start, start + 1
    if masks["begin"] >> entry & 1:
        begin = 0
    if masks["end"] >> entry & 1:
        end = length
    if begin is None or end is None:
        return None
    places = (min(max(at + length if at < 0 else at, 0), length) for at in (begin, end))
    start, stop = places
    return start, stop


def _is_view(call: Call, shape: tuple[int, ...], first: int, last: int) -> bool:
    """Say whether some rows of the first axis are shared (``IsDim0SliceAligned`` in ``ops_util.h``).

    Args:
        call: The slice.
        shape: Shape of what is sliced.
        first: Its first row.
        last: The row behind its last, or the number of rows: both are multiples at the same time.
    """
    row_bytes = call.input_size(0) // max(shape[0], 1)
    if len(shape) > 1:
        return bool(row_bytes) and _aligned(row_bytes)
    return _aligned(first * row_bytes) and _aligned(last * row_bytes)


def plan_split(call: Call) -> MemoryPlan:
    """Share aligned parts of the first axis, else allocate each part (``SplitOpBase``)."""
    source = 1 if call.op.type == "Split" else 0
    axis_input = 0 if call.op.type == "Split" else 2
    if len(call.op.outputs) == 1:
        return MemoryPlan(outputs=(alias(source),))
    shape = call.shape(source)
    axis = call.values[axis_input] if axis_input < len(call.values) else None
    if shape is not None and axis is not None and axis[0] % max(len(shape), 1) == 0:
        row_bytes = call.input_size(source) // max(shape[0], 1)
        if _aligned(row_bytes):
            return MemoryPlan(outputs=tuple(alias(source) for _ in call.op.outputs))
    return MemoryPlan(outputs=allocate_all(call))


def plan_unpack(call: Call) -> MemoryPlan:
    """Share aligned rows of the first axis, else allocate each that is used (``UnpackOp``)."""
    aligned = bool(call.op.outputs) and _aligned(call.size())
    if int(call.attr("axis", 0)) == 0 and aligned:
        return MemoryPlan(outputs=tuple(alias() for _ in call.op.outputs))
    return MemoryPlan(
        outputs=tuple(
            Output(Way.NONE) if index in call.unused else output
            for index, output in enumerate(allocate_all(call))
        )
    )


def plan_reduction(call: Call) -> MemoryPlan:
    """Allocate the result as a temporary; copy the input where axes alternate too often.

    ``ReductionOp`` merges neighbouring axes that are all kept or all reduced. Up to three groups
    are reduced where they lie; more are first copied in transposed order. Reducing nothing shares
    the input's buffer. (``reduction_ops_common.h`` of the wheel, lines 140 to 250.) Where the axes are
    not known (those of a gradient in a loop), a result with as many elements reduced nothing.
    """
    shape, axes = call.shape(0), call.values[1] if len(call.values) > 1 else None
    if shape and axes is None and math.prod(shape) == math.prod(call.out_shape() or (0,)) > 0:
        return MemoryPlan(outputs=(alias(),))
    if shape is None or axes is None:
        return MemoryPlan(outputs=(allocate(call, region="temp"),))
    reduced = {axis % max(len(shape), 1) for axis in axes}
    groups: list[bool] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if not groups or groups[-1] != (axis in reduced):
            groups.append(axis in reduced)
    if not any(groups) and math.prod(shape) > 0:
        return MemoryPlan(outputs=(alias(),))
    copy_bytes = (call.input_size(0),) if len(groups) > _MAX_REDUCED_GROUPS else ()
    result: Output = allocate(call, region="temp")
    return MemoryPlan(outputs=(result,), after_bytes=copy_bytes)


def _aligned(size_bytes: int) -> bool:
    return size_bytes % ALIGNMENT_BYTES == 0
