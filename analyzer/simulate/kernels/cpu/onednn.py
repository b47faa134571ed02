"""oneDNN kernels (``_Mkl*``), which TensorFlow's CPU builds put in place of its own.

Each primitive asks for a *scratchpad*, which the kernel allocates as a ``temp`` for the time of the
call. Its size is oneDNN's choice: it follows the blocking that the primitive picked for the
processor and the number of intra-op threads. The sizes here are those of the AVX-512 ``brgemm``
primitives (``src/cpu/x64/brgemm_*`` and ``matmul/brgemm_matmul_utils.cpp`` of oneDNN 3): pointers
to the blocks of a batch, one page for each thread, and for a matrix that has to be copied into
another order one copy for each thread.
"""

from __future__ import annotations

import math

from analyzer.simulate.kernels.cpu.brgemm_blocking import Product, blocking_of
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Output
from analyzer.simulate.kernels.shared.op_call import Call, allocate, allocate_all, forward

_PAGE_BYTES = 4096
"""Bytes of a page: each thread gets one, and a convolution one more."""
_HEADER_BYTES = 128
"""Bytes of a batched product's scratchpad that depend on nothing."""
_WINDOW_BLOCK = 4096
"""Numbers by which the copy of a convolution's windows grows."""
_BATCH_BYTES = 640
"""Bytes of a thread's list of blocks to be multiplied, in a batched product."""
_COLUMN_BLOCK = 64
"""Columns of a transposed right operand that a thread copies at a time."""
_ROWS_BLOCK = 256
"""Rows of a transposed left operand that a thread copies at a time."""
_DEPTH_BLOCK_BYTES = 64
"""Bytes that the depth of a copied operand is padded to: one vector of AVX-512."""
_L2_CACHE_BYTES = 1.01 * (1 << 20)
"""Bytes up to which TensorFlow multiplies on one thread (``ExecuteSingleThreadedGemm``): the second
cache of a core, taken for 1 MiB, and one in a hundred more."""


def plan_convolution(call: Call) -> MemoryPlan:
    """Allocate the output and a scratchpad of some pages; a fused addend's buffer is taken over.

    The filter is used as it is: ``_MklNative*`` convolutions run on TensorFlow's own layout. A
    fused ``Add`` sums into the addend's buffer (``MklFusedConvOp`` forwards it).
    """
    fused = call.attr("fused_ops") or []
    output: Output = allocate(call)
    if "Add" in fused:
        output = forward(call, (len(call.inputs) - 1,))
    pages = (call.threads + 1) * _PAGE_BYTES + 3 * 16 + _windows_bytes(call)
    return MemoryPlan(outputs=(output,), after_bytes=(pages,))


def _windows_bytes(call: Call) -> int:
    """Return the bytes that a convolution of images with one channel copies its windows into.

    One channel fills no vector, so that ``brgemm`` lays the numbers of each window side by side
    (``conv_brgemm_relo_type_t::whi``): for each thread a buffer of whole blocks of 4,096 numbers
    for some rows of windows, and three pages. How many rows follows from the blocking. Of 17 sizes
    that TensorFlow asked for on two threads of AVX-512 (filters of 2 to 7, images 8 to 256 wide)
    the rows taken here give 14, two a page too few, one a block for each thread too many.
    """
    image, filters, out = call.shape(0), call.shape(1), call.out_shape()
    if image is None or filters is None or out is None or len(image) != 4 or len(filters) != 4:
        return 0
    if image[3] != 1 or image[0] == 1 or filters[0] * filters[1] == 1:
        return 0
    strides = call.attr("strides") or [1, 1, 1, 1]
    high, wide = filters[:2]
    step = max(int(strides[1]), 1)
    padding = [
        max((out[axis] - 1) * int(strides[axis]) + filters[axis - 1] - image[axis], 0)
        for axis in (1, 2)
    ]
    rows = step * (high + padding[0]) + 1
    numbers = high * wide * (image[2] + padding[1]) * rows
    blocks = -(-numbers // _WINDOW_BLOCK)
    return call.threads * (blocks * _WINDOW_BLOCK * 4 + 3 * _PAGE_BYTES)


def plan_matmul(call: Call) -> MemoryPlan:
    """Allocate the product; 16-bit operands go through ``brgemm``, as those of a batch do.

    Other types are multiplied where they lie. A product that fits a core's second cache (1 MiB is
    assumed) runs on one thread (``ExecuteSingleThreadedGemm`` in ``mkl_matmul_ops_common.h``).
    """
    left, out = call.shape(0), call.out_shape()
    item_bytes = call.item_bytes()
    if item_bytes != 2 or left is None or out is None or len(left) != 2 or len(out) != 2:
        return MemoryPlan(outputs=allocate_all(call))
    transposes = bool(call.attr("transpose_a")), bool(call.attr("transpose_b"))
    rows, depth = reversed(left) if transposes[0] else left
    elements = rows * out[1] + depth * (rows + out[1])
    scratch = matmul_scratch_bytes(
        left,
        transposes=transposes,
        threads=1 if item_bytes * elements < _L2_CACHE_BYTES else call.threads,
        item_bytes=item_bytes,
    )
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(scratch,))


