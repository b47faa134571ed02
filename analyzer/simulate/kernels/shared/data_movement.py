"""Kernels that move, view or contract elements: slices, transposes, reductions, Einsum."""

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from analyzer.simulate.kernels.shared.op_call import (
    ALIGNMENT_BYTES,
    NO_BUFFER,
    Call,
    MemoryPlan,
    alias,
    allocate,
    allocate_all,
    plan_alias,
    plan_allocation,
)

_MAX_REDUCED_GROUPS: Final = 3
"""Most groups of axes that a reduction handles without a transpose (``reduction_ops_common.h``)."""


def plan_transpose(call: Call) -> MemoryPlan:
    """Share the buffer if the order of the axes longer than 1 stays (``TransposeOp``)."""
    shape, order = call.shape(0), call.value(1)
    if shape is None or order is None:
        return plan_allocation(call)

    moved = [axis for axis in order if shape[axis] != 1]
    return plan_alias() if moved == sorted(moved) else plan_allocation(call)


def plan_same_or_copy(call: Call) -> MemoryPlan:
    """Share the buffer if the output has the shape of the input (Tile, BroadcastTo)."""
    is_same = call.shape(0) is not None and call.shape(0) == call.out_shape()
    return plan_alias() if is_same else plan_allocation(call)


def plan_slice(call: Call) -> MemoryPlan:
    """Share the whole input, or aligned rows of its first axis (``SliceOp``, ``StridedSliceOp``).

    Parts of a vector are copied: their start is mostly not aligned.
    """
    shape, out = call.shape(0), call.out_shape()
    if not shape or out is None:
        return plan_allocation(call)

    if call.op.type == "StridedSlice":
        strides = call.value(3)
        if strides is None or set(strides) - {1}:
            return plan_allocation(call)

    row_bytes = call.input_size(0) // max(shape[0], 1)
    is_rows = shape[1:] in (out, out[1:]) and len(shape) > 1
    is_whole = math.prod(shape) == math.prod(out)

    if is_whole or (is_rows and row_bytes and _is_aligned(row_bytes)):
        return plan_alias()
    return plan_allocation(call)


def plan_split(call: Call) -> MemoryPlan:
    """Share aligned parts of the first axis, else allocate each part (``SplitOpBase``)."""
    source, axis_input = (1, 0) if call.op.type == "Split" else (0, 2)
    if len(call.op.outputs) == 1:
        return plan_alias(source)

    shape, axis = call.shape(source), call.value(axis_input)
    if shape is None or axis is None or axis[0] % max(len(shape), 1):
        return plan_allocation(call)
    if not _is_aligned(call.input_size(source) // max(shape[0], 1)):
        return plan_allocation(call)
    return MemoryPlan(outputs=(alias(source),) * len(call.op.outputs))


def plan_unpack(call: Call) -> MemoryPlan:
    """Share aligned rows of the first axis, else allocate each used output (``UnpackOp``)."""
    outputs = allocate_all(call)
    if outputs and int(call.attr("axis", 0)) == 0 and _is_aligned(call.size()):
        return MemoryPlan(outputs=(alias(),) * len(outputs))

    used = (
        NO_BUFFER if at in call.unused else output for at, output in enumerate(outputs)
    )
    return MemoryPlan(outputs=tuple(used))


def merge_axes(shape: tuple[int, ...], axes: Iterable[int]) -> list[tuple[int, bool]]:
    """Return length and whether reduced of each group of neighbouring axes above length 1."""
    reduced = {axis % max(len(shape), 1) for axis in axes}
    long = [axis for axis, length in enumerate(shape) if length != 1]
    return [
        (math.prod(shape[axis] for axis in group), is_reduced)
        for is_reduced, group in groupby(long, reduced.__contains__)
    ]


def plan_reduction(call: Call) -> MemoryPlan:
    """Allocate the result as a temporary; copy the input if it must be transposed.

    ``ReductionOp`` merges neighbouring axes that are all kept or all reduced. Up to three groups
    are reduced directly; for more the input is transposed first. A reduction of no axis shares the
    buffer of the input (``reduction_ops_common.h`` of the wheel, lines 140 to 250). If the axes are
    unknown (in the gradient of a loop), a result with as many elements reduced nothing.
    """
    shape, axes = call.shape(0), call.value(1)
    if (
        shape
        and axes is None
        and math.prod(shape) == math.prod(call.out_shape() or (0,)) > 0
    ):
        return plan_alias()

    result = allocate(call, region="temp")
    if shape is None or axes is None:
        return MemoryPlan(outputs=(result,))

    groups = merge_axes(shape, axes)
    if math.prod(shape) > 0 and not any(is_reduced for _, is_reduced in groups):
        return plan_alias()

    copy_bytes = (call.input_size(0),) if len(groups) > _MAX_REDUCED_GROUPS else ()
    return MemoryPlan(outputs=(result,), after_bytes=copy_bytes)


def _is_aligned(size_bytes: int) -> bool:
    return size_bytes % ALIGNMENT_BYTES == 0


def plan_einsum(call: Call) -> MemoryPlan:
    """Copy operands that must be transposed, and multiply; the last tensor becomes the output.

    The product reads an operand whose labels are batch, kept and contracted ones, in this order or with
    the last two swapped (``EinsumOp::Compute`` in ``core/kernels/linalg/einsum_op_impl.h``). A result
    in another order is transposed too.
    """
    operands, _, result = str(call.attr("equation", "")).partition("->")
    names = operands.split(",")
    output = allocate(call, region="temp")

    if len(names) != 2 or "." in operands:
        return MemoryPlan(outputs=(output,))

    shared = set(names[0]) & set(names[1])
    batch = [label for label in names[0] if label in shared and label in result]
    copies, kept = [], []

    for number, name in enumerate(names):
        own = [label for label in name if label not in shared]
        summed = [label for label in names[0] if label in shared - set(batch)]
        orders = ([*batch, *own, *summed], [*batch, *summed, *own])

        if list(name) not in orders:
            copies.append(call.input_size(number))

        kept += own

    if list(result) != [*batch, *kept]:
        copies.append(call.size())
    return MemoryPlan(outputs=(output,), before_bytes=tuple(copies))
