"""``Einsum``: operands in the order of a product, the product, and its order in the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, alias, allocate

Scratch = Callable[[tuple[int, ...], tuple[bool, bool]], int]

_BROADCAST, _BATCH, _FREE, _CONTRACTED, _SUMMED = range(5)  # kinds of labels, in their order
_SWAPPED = (0, 1, 3, 2, 4)  # places of the kinds in an operand that the product reads transposed


@dataclass(frozen=True)
class _Operand:
    """An operand after its preparation."""

    copies: tuple[int, ...]  # elements of each temporary, in the order of their allocation
    sizes: tuple[int, ...]  # elements of each kind of label
    free: tuple[str, ...]  # its free labels in order
    is_swapped: bool  # whether the contracted labels lie before the free ones


def plan_einsum(call: Call, find_scratch: Scratch | None = None) -> MemoryPlan:
    """Transpose and reduce operands if needed, multiply, transpose the product if needed.

    All these tensors are temporaries until the kernel returns; the last one becomes the output
    (``EinsumOp::Compute`` in ``core/kernels/linalg/einsum_op_impl.h``). ``find_scratch`` returns the
    bytes of a product's scratch from the left operand's shape in memory and the operands that
    the product reads transposed.
    """
    shapes = [
        shape for index in range(len(call.inputs)) if (shape := call.shape(index)) is not None
    ]
    operands, _, result = str(call.attr("equation", "")).partition("->")
    names = operands.split(",")
    output = allocate(call, region="temp")
    if len(names) != len(shapes) or len(shapes) not in (1, 2):
        return MemoryPlan(outputs=(output,))
    inputs = [_expand(name, len(shape)) for name, shape in zip(names, shapes, strict=True)]
    out = _expand(result, len(call.out_shape() or ()))
    if any(len(labels) != len(shape) for labels, shape in zip(inputs, shapes, strict=True)):
        return MemoryPlan(outputs=(output,))
    letters = list(dict.fromkeys(letter for letter in operands if letter.isalpha()))
    keys = {
        label: (_BROADCAST, int(label)) for labels in inputs for label in labels if label.isdigit()
    }
    for number, letter in enumerate(letters):
        is_shared = len(inputs) == 2 and all(letter in labels for labels in inputs)
        kept, dropped = (_BATCH, _CONTRACTED) if is_shared else (_FREE, _SUMMED)
        keys[letter] = (kept if letter in out else dropped, number)
    prepared = [_prepare(labels, shape, keys) for labels, shape in zip(inputs, shapes, strict=True)]
    item_bytes = call.item_bytes()
    copies = tuple(item_bytes * elements for operand in prepared for elements in operand.copies)
    shared = sorted((label for label in keys if keys[label][0] <= _BATCH), key=keys.__getitem__)
    order = [*shared, *(label for operand in prepared for label in operand.free)]
    is_copied = len(out) > 1 and order != out
    if len(prepared) == 1:
        if not (is_copied or copies):
            return MemoryPlan(outputs=(alias(),))
        return MemoryPlan(outputs=(output,), before_bytes=copies if is_copied else copies[:-1])
    left, right = prepared
    rows_depth = (left.sizes[_FREE], left.sizes[_CONTRACTED])
    shape = (
        left.sizes[_BROADCAST] * left.sizes[_BATCH],
        *rows_depth[:: -1 if left.is_swapped else 1],
    )
    scratch = (
        (find_scratch(shape, (left.is_swapped, not right.is_swapped)),) if find_scratch else ()
    )
    if not is_copied:
        return MemoryPlan(outputs=(output,), before_bytes=copies, after_bytes=scratch)
    return MemoryPlan(outputs=(output,), before_bytes=(*copies, call.size()), scratch_bytes=scratch)


def _expand(name: str, rank: int) -> list[str]:
    """Return a label for each axis; the axes of an ellipsis get numbers."""
    head, dots, tail = name.partition("...")
    return [*head, *(str(number) for number in range(rank - len(head + tail)) if dots), *tail]


def _prepare(
    labels: Sequence[str], shape: tuple[int, ...], keys: dict[str, tuple[int, int]]
) -> _Operand:
    order = sorted(labels, key=keys.__getitem__)
    swapped = sorted(labels, key=lambda label: (_SWAPPED[keys[label][0]], keys[label][1]))
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
    free = tuple(label for label in dict.fromkeys(order) if keys[label][0] == _FREE)
    return _Operand(tuple(copies), tuple(sizes), free, is_swapped)
