"""About how long each op runs: good enough to say which ops run at the same time.

Only ratios count, and those within a factor of a few: a draw stretches them by chance. What a kernel
costs whatever its size, how fast it goes through its tensors and how fast it multiplies is measured
(``measured_rates``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.cpu.cpu_kernels import BINARY, UNARY
from analyzer.simulate.kernels.shared.memory_plan import (
    ListUse,
    MemoryPlan,
    Output,
    VariableAccess,
    Way,
)
from analyzer.simulate.predict.executor.measured_rates import measured
from analyzer.simulate.predict.graph.edges import Wiring

CHEAP_SECONDS: Final = measured("cheap_s")
HANDLE_SECONDS: Final = measured("handle_s")
CALL_SECONDS: Final = measured("call_s")
PRIMITIVE_SECONDS: Final = measured("primitive_s")
CREATION_SECONDS: Final = measured("creation_s")
SMALL_CREATION_SECONDS: Final = measured("small_creation_s")
ELEMENT_WISE: Final = measured("element_wise_bytes_per_s")
SLOW_ELEMENT_WISE: Final = measured("slow_element_wise_bytes_per_s")
OTHER: Final = measured("other_bytes_per_s")
RANDOM: Final = measured("random_bytes_per_s")
OPERATIONS: Final = measured("product_flops_per_s")
INPUT_OPERATIONS: Final = measured("input_gradient_flops_per_s")
FILTER_OPERATIONS: Final = measured("filter_gradient_flops_per_s")
SLOW_OPERATIONS: Final = measured("slow_flops_per_s")
BATCH_OPERATIONS: Final = measured("batch_flops_per_s")

VECTOR_LANES: Final = 16
"""Channels that oneDNN computes at a time (``simd_w`` of AVX-512): 3 cost as much as 16."""

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


def durations_of(wiring: Wiring, plans: Sequence[MemoryPlan]) -> tuple[float, ...]:
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


def _seconds(wiring: Wiring, node: int, plan: MemoryPlan) -> float:
    if not wiring.expensive[node]:
        return CHEAP_SECONDS
    if plan.variable is VariableAccess.READ or plan.lists not in _WHOLE_LISTS:
        return HANDLE_SECONDS
    op = wiring.ops[node]
    seconds = CALL_SECONDS + (PRIMITIVE_SECONDS if op.type.startswith("_Mkl") else 0.0)
    if plan.variable is VariableAccess.ASSIGN or not any(
        map(_is_written, plan.outputs or (_NOTHING,))
    ):
        return seconds
    reading = touched_bytes(wiring, node) / reading_rate(op.type)
    computing = operations_of(wiring, node) / operations_rate(op.type)
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


def reading_rate(kind: str) -> float:
    """Return the bytes per second that a kind of op reads and writes."""
    if kind in _SLOW:
        return SLOW_ELEMENT_WISE
    return ELEMENT_WISE if kind in _ELEMENT_WISE else OTHER


def operations_rate(kind: str) -> float:
    """Return the floating-point operations per second of a kind of op that multiplies."""
    if "Batch" in kind:
        return BATCH_OPERATIONS
    if "Depthwise" in kind or kind in _EIGEN:
        return SLOW_OPERATIONS
    if _BACKWARD_FILTER in kind:
        return FILTER_OPERATIONS
    return INPUT_OPERATIONS if _BACKWARD_INPUT in kind else OPERATIONS


def touched_bytes(wiring: Wiring, node: int) -> int:
    """Return the bytes that a kernel reads and writes."""
    written = sum(spec.size_bytes or 0 for spec in wiring.ops[node].outputs)
    return written + sum(_input_bytes(wiring, *given) for given in wiring.inputs[node])


def _input_bytes(wiring: Wiring, node: int, output: int) -> int:
    outputs = wiring.ops[node].outputs
    return (outputs[output].size_bytes or 0) if output < len(outputs) else 0


def operations_of(wiring: Wiring, node: int) -> float:
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
