"""Factorizations of matrices on a card: copies that cuSOLVER and cuBLAS overwrite, and pivots.

cuSOLVER's own workspace is not published; it counts as 0, as on the simulated card.
"""

import math

from analyzer.simulate.kernels.shared.op_call import (
    Call,
    MemoryPlan,
    Output,
    Way,
    allocate_all,
    forward,
    plan_allocation,
    without_zeros,
)

_POINTER_BYTES, _STATUS_BYTES = (
    8,
    4,
)  # bytes for each matrix of an array of pointers, and of a status
_PIVOT_BYTES = 4  # bytes for each row
_MOST_BATCHED = 32  # rows and columns of a matrix that cuSOLVER decomposes in a batch


def plan_factorization(call: Call) -> MemoryPlan:
    """Plan a kernel that factorizes a batch of matrices (``core/kernels/linalg``, ``gpu_solvers.h``).

    The factors overwrite a copy of the input, or the input itself if no other op uses it. A transposed
    copy is always made. Arrays of pointers and the status are counted as two of each.
    """
    shape = call.shape(0)
    if not shape or len(shape) < 2:
        return plan_allocation(call)
    matrices, rows, columns = math.prod(shape[:-2]), shape[-2], shape[-1]
    status = 2 * (_POINTER_BYTES * matrices, _STATUS_BYTES * matrices)
    pivots = (_PIVOT_BYTES * matrices * rows, *status)
    whole, outputs = call.input_size(0), allocate_all(call)
    copy = Output(Way.FORWARD, whole, (0,), "temp")
    match call.op.type:
        case "Cholesky":
            return MemoryPlan(outputs=(forward(call, (0,)),), after_bytes=status)
        case "MatrixInverse":
            return MemoryPlan(
                outputs=(forward(call, (0,)),), after_bytes=(whole, *pivots)
            )
        case "Lu":
            outputs = (forward(call, (0,)), *outputs[1:])
            return MemoryPlan(outputs=outputs, after_bytes=(whole, *pivots))
        case "MatrixSolve":
            outputs, asked = (forward(call, (1,)),), (*pivots, call.input_size(1))
            if call.attr("adjoint"):
                return MemoryPlan(outputs=outputs, after_bytes=(whole, *asked))
            return MemoryPlan(outputs=outputs, copy=copy, after_bytes=asked)
        case "SelfAdjointEigV2":
            return MemoryPlan(outputs=outputs, copy=copy, after_bytes=status[1::2])
        case "Svd":
            is_tall = rows >= columns
            vectors = (
                [call.size(1), call.size(2)]
                if is_tall
                else [call.size(2), call.size(1)]
            )
            is_square = bool(call.attr("full_matrices")) or rows == columns
            if not is_square or max(rows, columns) > _MOST_BATCHED or matrices == 1:
                del vectors[1]  # each matrix alone; one result is written in place
            after = without_zeros((*vectors, *status[1::2]))
            if is_tall:
                return MemoryPlan(outputs=outputs, after_bytes=(whole, *after))
            return MemoryPlan(outputs=outputs, copy=copy, after_bytes=after)
    return MemoryPlan(outputs=outputs, copy=copy, after_bytes=pivots)  # determinants
