"""Kernels that move, view or contract elements: slices, transposes, reductions, Einsum."""

import math
from collections.abc import Iterable, Sequence
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


_BROADCAST, _BATCH, _FREE, _CONTRACTED, _SUMMED = range(
    5
)  # kinds of labels, in their order
_SWAPPED = (
    0,
    1,
    3,
    2,
    4,
)  # places of the kinds in an operand that the product reads transposed


def plan_einsum(call: Call) -> MemoryPlan:
    """Transpose and reduce operands if needed, multiply, transpose the product if needed.

    All these tensors are temporaries until the kernel returns; the last one becomes the output
    (``EinsumOp::Compute`` in ``core/kernels/linalg/einsum_op_impl.h``).
    """
    known = map(call.shape, range(len(call.inputs)))
    shapes = [shape for shape in known if shape is not None]
    operands, _, result = str(call.attr("equation", "")).partition("->")
    names = operands.split(",")
    output = allocate(call, region="temp")
    if len(names) != len(shapes) or len(shapes) not in (1, 2):
        return MemoryPlan(outputs=(output,))
    inputs = [
        _expand(name, len(shape)) for name, shape in zip(names, shapes, strict=True)
    ]
    out = _expand(result, len(call.out_shape() or ()))
    if any(
        len(labels) != len(shape) for labels, shape in zip(inputs, shapes, strict=True)
    ):
        return MemoryPlan(outputs=(output,))
    letters = list(dict.fromkeys(letter for letter in operands if letter.isalpha()))
    keys = {
        label: (_BROADCAST, int(label))
        for labels in inputs
        for label in labels
        if label.isdigit()
    }
    for number, letter in enumerate(letters):
        is_shared = len(inputs) == 2 and all(letter in labels for labels in inputs)
        kept, dropped = (_BATCH, _CONTRACTED) if is_shared else (_FREE, _SUMMED)
        keys[letter] = (kept if letter in out else dropped, number)
    prepared = [
        _prepare(labels, shape, keys)
        for labels, shape in zip(inputs, shapes, strict=True)
    ]
    item_bytes = call.item_bytes()
    copies = tuple(
        item_bytes * elements for counts, _ in prepared for elements in counts
    )
    shared = sorted(
        (label for label in keys if keys[label][0] <= _BATCH), key=keys.__getitem__
    )
    order = [*shared, *(label for _, free in prepared for label in free)]
    is_copied = len(out) > 1 and order != out
    if len(prepared) == 1:
        if not (is_copied or copies):
            return MemoryPlan(outputs=(alias(),))
        return MemoryPlan(
            outputs=(output,), before_bytes=copies if is_copied else copies[:-1]
        )
    if not is_copied:
        return MemoryPlan(outputs=(output,), before_bytes=copies)
    return MemoryPlan(outputs=(output,), before_bytes=(*copies, call.size()))


def _expand(name: str, rank: int) -> list[str]:
    """Return a label for each axis; the axes of an ellipsis get numbers."""
    head, dots, tail = name.partition("...")
    return [
        *head,
        *(str(number) for number in range(rank - len(head + tail)) if dots),
        *tail,
    ]


def _prepare(
    labels: Sequence[str], shape: tuple[int, ...], keys: dict[str, tuple[int, int]]
) -> tuple[list[int], list[str]]:
    """Return the elements of each copy of an operand, and its free labels in order."""
    order = sorted(labels, key=keys.__getitem__)
    swapped = sorted(
        labels, key=lambda label: (_SWAPPED[keys[label][0]], keys[label][1])
    )
    is_swapped = list(labels) == swapped
    lengths = dict(zip(labels, shape, strict=True))
    sizes = [1] * 5
    for label, length in lengths.items():
        sizes[keys[label][0]] *= length
    copies = [] if is_swapped or list(labels) == order else [math.prod(shape)]
    if len(lengths) < len(labels):  # a diagonal
        copies.append(math.prod(lengths.values()))
    if sizes[_SUMMED] != 1:
        copies.append(math.prod(sizes[:_SUMMED]))
    free = [label for label in dict.fromkeys(order) if keys[label][0] == _FREE]
    return copies, free
