"""About how long each op runs: good enough to say which ops run at the same time.

Only ratios count, and those within a factor of a few: a draw stretches them by chance. The rates are
those of traced steps (48,000 runs of ops of small networks) on two cores with AVX-512, rounded: what a
kernel costs whatever its size, how fast it goes through its tensors, how fast it multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from analyzer.kernels.cpu import BINARY, UNARY
from analyzer.kernels.plan import ListUse, Output, Plan, Variable, Way, op_types
from analyzer.predict.wiring import Wiring

CHEAP_SECONDS: Final = 0.5e-6
"""What the executor needs for an op that only hands a tensor on."""

HANDLE_SECONDS: Final = 1.3e-6
"""The same for a kernel that counts as expensive and does next to nothing: it reads a variable's handle
or a TensorList."""

CALL_SECONDS: Final = 1.5e-6
"""The same for one whose kernel computes: some 0.7 for the executor, the rest for the kernel's frame."""

PRIMITIVE_SECONDS: Final = 8e-6
"""What oneDNN adds to that: it looks its primitive up, and allocates a scratchpad."""

CREATION_SECONDS: Final = 400e-6
"""What oneDNN adds to a convolution or pooling that runs for the first time: it makes machine code for
the shape. 300 to 500 microseconds in the median of each type."""

SMALL_CREATION_SECONDS: Final = 20e-6
"""The same for its other primitives."""

ELEMENT_WISE: Final = 40e9
"""Bytes per second, read and written, of a kernel that is element-wise or copies, in the cache."""

SLOW_ELEMENT_WISE: Final = 8e9
"""The same for those that compute more of each number (Erf) or do not use vectors (comparisons, Select).
"""

OTHER: Final = 20e9
"""The same for what sums, pools, transposes, tiles, gathers."""

VECTOR_LANES: Final = 16
"""Channels that oneDNN computes at a time (``simd_w`` of AVX-512): 3 cost as much as 16."""

RANDOM: Final = 1e9
"""Random bytes per second (Philox, ten rounds for four numbers)."""

OPERATIONS: Final = 170e9
"""Floating-point operations per second of a product or convolution by oneDNN, where they take longer
than reading its tensors."""

INPUT_OPERATIONS: Final = 110e9
"""The same for a convolution's gradient for its input, which copies into another layout."""

FILTER_OPERATIONS: Final = 95e9
"""The same for its gradient for the filter, which each thread sums up in a copy of its own. Beside the
one for the input it takes 1.2 times as long in the median of 113 layers."""

SLOW_OPERATIONS: Final = 20e9
"""The same for a depthwise convolution, which waits for memory, and for one by Eigen."""

BATCH_OPERATIONS: Final = 60e9
"""The same for a batch of small products."""

_SLOW: Final = op_types(
    """
    Erf Erfc Erfinv Lgamma Digamma _UnaryOpsComposition Select SelectV2 Equal NotEqual Greater
    GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot IsFinite IsInf IsNan
    """
)
_ELEMENT_WISE: Final = UNARY | BINARY | op_types("AddN Cast Slice StridedSlice GatherV2")
_WHOLE_LISTS: Final = (ListUse.NO, ListUse.STACK, ListUse.UNSTACK)
_EIGEN: Final = op_types("Conv2DBackpropFilter Conv2DBackpropInput")
_RIGHT_TRANSPOSED: Final = ("transpose_b", "adj_y")
_BACKWARD_INPUT: Final = "BackpropInput"
_BACKWARD_FILTER: Final = "BackpropFilter"

Shape = tuple[int, ...]


def durations_of(wiring: Wiring, plans: Sequence[Plan]) -> tuple[float, ...]:
    """Return the expected seconds of each node.

    Args:
        wiring: The graph.
        plans: What each node's kernel does.
    """
    return tuple(_seconds(wiring, node, plan) for node, plan in enumerate(plans))


