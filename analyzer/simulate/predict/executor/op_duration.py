"""Expected durations of ops: precise enough to tell which ops run at the same time.

Only ratios count, and these within a factor of a few: each schedule scales them by chance. On a CPU
a kernel takes a fixed time, plus the time to stream its tensors, plus the time to multiply. The three
rates are of two cores with AVX-512 and stand for any machine. Rates for each kind of kernel would not
predict peaks better (accuracy list).

A kernel on a card only launches its computation. The executor counts it as inexpensive
(``OpKernel::OpKernel`` in ``op_kernel.cc``) and one thread launches all of them. A copy between the
memories is asynchronous (``RecvOp`` is an ``AsyncOpKernel``): its kernel returns at once, and a callback
continues when the copy is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import op_types
from analyzer.model.graph.host_copies import COPY, COPY_BACK
from analyzer.simulate.kernels.shared.op_call import MemoryPlan, VariableAccess
from analyzer.simulate.predict.graph.edges import INEXPENSIVE, Wiring

INLINE_SECONDS: Final = 5e-7
"""An op that only passes a tensor on: 48,000 ops in traced steps of small networks, two cores."""

CALL_SECONDS: Final = 3e-6
"""A kernel of any size: the executor's 0.7 microseconds and the kernel's own overhead; the same
steps."""

BYTES_PER_SECOND: Final = 2e10
"""Bytes that a kernel reads and writes per second, from the same traced steps."""

FLOPS: Final = 1e11
"""Floating-point operations per second of a product or convolution, from the same traced steps."""

LAUNCH_SECONDS: Final = 6e-6
"""A kernel on a card: one launch and its requests. Traced steps: half between 3 and 16 microseconds."""

CONVOLUTION_LAUNCH_SECONDS: Final = 3e-5
"""A convolution on a card, which looks up cuDNN's plan. 300 of them: half between 15 and 50
microseconds."""

_COUNT_KERNELS: Final = op_types(
    """
    Where Unique UniqueV2 DynamicPartition SegmentSum SegmentProd SegmentMax SegmentMin SegmentMean
    """
)
"""Op types whose kernel waits for a count that is copied back from the card."""

_ASYNCHRONOUS: Final = frozenset((COPY, COPY_BACK, *_COUNT_KERNELS))
"""Op types whose kernel on a card is an ``AsyncOpKernel``: ``sendrecv_ops.h``, ``unique_op_gpu.cu.h``,
``segment_reduction_ops_impl.h``, ``where_op.cc``, ``dynamic_partition_op_gpu.cu.cc``."""


@dataclass(frozen=True, slots=True)
class OpTiming:
    """Durations of the ops of a step."""

    seconds: tuple[float, ...]  # expected seconds that each node keeps its thread
    # for each node, whether the executor waits for it after its kernel returned; empty on a CPU
    waits: tuple[bool, ...] = ()


def estimate_timing(wiring: Wiring, plans: Sequence[MemoryPlan], *, is_on_card: bool) -> OpTiming:
    """Return the expected durations of a step's ops."""
    if is_on_card:
        launches = [
            INLINE_SECONDS
            if op.type in INEXPENSIVE or plan.variable is VariableAccess.READ
            else CONVOLUTION_LAUNCH_SECONDS
            if "Conv" in op.type
            else LAUNCH_SECONDS
            for op, plan in zip(wiring.ops, plans, strict=True)
        ]
        return OpTiming(tuple(launches), tuple(op.type in _ASYNCHRONOUS for op in wiring.ops))
    durations = [INLINE_SECONDS] * len(wiring.ops)
    for node, op in enumerate(wiring.ops):
        if wiring.expensive[node]:
            specs = [*op.outputs, *wiring.specs(node)]
            touched_bytes = sum(spec.size_bytes or 0 for spec in specs if spec is not None)
            durations[node] = CALL_SECONDS + touched_bytes / BYTES_PER_SECOND
            durations[node] += count_operations(wiring, node) / FLOPS
    return OpTiming(tuple(durations))


def count_operations(wiring: Wiring, node: int) -> float:
    """Return the floating-point operations of a product or convolution; 0 for other ops."""
    op = wiring.ops[node]
    if not any(kind in op.type for kind in ("Conv", "MatMul", "Einsum")):
        return 0.0
    inputs = [_complete_shape(spec.shape if spec else None) for spec in wiring.specs(node)]
    result = _complete_shape(op.outputs[0].shape if op.outputs else None)
    first, second, third = [*inputs, None, None, None][:3]
    if "Conv" not in op.type:
        if not first or not second or not result:
            return 0.0
        # Each of a batch of m x k by k x n products takes 2 m k n: the root of the three sizes'
        # product.
        batch = math.prod(result[:-2]) if "MatMul" in op.type else 1
        sizes = math.prod(first) * math.prod(second) * math.prod(result)
        return 2.0 * math.sqrt(sizes / max(batch, 1))
    # Each element of the forward result takes two operations for each number in the filter of one
    # output channel. The gradients read the forward result's gradient as their third input.
    forward = third if "Backprop" in op.type else result
    filters = result if "BackpropFilter" in op.type else second
    if not forward or not filters:
        return 0.0
    # The last two axes of a depthwise filter are channels and results for each channel.
    per_element = math.prod(filters[:-2] if "Depthwise" in op.type else filters[:-1])
    return 2.0 * math.prod(forward) * per_element


def _complete_shape(shape: Sequence[int | None] | None) -> tuple[int, ...] | None:
    """Return a shape if all its sizes are known, else None."""
    if shape is None or any(size is None or size < 0 for size in shape):
        return None
    return tuple(int(size or 0) for size in shape)
