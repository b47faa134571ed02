"""TensorFlow's own convolutions, products and poolings on a CPU, for types without oneDNN.

oneDNN handles float32 and, if the processor supports it, bfloat16. These handle float16 and float64.
"""

from __future__ import annotations

import math

from analyzer.simulate.kernels.shared.op_call import FLOAT_BYTES, Call, MemoryPlan, plan_allocation

_L3_CACHE_BYTES = 30 << 20
"""Cache size that the kernels of the gradients assume for any processor (``l3_cache_size``)."""
_L2_CACHE_BYTES = 256 << 10
"""Level-2 cache of a core that they assume (``l2_cache_size``)."""
_INDEX_BYTES = 8
"""Bytes of an index of type int64."""


def plan_filter_gradient(call: Call) -> MemoryPlan:
    """Unroll as many images into columns as fit the cache that the kernel assumes (30 MiB).

    ``Conv2DCustomBackpropFilterOp`` in ``conv_grad_filter_ops.cc``.
    """
    return _plan_columns(call, call.out_shape(), call.shape(2), may_parallelise=False)


def plan_input_gradient(call: Call) -> MemoryPlan:
    """Unroll like the gradient of the filter, but one image if that is enough work for all threads.

    ``Conv2DCustomBackpropInputOp`` in ``conv_grad_input_ops.h`` of the wheel, lines 525 to 600.
    """
    return _plan_columns(call, call.shape(1), call.shape(2), may_parallelise=True)


def _plan_columns(
    call: Call,
    filter_shape: tuple[int, ...] | None,
    gradient: tuple[int, ...] | None,
    *,
    may_parallelise: bool,
) -> MemoryPlan:
    if filter_shape is None or gradient is None or len(gradient) != 4:
        return plan_allocation(call)
    item_bytes = call.item_bytes()
    image = gradient[1] * gradient[2]
    filter_size = math.prod(filter_shape[:3])
    depth = filter_shape[3]
    work = image * depth + filter_size * depth + image * filter_size
    if not work:
        return plan_allocation(call)
    images = -(-(_L3_CACHE_BYTES // item_bytes) // work)
    enough = work // max(call.threads, 1) >= _L2_CACHE_BYTES // item_bytes
    if may_parallelise and (gradient[0] == 1 or enough):
        images = 1
    columns_bytes = images * image * filter_size * item_bytes
    return plan_allocation(call, after_bytes=(columns_bytes,))


def plan_matmul(call: Call) -> MemoryPlan:
    """Multiply 16-bit operands as float32 copies (``matmul_op_impl.h`` of the wheel, line 985)."""
    if call.op.outputs[0].dtype not in ("float16", "bfloat16"):
        return plan_allocation(call)
    sizes = [call.input_size(0), call.input_size(1), call.size()]
    copies = [size * FLOAT_BYTES // call.item_bytes() for size in sizes]
    return plan_allocation(call, after_bytes=copies)


def plan_max_pool_gradient(call: Call) -> MemoryPlan:
    """Find the maximum of each window again: an int64 index per output (``MaxPoolingGradOp``)."""
    elements = math.prod(call.shape(1) or (0,))
    return plan_allocation(call, before_bytes=(elements * _INDEX_BYTES,))
