"""Convolutions, products and poolings on a CPU: TensorFlow's own kernels and oneDNN's (``_Mkl*``).

A primitive of oneDNN needs a *scratchpad*: pointers to the blocks of a batch and a page for each thread.
These few kilobytes are not counted (benchmarks/results/ablation.md).
"""

import math

from analyzer.simulate.kernels.shared.op_call import (
    FLOAT_BYTES,
    Call,
    MemoryPlan,
    allocate,
    forward,
    plan_allocation,
)


def plan_convolution(call: Call) -> MemoryPlan:
    """Allocate the output; forward the addend of a fused ``Add`` (``MklFusedConvOp``)."""
    is_sum = "Add" in (call.attr("fused_ops") or [])
    return MemoryPlan(
        (forward(call, (len(call.inputs) - 1,)) if is_sum else allocate(call),)
    )


_L3_CACHE_BYTES = 30 << 20
"""Cache size that the kernels of two axes assume for any processor (``l3_cache_size``)."""
_L2_CACHE_BYTES = (
    256 << 10
)  # level-2 cache of a core that they assume (``l2_cache_size``)
_MOST_OVERHEAD = 25
"""Largest buffer of the kernels of three axes as a multiple of their tensors; for more they use Eigen
without a buffer (``kMaxTempAllocationOverhead``)."""
_INDEX_BYTES = 8  # bytes of an index of type int64

_Shape = tuple[int, ...] | None


def plan_filter_gradient(call: Call) -> MemoryPlan:
    """Unroll as many images into columns as fit the level-3 cache.

    Two axes: ``Conv2DCustomBackpropFilterOp`` in ``conv_grad_filter_ops.cc``. Three axes:
    ``Conv3DCustomBackpropFilterOp`` in ``conv_grad_ops_3d.cc``; float16 uses Eigen without a buffer.
    """
    if call.op.type == "Conv3DBackpropFilterV2" and call.item_bytes() < FLOAT_BYTES:
        return plan_allocation(call)
    return _plan_columns(call, call.shape(0), call.out_shape(), may_parallelise=False)


def plan_input_gradient(call: Call) -> MemoryPlan:
    """Unroll like the gradient of the filter, but one image if that is enough work for all threads.

    ``Conv2DCustomBackpropInputOp`` in ``conv_grad_input_ops.h`` of the wheel, lines 525 to 600;
    ``Conv3DCustomBackpropInputOp``, for which only a batch of one image is enough.
    """
    return _plan_columns(call, call.out_shape(), call.shape(1), may_parallelise=True)


def _plan_columns(
    call: Call, images_shape: _Shape, kernel: _Shape, *, may_parallelise: bool
) -> MemoryPlan:
    gradient = call.shape(2)
    if not (kernel and gradient and images_shape) or len(gradient) != len(kernel):
        return plan_allocation(call)
    item_bytes, is_deep = call.item_bytes(), len(kernel) == 5
    image, window = math.prod(gradient[1:-1]), math.prod(kernel[:-1])
    work = (image + window) * kernel[-1] + image * window
    if not work:
        return plan_allocation(call)
    cache_bytes = call.processor.l3_bytes if is_deep else _L3_CACHE_BYTES
    images = -(-(cache_bytes // item_bytes) // work)
    enough = (
        not is_deep and work // max(call.threads, 1) >= _L2_CACHE_BYTES // item_bytes
    )
    if may_parallelise and (gradient[0] == 1 or enough):
        images = 1
    columns = images * image * window
    tensors = sum(math.prod(shape) for shape in (images_shape, kernel, gradient))
    if is_deep and columns // tensors > _MOST_OVERHEAD:
        columns = 0
    return plan_allocation(call, after_bytes=(columns * item_bytes,))


def plan_native_matmul(call: Call) -> MemoryPlan:
    """Multiply float32 copies of 16-bit operands, else copies in the type of the output.

    ``matmul_op_impl.h`` of the wheel, lines 985 and 1012. A copy of the same type is none.
    """
    types = (call.dtype(0), call.dtype(1))
    is_half = types in (("float16", "float16"), ("bfloat16", "bfloat16"))
    item_bytes = FLOAT_BYTES if is_half else call.item_bytes()
    same = "" if is_half else call.op.outputs[0].dtype
    shapes = [call.shape(k) for k, dtype in enumerate(types) if dtype not in ("", same)]
    shapes += [call.out_shape()] if is_half else []
    copies = [math.prod(shape or (0,)) * item_bytes for shape in shapes]
    return plan_allocation(call, after_bytes=copies)


def plan_max_pool_gradient(call: Call) -> MemoryPlan:
    """Find the maximum of each window again: an int64 index per output (``MaxPoolingGradOp``)."""
    return plan_allocation(
        call, before_bytes=(math.prod(call.shape(1) or (0,)) * _INDEX_BYTES,)
    )
