"""Reductions, softmax and sorting on a GPU: the scratch of kernels with many blocks.

A reduction merges neighbouring axes that are all kept or all reduced, like on a CPU, and has a kernel
for each remaining pattern (``reduction_gpu_kernels.cu.h`` of the 2.21 wheel, lines 640 to 1100).
CUB sums whole tensors; its scratch depends on the multiprocessors of the card (``blocks_in_flight``).
"""

import math
from dataclasses import replace
from typing import Final

from analyzer.cards import Gpu
from analyzer.model.contract.fields import ITEM_BYTES
from analyzer.simulate.kernels.shared import data_movement as layout
from analyzer.simulate.kernels.shared.op_call import (
    Call,
    MemoryPlan,
    Trial,
    Way,
    allocate_all,
    forward,
    plan_allocation,
    without_zeros,
)

CUB_BYTES: Final = 16 << 10
"""Assumed scratch of ``cub::DeviceSelect``, scans and sorts: a few words per tile of the input."""
SEGMENTS_BYTES: Final = 1
"""Scratch of ``cub::DeviceSegmentedReduce``, one block per segment: it needs none, and CUB requests one
byte (``dispatch_reduce.cuh``)."""
_REDUCE_THREADS: Final = 256
_SUBSCRIPTION: Final = 5
"""``cub::DeviceReduce``: threads of a block for elements of 1 to 8 bytes (``tuning_reduce.cuh``), and
launched blocks per resident block (``CUB_SUBSCRIPTION_FACTOR``)."""
_CUB_ALIGNMENT: Final = 256  # bytes (CUB's ``AliasTemporaries``)
_WARP: Final = 32  # threads of a warp
_BLOCK_THREADS: Final = 128
"""Most results for which the reduction of a middle axis needs no second pass."""
_UNROLL: Final = 8  # half of the rows that each of its threads sums in one pass
_SCALAR_IN_ONE_BLOCK: Final = (
    4096  # most elements for which one block suffices: no scratch
)
_SCALAR_IN_TWO: Final = (
    1 << 18
)  # most elements for which two passes suffice; CUB's kernel for more
_ROW_IN_WARP: Final = 1024  # a shorter row is reduced by one warp: no scratch
_FEW_COLUMNS: Final = 16  # most columns for which a warp reduces several rows
_MANY_COLUMNS: Final = 4096  # with more columns each thread reduces one: no scratch


