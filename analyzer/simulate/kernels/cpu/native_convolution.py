"""TensorFlow's own convolutions, products and poolings on the CPU, where oneDNN does not step in.

oneDNN takes float32 and, on processors that have it, bfloat16; float16 and float64 fall to these.
"""

from __future__ import annotations

import math

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan
from analyzer.simulate.kernels.shared.op_call import FLOAT_BYTES, Call, allocate, allocate_all

_L3_CACHE_BYTES = 30 << 20
"""Cache that the gradients' kernels assume of any processor (``l3_cache_size``)."""
_L2_CACHE_BYTES = 256 << 10
"""The second cache of a core that they assume (``l2_cache_size``)."""
_INDEX_BYTES = 8
"""Bytes of an index of type int64."""

"""Bytes of a float32."""


def plan_filter_gradient(call: Call) -> MemoryPlan:
    """Unroll as many images as fit the cache that the kernel assumes (30 MiB) into columns.

    ``Conv2DCustomBackpropFilterOp`` in ``conv_grad_filter_ops.cc``.
    """
    return _plan_columns(call, call.out_shape(), call.shape(2), may_parallelise=False)


def plan_input_gradient(call: Call) -> MemoryPlan:
    """As the filter's gradient, but one image where the work suffices for all threads.

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
        return MemoryPlan(outputs=allocate_all(call))
    item_bytes = call.item_bytes()
    image = gradient[1] * gradient[2]
    filter_size = math.prod(filter_shape[:3])
    depth = filter_shape[3]
    work = image * depth + filter_size * depth + image * filter_size
    if not work:
        return MemoryPlan(outputs=allocate_all(call))
    images = -(-(_L3_CACHE_BYTES // item_bytes) // work)
    enough = work // max(call.threads, 1) >= _L2_CACHE_BYTES // item_bytes
    if may_parallelise and (gradient[0] == 1 or enough):
        images = 1
    columns_bytes = images * image * filter_size * item_bytes
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(columns_bytes,))


def plan_matmul(call: Call) -> MemoryPlan:
    """Multiply 16-bit operands as float32 copies (``matmul_op_impl.h`` of the wheel, line 985)."""
    if call.op.outputs[0].dtype not in ("float16", "bfloat16"):
        return MemoryPlan(outputs=allocate_all(call))
    sizes = [call.input_size(0), call.input_size(1), call.size()]
    return MemoryPlan(
        outputs=(allocate(call),),
        after_bytes=tuple(size * FLOAT_BYTES // call.item_bytes() for size in sizes),
    )


def plan_max_pool_gradient(call: Call) -> MemoryPlan:
    """Find each window's maximum again: an int64 index an output element (``MaxPoolingGradOp``).

    The kernel also asks for the pooled values' buffer, of which it is the last reader.
    """
    elements = math.prod(call.shape(1) or (0,))
    return MemoryPlan(outputs=allocate_all(call), before_bytes=(elements * _INDEX_BYTES,))
