"""Reductions, softmax, sorting on a GPU: the scratch that a kernel of many blocks needs.

A reduction merges neighbouring axes that are all kept or all reduced, as on the CPU, and has a kernel
for each pattern that is left (``reduction_gpu_kernels.cu.h`` of the 2.21 wheel, lines 640 to 1100).
Sums of whole tensors are CUB's, whose scratch follows from the card's multiprocessors
(``blocks_in_flight``); reductions of segments need a byte; ``CUB_BYTES`` stands for what its
scans, selections and sorts need.
"""

from __future__ import annotations

import math
from typing import Final

from analyzer.cards.architecture import ARCHITECTURES
from analyzer.model.contract.element_sizes import ITEM_BYTES
from analyzer.simulate.kernels.shared import data_movement as layout
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Trial, Way
from analyzer.simulate.kernels.shared.op_call import Call, allocate_all, forward

CUB_BYTES: Final = 16 << 10
"""Scratch of ``cub::DeviceSelect`` and its kin: a few words for each tile of the input."""

SEGMENTS_BYTES: Final = 1
"""Scratch of ``cub::DeviceSegmentedReduce``, a block a segment: none, which CUB asks for as a byte
(``dispatch_reduce.cuh``)."""

_REDUCE_THREADS: Final = 256
_SUBSCRIPTION: Final = 5
"""``cub::DeviceReduce``: threads of a block for elements of 1 to 8 bytes (``tuning_reduce.cuh``), and
blocks that are launched for each that finds room (``CUB_SUBSCRIPTION_FACTOR``)."""

_CUB_ALIGNMENT: Final = 256  # bytes (CUB's ``AliasTemporaries``)

_WARP: Final = 32
"""Threads of a warp."""
_BLOCK_THREADS: Final = 128
"""Results up to which the kernel that reduces a middle axis needs no further pass."""
_UNROLL: Final = 8
"""Rows that each of its threads sums, twice, in one pass."""
_SCALAR_IN_ONE_BLOCK: Final = 4096
"""Elements up to which one block reduces them all: no scratch."""
_SCALAR_IN_TWO: Final = 1 << 18
"""Elements up to which two passes do; CUB's kernel beyond."""
_ROW_IN_WARP: Final = 1024
"""Elements of a row below which a warp reduces it: no scratch."""
_FEW_COLUMNS: Final = 16
"""Columns up to which one warp reduces several of them."""
_MANY_COLUMNS: Final = 4096
"""Columns from which on a thread reduces one each: no scratch."""


