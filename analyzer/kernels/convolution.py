"""TensorFlow's own convolutions, products and poolings on the CPU, where oneDNN does not step in.

oneDNN takes float32 and, on processors that have it, bfloat16; float16 and float64 fall to these.
"""

from __future__ import annotations

import math

from analyzer.kernels.call import Call, allocate, allocate_all
from analyzer.kernels.plan import Plan

_L3_CACHE_BYTES = 30 << 20
_L2_CACHE_BYTES = 256 << 10
_INDEX_BYTES = 8
_FLOAT_BYTES = 4


def plan_filter_gradient(call: Call) -> Plan:
    """Unroll as many images as fit the cache that the kernel assumes (30 MiB) into columns.

    ``Conv2DCustomBackpropFilterOp`` in ``conv_grad_filter_ops.cc``.
    """
    return _plan_columns(call, call.out_shape(), call.shape(2), may_parallelise=False)


def plan_input_gradient(call: Call) -> Plan:
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
) -> Plan:
    if filter_shape is None or gradient is None or len(gradient) != 4:
        return Plan(outputs=allocate_all(call))
    item_bytes = _item_bytes(call)
    image = gradient[1] * gradient[2]
    filter_size = math.prod(filter_shape[:3])
    depth = filter_shape[3]
    work = image * depth + filter_size * depth + image * filter_size
    if not work:
        return Plan(outputs=allocate_all(call))
    images = -(-(_L3_CACHE_BYTES // item_bytes) // work)
    enough = work // max(call.threads, 1) >= _L2_CACHE_BYTES // item_bytes
    if may_parallelise and (gradient[0] == 1 or enough):
        images = 1
    columns_bytes = images * image * filter_size * item_bytes
    return Plan(outputs=allocate_all(call), after_bytes=(columns_bytes,))


def plan_matmul(call: Call) -> Plan:
    """Multiply 16-bit operands as float32 copies (``matmul_op_impl.h`` of the wheel, line 985)."""
    if call.op.outputs[0].dtype not in ("float16", "bfloat16"):
        return Plan(outputs=allocate_all(call))
    sizes = [call.input_size(0), call.input_size(1), call.size()]
    return Plan(
        outputs=(allocate(call),),
        after_bytes=tuple(size * _FLOAT_BYTES // _item_bytes(call) for size in sizes),
    )


def plan_max_pool_gradient(call: Call) -> Plan:
    """Find each window's maximum again: an int64 index an output element (``MaxPoolingGradOp``).

    The kernel also asks for the pooled values' buffer, of which it is the last reader.
    """
    elements = math.prod(call.shape(1) or (0,))
    return Plan(outputs=allocate_all(call), before_bytes=(elements * _INDEX_BYTES,))


def _item_bytes(call: Call) -> int:
    elements = math.prod(call.out_shape() or (0,))
    return call.size() // elements if elements else _FLOAT_BYTES