def blocks_in_flight(gpu: Gpu) -> int:
    """Return the blocks of a reduction of a whole tensor; each writes a partial result.

    ``DispatchReduce::InvokePasses``: five times as many as are resident by their threads, not registers.
    """
    limits = gpu.architecture
    resident = min(limits.max_threads // _REDUCE_THREADS, limits.max_blocks)
    return gpu.sm_count * resident * _SUBSCRIPTION


def plan_reduction(call: Call, blocks: int) -> MemoryPlan:
    """Allocate the result as a temporary, like on a CPU, then the scratch of the kernel."""
    plan = layout.plan_reduction(call)
    shape, axes = call.shape(0), call.value(1)
    if plan.outputs[0].way is not Way.ALLOCATE or shape is None or axes is None:
        return plan
    scratch = scratch_bytes(shape, axes, _item_bytes(call), blocks)
    return replace(plan, after_bytes=(*plan.after_bytes, *scratch))


def scratch_bytes(
    shape: tuple[int, ...], axes: tuple[int, ...], item_bytes: int, blocks: int
) -> tuple[int, ...]:
    """Return the scratch of a reduction over ``axes`` in bytes; see ``blocks_in_flight``."""
    match layout.merge_axes(shape, axes):
        case [(elements, True)]:
            scratch = _whole(elements, item_bytes, blocks)
        case [(rows, True), (columns, False)]:
            scratch = _columns(rows, columns, item_bytes)
        case [(outer, False), (rows, True), (columns, False)]:
            scratch = _middle(outer, rows, columns, item_bytes)
        case [(_, True), _, _]:
            scratch = SEGMENTS_BYTES
        case groups:  # rows, transposed first if there are several kept axes
            columns = math.prod(length for length, reduced in groups if reduced)
            scratch = 0 if columns < _ROW_IN_WARP else SEGMENTS_BYTES
    return without_zeros((scratch,))


def plan_softmax(call: Call) -> MemoryPlan:
    """Forward the logits, and allocate two temporaries of their shape with one number per row.

    ``SoftmaxOpGPU`` in ``softmax_op_gpu.cu.cc``: maxima in the type of the logits, sums in float32.
    """
    is_half = call.op.outputs[0].dtype in ("float16", "bfloat16")
    columns = (call.out_shape() or (0,))[-1]
    scratch = SEGMENTS_BYTES if columns >= _ROW_IN_WARP else 0
    temporaries = without_zeros(
        (call.size(), call.size() * (2 if is_half else 1), scratch)
    )
    return MemoryPlan(outputs=(forward(call, (0,)),), after_bytes=temporaries)


def plan_bias_gradient(call: Call) -> MemoryPlan:
    """Allocate the result; a special kernel sums the columns atomically.

    ``BiasGradOp`` in ``bias_op.cc`` and ``bias_op_gpu.cu.cc``. The first call with a shape times that
    kernel and a reduction, whose scratch (in NCHW a copy) is part of the range.
    """
    shape, data_format = call.shape(0), call.attr("data_format")
    if shape is None:
        return plan_allocation(call)
    if data_format in ("NCHW", "NCDHW"):
        scratch = call.input_size(0)
    else:
        scratch = _columns(math.prod(shape[:-1]), shape[-1], _item_bytes(call))
    key = ("BiasAddGrad", shape, data_format, call.op.outputs[0].dtype)
    trial = Trial(key=key, copy_bytes=0, scratch_bytes=(scratch,))
    return MemoryPlan(outputs=allocate_all(call), unknown_bytes=scratch, trial=trial)


def plan_top_k(call: Call) -> MemoryPlan:
    """Allocate for a sort: indices, sorted pairs, and CUB's second pair.

    ``topk_op_gpu.h`` of the wheel: rows are sorted (``LaunchSortKernel``, line 443) if ``k`` is at least
    100 or the whole row (then directly into the outputs), or the row has at most 1000 numbers.
    Otherwise a heap on the chip needs no memory.
    """
    keys, out = call.shape(0), call.out_shape()
    if (
        not keys
        or not out
        or (out[-1] < 100 and out[-1] != keys[-1] and keys[-1] > 1000)
    ):
        return plan_allocation(call)
    pairs = (4 * math.prod(keys), call.input_size(0))
    sorted_pairs = () if out[-1] == keys[-1] else pairs
    return plan_allocation(
        call, after_bytes=(pairs[0], *sorted_pairs, sum(pairs) + CUB_BYTES)
    )


def plan_sum_of_squares(call: Call, blocks: int) -> MemoryPlan:
    """Reduce the whole tensor (``L2Loss``, ``l2loss_op_gpu.cu.cc``)."""
    elements = math.prod(call.shape(0) or ())
    return plan_allocation(
        call, after_bytes=(_whole(elements, _item_bytes(call), blocks),)
    )


def _item_bytes(call: Call) -> int:
    return ITEM_BYTES.get(call.op.outputs[0].dtype, 4)


def _whole(elements: int, item_bytes: int, blocks: int) -> int:
    if elements <= _SCALAR_IN_ONE_BLOCK:
        return 0
    if elements <= _SCALAR_IN_TWO:
        return min(_WARP, -(-elements // 256)) * item_bytes
    partial = -(-blocks * item_bytes // _CUB_ALIGNMENT) * _CUB_ALIGNMENT
    return (
        partial + _CUB_ALIGNMENT - 1
    )  # for any alignment of the buffer (``AliasTemporaries``)


def _columns(rows: int, columns: int, item_bytes: int) -> int:
    if columns > _MANY_COLUMNS or columns < 1:
        return 0
    if columns <= _FEW_COLUMNS:
        rows_in_warp = _WARP // columns
        blocks = -(-rows // (rows_in_warp * min(-(-rows // rows_in_warp), _WARP)))
    else:
        blocks = -(-rows // _WARP) if -(-columns // _WARP) < 16 else 1
    blocks = min(blocks, _WARP)
    if 2 < blocks < _WARP:
        blocks = 1 << (blocks.bit_length() - 1)
    return item_bytes * columns * blocks if blocks > 1 else 0


def _middle(outer: int, rows: int, columns: int, item_bytes: int) -> int:
    if rows // (outer * columns) < 16:
        return 0
    total = 0
    while rows >= 2 and rows * columns > _BLOCK_THREADS:
        rows = max(1, rows // (2 * _UNROLL))
        total += rows * columns
    return total * outer * item_bytes
