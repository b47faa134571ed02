"""Convolutions, products and poolings on a CPU: oneDNN's kernels and TensorFlow's own.

oneDNN (``_Mkl*``) handles float32 and, if the processor supports it, bfloat16; TensorFlow's own kernels
all else. A primitive of oneDNN needs a *scratchpad*, which the kernel allocates as a temporary. The
sizes here are of the AVX-512 ``brgemm`` primitives (``src/cpu/x64/brgemm_*`` of oneDNN 3): pointers to
the blocks of a batch, and one page per thread. With AVX2, products in traces have no
scratchpad (57 products of an encoder), and convolutions the same.
"""

import math

from analyzer.simulate.kernels.cpu.onednn_products import Product, find_scratch_bytes
from analyzer.simulate.kernels.shared import data_movement as layout
from analyzer.simulate.kernels.shared.op_call import (
    FLOAT_BYTES,
    Call,
    MemoryPlan,
    allocate,
    forward,
    plan_allocation,
)

_PAGE_BYTES = 4096  # bytes of a page; each thread gets one, and a convolution one more
_BLOCK_BYTES = 40  # bytes of the description of a block (``brgemm_batch_element_t``)
_LANES = 16  # float32 numbers of an AVX-512 vector
_SMALL_BYTES = 8192  # images and results below this size need one thread for each 16 channels
_HEADER_BYTES = 128  # constant part of a scratchpad
_USUAL_L2_BYTES = 1 << 20  # level-2 cache of a core if it is unknown


def plan_convolution(call: Call) -> MemoryPlan:
    """Allocate the output and a scratchpad; forward the addend of a fused ``Add``.

    The filter is not copied: ``_MklNative*`` convolutions use TensorFlow's layout.
    ``MklFusedConvOp`` forwards the addend. ``adjust_nthr`` uses one thread for small tensors.
    """
    is_sum = "Add" in (call.attr("fused_ops") or [])
    output = forward(call, (len(call.inputs) - 1,)) if is_sum else allocate(call)
    kernel = call.shape(1) or (0, 0)
    is_small = max(call.input_size(0), call.size()) < _SMALL_BYTES and kernel[-1] <= _LANES
    threads = 1 if is_small else call.threads
    blocks_bytes = _round_up(math.prod(kernel[:-2]) * _BLOCK_BYTES, _PAGE_BYTES)
    scratch_bytes = threads * _round_up(blocks_bytes, _BLOCK_BYTES) + _PAGE_BYTES
    return MemoryPlan((output,), after_bytes=(scratch_bytes + _find_windows_bytes(call, threads),))


def _find_windows_bytes(call: Call, threads: int) -> int:
    """Return the bytes for the windows of images with one channel, which oneDNN copies with AVX-512.

    ``relo_whi`` in ``jit_brgemm_conv_utils.cpp`` of oneDNN 3.7: for each thread the windows of a row
    of results and a mask, the padded filter, and a page to align each. Measured: not for one image.
    """
    kernel, images, result = call.shape(1) or (), call.shape(0) or (), call.out_shape() or ()
    strides, dilations = call.attr("strides") or (1,) * 4, call.attr("dilations") or (1,)
    if not (len(kernel) == len(images) == len(result) == 4 and call.processor.has_avx512):
        return 0
    is_plain = {*dilations} == {1} and call.item_bytes() == FLOAT_BYTES and kernel[2] == images[3]
    if not is_plain or kernel[2] != 1 or min(kernel[0], images[0]) < 2 or result[2] <= 4:
        return 0
    read, columns = ((result[axis] - 1) * strides[axis] + kernel[axis - 1] for axis in (1, 2))
    height = kernel[0] + max(read - images[1], 0)
    numbers = kernel[0] * strides[2] * (kernel[0] * height * columns + read - kernel[0] + 1)
    filter_numbers = math.prod(kernel[:3]) * _round_up(kernel[3], _LANES)
    thread_bytes = FLOAT_BYTES * _round_up(numbers, _PAGE_BYTES) + _PAGE_BYTES
    return threads * thread_bytes + FLOAT_BYTES * _round_up(filter_numbers, 1024) + 3 * _PAGE_BYTES


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def plan_matmul(call: Call) -> MemoryPlan:
    """Allocate the product; 16-bit operands use ``brgemm``, like a batch.

    Other types need no copies. A product of up to 1.01 times the level-2 cache of a core runs on one
    thread (``ExecuteSingleThreadedGemm`` in ``mkl_matmul_ops_common.h``).
    """
    left, right, out = call.shape(0), call.shape(1), call.out_shape()
    item_bytes = call.item_bytes()
    if item_bytes != 2 or not (left and right and out) or not len(left) == len(out) == 2:
        return plan_allocation(call)
    if call.attr("fused_ops"):  # sums in float32 (``gemm_bf16_inner_product_fwd_t``)
        return plan_allocation(call, after_bytes=(FLOAT_BYTES * math.prod(out) + _HEADER_BYTES,))
    elements = math.prod(left) + math.prod(right) + math.prod(out)
    is_small = item_bytes * elements < 1.01 * (call.processor.l2_bytes or _USUAL_L2_BYTES)
    transposes = bool(call.attr("transpose_a")), bool(call.attr("transpose_b"))
    product = Product(left, right, transposes, 1 if is_small else call.threads, item_bytes)
    return plan_allocation(call, after_bytes=(find_scratch_bytes(product),))


def plan_batch_matmul(call: Call) -> MemoryPlan:
    """Allocate the product and the primitive's copies of the operands."""
    left, right = call.shape(0), call.shape(1)
    if not (left and right) or min(len(left), len(right)) < 2 or not call.processor.has_avx512:
        return plan_allocation(call)
    transposes = bool(call.attr("adj_x")), bool(call.attr("adj_y"))
    product = Product(left, right, transposes, call.threads, call.item_bytes())
    return plan_allocation(call, after_bytes=(find_scratch_bytes(product),))


def plan_einsum(call: Call) -> MemoryPlan:
    """Plan an ``Einsum`` whose product needs the scratchpad of a batched product."""

    def find(left: layout.Shape, right: layout.Shape, transposes: tuple[bool, bool]) -> int:
        product = Product(left, right, transposes, call.threads, call.item_bytes())
        return find_scratch_bytes(product)

    return layout.plan_einsum(call, find if call.processor.has_avx512 else None)


_L3_CACHE_BYTES = 30 << 20
"""Cache size that the kernels of two axes assume for any processor (``l3_cache_size``)."""
_L2_CACHE_BYTES = 256 << 10  # level-2 cache of a core that they assume (``l2_cache_size``)
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
    enough = not is_deep and work // max(call.threads, 1) >= _L2_CACHE_BYTES // item_bytes
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
    return plan_allocation(call, before_bytes=(math.prod(call.shape(1) or (0,)) * _INDEX_BYTES,))