def blocks_in_flight(capability: tuple[int, int], multiprocessors: int) -> int:
    """Return the blocks of a reduction of a whole tensor, each of which leaves a partial result.

    ``DispatchReduce::InvokePasses``: as many as find room by their threads, five times over. Its
    kernel's registers, which may leave room for fewer, are not known here.
    """
    limits = ARCHITECTURES[capability]
    room = min(limits.max_threads // _REDUCE_THREADS, limits.max_blocks)
    return multiprocessors * room * _SUBSCRIPTION


def plan_reduction(call: Call, blocks: int) -> MemoryPlan:
    """The result as a temporary, as on the CPU, then the scratch of its pattern's kernel."""
    plan = layout.plan_reduction(call)
    if plan.outputs[0].way is not Way.ALLOCATE:
        return plan
    shape, axes = call.shape(0), call.values[1] if len(call.values) > 1 else None
    if shape is None or axes is None:
        return plan
    scratch = scratch_bytes(shape, axes, ITEM_BYTES.get(call.op.outputs[0].dtype, 4), blocks)
    return MemoryPlan(outputs=plan.outputs, after_bytes=(*plan.after_bytes, *scratch))


def scratch_bytes(
    shape: tuple[int, ...], axes: tuple[int, ...], item_bytes: int, blocks: int
) -> tuple[int, ...]:
    """Return the scratch of a reduction beside its result, bytes.

    Args:
        shape: The input's axes.
        axes: Those that are reduced.
        item_bytes: Bytes of an element.
        blocks: Of a reduction of a whole tensor (``blocks_in_flight``).
    """
    groups = _groups(shape, axes)
    lengths = [length for length, _ in groups]
    pattern = "".join("r" if reduced else "k" for _, reduced in groups)
    if pattern == "r":
        found = _whole(lengths[0], item_bytes, blocks)
    elif pattern == "kr":
        found = 0 if lengths[1] < _ROW_IN_WARP else SEGMENTS_BYTES
    elif pattern == "rk":
        found = _columns(lengths[0], lengths[1], item_bytes)
    elif pattern == "krk":
        found = _middle(lengths, item_bytes)
    elif pattern == "rkr":
        found = SEGMENTS_BYTES
    else:  # transposed first, then rows are reduced
        columns = math.prod(length for length, reduced in groups if reduced)
        found = 0 if columns < _ROW_IN_WARP else SEGMENTS_BYTES
    return (found,) if found else ()


def plan_softmax(call: Call) -> MemoryPlan:
    """Two temporaries of the logits' full shape, though only a number a row is kept in them.

    ``SoftmaxOpGPU`` in ``softmax_op_gpu.cu.cc``: the maxima in the logits' type and the sums in
    float32 for float16 and bfloat16; the result takes the logits' place where that is free.
    """
    size = call.size()
    halves = call.op.outputs[0].dtype in ("float16", "bfloat16")
    temporaries = (size, 2 * size if halves else size)
    columns = (call.out_shape() or (0,))[-1]
    scratch = (SEGMENTS_BYTES,) if columns >= _ROW_IN_WARP else ()
    return MemoryPlan(
        outputs=(forward(call, (0,)),), after_bytes=(*(t for t in temporaries if t), *scratch)
    )


def plan_bias_gradient(call: Call) -> MemoryPlan:
    """The result alone: a kernel of its own adds the columns up atomically.

    ``BiasGradOp`` in ``bias_op.cc`` and ``bias_op_gpu.cu.cc``. The first call of a shape times that
    kernel, then a reduction, and keeps the second only where it was quicker. A reduction asks for more
    (in NCHW a copy); so the way that is taken later is a doubt of its size.
    """
    shape = call.shape(0)
    if shape is None:
        return MemoryPlan(outputs=allocate_all(call))
    found = call.input_size(0)
    if call.attr("data_format") not in ("NCHW", "NCDHW"):
        item_bytes = ITEM_BYTES.get(call.op.outputs[0].dtype, 4)
        found = _columns(math.prod(shape[:-1]), shape[-1], item_bytes)
    return MemoryPlan(
        outputs=allocate_all(call),
        workspace_bytes=found,
        trial=Trial(
            ("BiasAddGrad", shape, call.attr("data_format"), call.op.outputs[0].dtype), 0, found
        ),
    )


def plan_top_k(call: Call) -> MemoryPlan:
    """Sort where ``k`` is large: indices, sorted pairs, CUB's other pair; else a heap on the chip.

    ``topk_op_gpu.h`` of the wheel: rows are sorted (``LaunchSortKernel``, line 443) where ``k`` is at
    least 100 or the whole row (then straight into the outputs), or the row has at most 1000 numbers.
    """
    keys, out = call.shape(0), call.out_shape()
    if keys is None or out is None or not keys or not out:
        return MemoryPlan(outputs=allocate_all(call))
    if out[-1] < 100 and out[-1] != keys[-1] and keys[-1] > 1000:
        return MemoryPlan(outputs=allocate_all(call))
    index_bytes = 4 * math.prod(keys)
    pairs = (index_bytes, call.input_size(0))
    whole = out[-1] == keys[-1]
    return MemoryPlan(
        outputs=allocate_all(call),
        after_bytes=(index_bytes, *(() if whole else pairs), sum(pairs) + CUB_BYTES),
    )


def plan_sum_of_squares(call: Call, blocks: int) -> MemoryPlan:
    """``L2Loss``: a reduction of the whole tensor (``l2loss_op_gpu.cu.cc``)."""
    elements = math.prod(call.shape(0) or ())
    found = _whole(elements, ITEM_BYTES.get(call.op.outputs[0].dtype, 4), blocks)
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(found,) if found else ())


def plan_scan(call: Call) -> MemoryPlan:
    """CUB's partial results beside the output (``where_op_gpu.cu.h``, ``gpu_prim_helpers.h``)."""
    return MemoryPlan(outputs=allocate_all(call), after_bytes=(CUB_BYTES,))


def _groups(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Return (length, whether reduced) of the axes, neighbours of one kind merged, ones left out."""
    reduced = {axis % max(len(shape), 1) for axis in axes}
    groups: list[tuple[int, bool]] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if groups and groups[-1][1] == (axis in reduced):
            groups[-1] = groups[-1][0] * length, groups[-1][1]
        else:
            groups.append((length, axis in reduced))
    return groups


def _whole(elements: int, item_bytes: int, blocks: int) -> int:
    if elements <= _SCALAR_IN_ONE_BLOCK:
        return 0
    if elements <= _SCALAR_IN_TWO:
        return min(_WARP, -(-elements // 256)) * item_bytes
    partial = -(-blocks * item_bytes // _CUB_ALIGNMENT) * _CUB_ALIGNMENT
    return partial + _CUB_ALIGNMENT - 1  # wherever the buffer begins (``AliasTemporaries``)


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


def _middle(lengths: list[int], item_bytes: int) -> int:
    outer, rows, columns = lengths
    if rows // (outer * columns) < 16:
        return 0
    total = 0
    while rows >= 2 and rows * columns > _BLOCK_THREADS:
        rows = max(1, rows // (2 * _UNROLL))
        total += rows * columns
    return total * outer * item_bytes
