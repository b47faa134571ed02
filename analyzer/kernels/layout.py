"""Kernels that move or view elements: slices, transposes, tiles, concatenations, reductions."""

from __future__ import annotations

import math

from analyzer.kernels.call import ALIGNMENT_BYTES, Call, alias, allocate, allocate_all
from analyzer.kernels.plan import Output, Plan, Way

_MAX_REDUCED_GROUPS = 3


def plan_transpose(call: Call) -> Plan:
    """Share the buffer where the order of the axes that are not 1 stays (``TransposeOp``)."""
    shape, order = call.shape(0), call.values[1] if len(call.values) > 1 else None
    if shape is not None and order is not None:
        moved = [axis for axis in order if shape[axis] != 1]
        if moved == sorted(moved):
            return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_same_or_copy(call: Call) -> Plan:
    """Share the buffer where the output has the input's shape (Tile, BroadcastTo of one)."""
    if call.shape(0) is not None and call.shape(0) == call.out_shape():
        return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_cast(call: Call) -> Plan:
    """Share the buffer where the type stays; ``CastOp`` never forwards."""
    if call.attr("SrcT") == call.attr("DstT"):
        return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_concat(call: Call) -> Plan:
    """Share the buffer where only one of the inputs has elements (``ConcatBaseOp``)."""
    count = int(call.attr("N", len(call.inputs)))
    first = 1 if call.op.type == "Concat" else 0
    full = [index for index in range(first, first + count) if call.input_size(index)]
    if len(full) == 1 and call.input_size(full[0]) == call.size():
        return Plan(outputs=(alias(full[0]),))
    return Plan(outputs=(allocate(call),))


def plan_pack(call: Call) -> Plan:
    """Share the buffer of a single input (``PackOp``), else allocate."""
    if len(call.inputs) == 1:
        return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_slice(call: Call) -> Plan:
    """Share the whole, or a run of aligned rows of the first axis (``SliceOp``).

    The view keeps the whole parent buffer alive.
    """
    shape, out = call.shape(0), call.out_shape()
    if shape is None or out is None:
        return Plan(outputs=(allocate(call),))
    if shape == out:
        return Plan(outputs=(alias(),))
    begin = call.values[1] if len(call.values) > 1 else None
    if begin is not None and shape[1:] == out[1:]:
        row_bytes = call.input_size(0) // max(shape[0], 1)
        if _aligned(begin[0] * row_bytes) and _aligned((begin[0] + out[0]) * row_bytes):
            return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_strided_slice(call: Call) -> Plan:
    """Share the whole, or aligned rows of the first axis with stride 1 (``StridedSliceOp``)."""
    shape, out = call.shape(0), call.out_shape()
    if shape is None or out is None:
        return Plan(outputs=(allocate(call),))
    strides = call.values[3] if len(call.values) > 3 else None
    if strides is not None and all(stride == 1 for stride in strides):
        if math.prod(shape) == math.prod(out):
            return Plan(outputs=(alias(),))
        begin, end = call.values[1], call.values[2]
        masked = int(call.attr("begin_mask", 0)) or int(call.attr("end_mask", 0))
        if begin and end and len(begin) == 1 and not masked and begin[0] >= 0 and shape:
            row_bytes = call.input_size(0) // max(shape[0], 1)
            stop = begin[0] + 1 if int(call.attr("shrink_axis_mask", 0)) else end[0]
            if _aligned(begin[0] * row_bytes) and _aligned(stop * row_bytes):
                return Plan(outputs=(alias(),))
    return Plan(outputs=(allocate(call),))


def plan_split(call: Call) -> Plan:
    """Share aligned parts of the first axis, else allocate each part (``SplitOpBase``)."""
    source = 1 if call.op.type == "Split" else 0
    axis_input = 0 if call.op.type == "Split" else 2
    if len(call.op.outputs) == 1:
        return Plan(outputs=(alias(source),))
    shape = call.shape(source)
    axis = call.values[axis_input] if axis_input < len(call.values) else None
    if shape is not None and axis is not None and axis[0] % max(len(shape), 1) == 0:
        row_bytes = call.input_size(source) // max(shape[0], 1)
        if _aligned(row_bytes):
            return Plan(outputs=tuple(alias(source) for _ in call.op.outputs))
    return Plan(outputs=allocate_all(call))


def plan_unpack(call: Call) -> Plan:
    """Share aligned rows of the first axis, else allocate each that is used (``UnpackOp``)."""
    aligned = bool(call.op.outputs) and _aligned(call.size())
    if int(call.attr("axis", 0)) == 0 and aligned:
        return Plan(outputs=tuple(alias() for _ in call.op.outputs))
    return Plan(
        outputs=tuple(
            Output(Way.NONE) if index in call.unused else output
            for index, output in enumerate(allocate_all(call))
        )
    )


def plan_reduction(call: Call) -> Plan:
    """Allocate the result as a temporary; copy the input where axes alternate too often.

    ``ReductionOp`` merges neighbouring axes that are all kept or all reduced. Up to three groups
    are reduced where they lie; more are first copied in transposed order. Reducing nothing shares
    the input's buffer. (``reduction_ops_common.h`` of the wheel, lines 140 to 250.)
    """
    shape, axes = call.shape(0), call.values[1] if len(call.values) > 1 else None
    if shape is None or axes is None:
        return Plan(outputs=(allocate(call, region="temp"),))
    reduced = {axis % max(len(shape), 1) for axis in axes}
    groups: list[bool] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if not groups or groups[-1] != (axis in reduced):
            groups.append(axis in reduced)
    if not any(groups) and math.prod(shape) > 0:
        return Plan(outputs=(alias(),))
    copy_bytes = (call.input_size(0),) if len(groups) > _MAX_REDUCED_GROUPS else ()
    result: Output = allocate(call, region="temp")
    return Plan(outputs=(result,), after_bytes=copy_bytes)


def _aligned(size_bytes: int) -> bool:
    return size_bytes % ALIGNMENT_BYTES == 0