def plan_batch_matmul(call: Call) -> MemoryPlan:
    """Allocate the product and the copies that the primitive makes of its operands."""
    left = call.shape(0)
    if left is None or len(left) < 2:
        return MemoryPlan(outputs=(allocate(call),))
    scratch = matmul_scratch_bytes(
        left,
        transposes=(bool(call.attr("adj_x")), bool(call.attr("adj_y"))),
        threads=call.threads,
        item_bytes=call.item_bytes(),
        columns=(call.out_shape() or (None,))[-1],
    )
    return MemoryPlan(outputs=(allocate(call),), after_bytes=(scratch,))


def matmul_scratch_bytes(
    left: tuple[int, ...],
    *,
    transposes: tuple[bool, bool],
    threads: int,
    item_bytes: int,
    columns: int | None = None,
) -> int:
    """Return the bytes of a batched product's scratchpad.

    ``brgemm`` reads its operands row by row: each thread copies a transposed right operand in
    blocks of 64 columns, and a transposed left operand in blocks of rows, both padded to 64 bytes
    of depth. Of 16-bit types the right operand is copied always, to lay pairs of rows together. Of
    float32 the blocks are those of ``brgemm_blocking``; where threads share the
    depth, each has a result of its own.

    Args:
        left: Shape of the left operand, as it is stored.
        transposes: Whether the left and the right operand are transposed.
        threads: Intra-op threads.
        item_bytes: Bytes of an element.
        columns: Columns of the product; None where they are not known.
    """
    rows, depth = (left[-1], left[-2]) if transposes[0] else (left[-2], left[-1])
    total = _HEADER_BYTES + threads * _BATCH_BYTES
    if item_bytes == 4 and min(rows, depth, columns or 1, *left) > 0:
        return total + _copies_bytes(
            Product(
                rows=rows,
                columns=columns or 1,
                depth=depth,
                batch=math.prod(left[:-2]),
                axes=len(left),
                is_left_transposed=transposes[0],
                threads=threads,
            ),
            is_right_transposed=transposes[1],
        )
    depth_bytes = -(-depth * item_bytes // _DEPTH_BLOCK_BYTES) * _DEPTH_BLOCK_BYTES
    if transposes[1] or item_bytes == 2:
        total += _HEADER_BYTES + threads * depth_bytes * _COLUMN_BLOCK
    if transposes[0]:
        total += _HEADER_BYTES + threads * depth_bytes * min(rows, _ROWS_BLOCK)
    return total


def _copies_bytes(product: Product, *, is_right_transposed: bool) -> int:
    """Return the bytes of what a product of float32 copies, and of the results to be summed."""
    blocking = blocking_of(product)
    total = 0
    if is_right_transposed:
        depth_bytes = -(-blocking.depth * 4 // _DEPTH_BLOCK_BYTES) * _DEPTH_BLOCK_BYTES
        is_narrow = blocking.columns < min(product.columns, _COLUMN_BLOCK)
        block = blocking.columns if is_narrow else _COLUMN_BLOCK
        total += _HEADER_BYTES + product.threads * depth_bytes * block
    if product.is_left_transposed:
        row_bytes = 4 * blocking.left_row
        total += _HEADER_BYTES + product.threads * row_bytes * blocking.rows
    if blocking.depth_threads > 1 and product.depth > blocking.depth:
        total += _HEADER_BYTES + product.threads * product.rows * product.columns * 4
    return total


def plan_einsum(call: Call) -> MemoryPlan:
    """Transpose each operand that needs it, multiply, transpose the product where it needs it.

    ``EinsumOp`` brings each operand to batch, free, contracted order (or batch, contracted, free,
    which the product takes transposed), and the product to the output's order. All of these are
    temporaries; the last one becomes the output.
    """
    equation = str(call.attr("equation", ""))
    shapes = [call.shape(index) for index in range(len(call.inputs))]
    if len(shapes) != 2 or "->" not in equation or "." in equation or None in shapes:
        return MemoryPlan(outputs=(allocate(call, region="temp"),))
    left, right, out = _labels(equation)
    sizes = dict(zip(left + right, (*(shapes[0] or ()), *(shapes[1] or ())), strict=True))
    batch = [label for label in left if label in right and label in out]
    contracted = {label for label in left if label in right and label not in out}
    before: list[int] = []
    copies = [
        (index, _reorder(labels, batch, contracted)) for index, labels in enumerate((left, right))
    ]
    transposes = []
    for index, (needs_copy, transposed) in copies:
        if needs_copy:
            before.append(call.input_size(index))
        transposes.append(transposed)
    free = [label for label in left if label not in right], [x for x in right if x not in left]
    product_order = "".join([*batch, *free[0], *free[1]])
    ordered = [label for label in product_order if label in out and sizes[label] != 1]
    wanted = [label for label in out if sizes[label] != 1]
    depth = math.prod(sizes[label] for label in contracted)
    matrix = _matrix(free[0], depth, sizes, transposed=transposes[0])
    scratch = matmul_scratch_bytes(
        (math.prod(sizes[label] for label in batch), *matrix),
        transposes=(transposes[0], not transposes[1]),
        threads=call.threads,
        item_bytes=call.item_bytes(),
        columns=math.prod(sizes[label] for label in free[1]),
    )
    if ordered == wanted:
        return MemoryPlan(
            outputs=(allocate(call, region="temp"),),
            before_bytes=tuple(before),
            after_bytes=(scratch,),
        )
    return MemoryPlan(
        outputs=(allocate(call, region="temp"),),
        before_bytes=(*before, call.size()),
        scratch_bytes=(scratch,),
    )


def plan_softmax(call: Call) -> MemoryPlan:
    """Take over the logits' buffer where it is free (``MklSoftmaxOp``)."""
    return MemoryPlan(outputs=(forward(call, (0,)),))


def _labels(equation: str) -> tuple[str, str, str]:
    operands, out = equation.split("->")
    left, right = operands.split(",")
    return left, right, out


def _reorder(labels: str, batch: list[str], contracted: set[str]) -> tuple[bool, bool]:
    """Return whether an operand has to be copied, and whether it is then taken transposed."""
    own = [label for label in labels if label not in batch]
    free = [label for label in own if label not in contracted]
    inner = [label for label in own if label in contracted]
    straight = list(labels) == [*batch, *free, *inner]
    swapped = list(labels) == [*batch, *inner, *free]
    return not (straight or swapped), swapped and not straight


def _matrix(
    free: list[str], depth: int, sizes: dict[str, int], *, transposed: bool
) -> tuple[int, ...]:
    width = math.prod(sizes[label] for label in free)
    return (depth, width) if transposed else (width, depth)