def first_durations_of(wiring: Wiring, seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the expected seconds of each node in the first step, where kernels set themselves up.

    Args:
        wiring: The graph.
        seconds: The expected seconds in later steps.
    """
    return tuple(
        lasts + _creation_seconds(op.type) for lasts, op in zip(seconds, wiring.ops, strict=True)
    )


def _creation_seconds(kind: str) -> float:
    if not kind.startswith("_Mkl"):
        return 0.0
    return CREATION_SECONDS if "Conv" in kind or "Pool" in kind else SMALL_CREATION_SECONDS


def _seconds(wiring: Wiring, node: int, plan: Plan) -> float:
    if not wiring.expensive[node]:
        return CHEAP_SECONDS
    if plan.variable is Variable.READ or plan.lists not in _WHOLE_LISTS:
        return HANDLE_SECONDS
    op = wiring.ops[node]
    seconds = CALL_SECONDS + (PRIMITIVE_SECONDS if op.type.startswith("_Mkl") else 0.0)
    if plan.variable is Variable.ASSIGN or not any(map(_is_written, plan.outputs or (_NOTHING,))):
        return seconds
    reading = _touched_bytes(wiring, node) / _reading_rate(op.type)
    computing = _operations(wiring, node) / _operations_rate(op.type)
    if "Random" in op.type or op.type.startswith("Multinomial"):
        computing = sum(spec.size_bytes or 0 for spec in op.outputs) / RANDOM
    if any(op.attrs.get(name) for name in _RIGHT_TRANSPOSED):
        # oneDNN copies a transposed right operand before it multiplies.
        seconds += 2 * _input_bytes(wiring, *wiring.inputs[node][1]) / OTHER
    return seconds + max(reading, computing)


_NOTHING: Final = Output(Way.ALLOCATE)
"""Stands for the result of a kernel that has none, and changes a variable where it lies."""


def _is_written(output: Output) -> bool:
    return output.way in (Way.ALLOCATE, Way.FORWARD)


def _reading_rate(kind: str) -> float:
    if kind in _SLOW:
        return SLOW_ELEMENT_WISE
    return ELEMENT_WISE if kind in _ELEMENT_WISE else OTHER


def _operations_rate(kind: str) -> float:
    if "Batch" in kind:
        return BATCH_OPERATIONS
    if "Depthwise" in kind or kind in _EIGEN:
        return SLOW_OPERATIONS
    if _BACKWARD_FILTER in kind:
        return FILTER_OPERATIONS
    return INPUT_OPERATIONS if _BACKWARD_INPUT in kind else OPERATIONS


def _touched_bytes(wiring: Wiring, node: int) -> int:
    """Return the bytes that a kernel reads and writes."""
    written = sum(spec.size_bytes or 0 for spec in wiring.ops[node].outputs)
    return written + sum(_input_bytes(wiring, *given) for given in wiring.inputs[node])


def _input_bytes(wiring: Wiring, node: int, output: int) -> int:
    outputs = wiring.ops[node].outputs
    return (outputs[output].size_bytes or 0) if output < len(outputs) else 0


def _operations(wiring: Wiring, node: int) -> float:
    """Return the floating-point operations of a product or convolution; 0 for other ops."""
    op = wiring.ops[node]
    is_convolution = "Conv" in op.type
    if not is_convolution and "MatMul" not in op.type and "Einsum" not in op.type:
        return 0.0
    shapes = [_shape(wiring, source, output) for source, output in wiring.inputs[node]]
    result = op.outputs[0].shape if op.outputs else None
    if is_convolution:
        return _convolved(op.type, shapes, _known(result))
    if len(shapes) < 2 or not all(shapes[:2]) or not _known(result):
        return 0.0
    left, right, out = (math.prod(shape or ()) for shape in (*shapes[:2], _known(result)))
    # Each of a batch of m x k by k x n products takes 2 m k n: the root of the three sizes' product.
    batch = math.prod((_known(result) or ())[:-2]) if "MatMul" in op.type else 1
    return 2.0 * math.sqrt(left * right * out / max(batch, 1))


def _convolved(kind: str, shapes: list[Shape | None], result: Shape | None) -> float:
    """Return the operations of a convolution or of one of its gradients.

    Each element of the (forward) result takes as many products as the filter has numbers for one
    output channel.
    """
    if _BACKWARD_FILTER in kind:
        wanted, filters = (shapes[2:3] or [None])[0], result
    elif _BACKWARD_INPUT in kind:
        wanted, filters = (shapes[2:3] or [None])[0], (shapes[1:2] or [None])[0]
    else:
        wanted, filters = result, (shapes[1:2] or [None])[0]
    if not wanted or not filters:
        return 0.0
    if "Depthwise" in kind:  # its filter has a number of outputs for each channel
        return (
            2.0 * math.prod(wanted) * math.prod(filters[:-2]) * _filled(filters[-2] * filters[-1])
        )
    written = filters[-2] if _BACKWARD_INPUT in kind else filters[-1]
    return 2.0 * math.prod(wanted) * math.prod(filters[:-1]) * _filled(written)


def _filled(channels: int) -> float:
    """Return how many lanes are worked for each channel: vectors run along the channels written."""
    return -(-channels // VECTOR_LANES) * VECTOR_LANES / max(channels, 1)


def _shape(wiring: Wiring, node: int, output: int) -> Shape | None:
    outputs = wiring.ops[node].outputs
    return _known(outputs[output].shape) if output < len(outputs) else None


def _known(shape: Sequence[int | None] | None) -> Shape | None:
    """Return a shape whose sizes are all known; None for any other."""
    if shape is None or any(size is None or size < 0 for size in shape):
        return None
    return tuple(int(size or 0) for size in shape)
