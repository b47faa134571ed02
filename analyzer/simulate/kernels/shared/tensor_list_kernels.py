"""Kernels of TensorLists, the stacks and arrays of loops (``list_kernels.h``), and of optionals.

A branch passes tensors to its gradient in optionals, which are modelled as lists. A plan names the
operation on the list; the executor tracks the elements (``predict/buffers/tensor_lists``).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from analyzer.simulate.kernels.shared.op_call import (
    Call,
    ListUse,
    MemoryPlan,
    Output,
    Way,
    allocate_all,
    rule_table,
)

HANDLE_BYTES: Final = 64  # bytes of the tensor of a list: one ``Variant``

_HANDLE: Final = Output(Way.ALLOCATE, HANDLE_BYTES)


def is_list(call: Call) -> bool:
    """Return whether an op for tensors or lists gets a list."""
    return bool(call.op.outputs) and call.op.outputs[0].dtype == "variant"


def _plan_list(use: ListUse, value: int | None, call: Call) -> MemoryPlan:
    """Output a list, or an element of it, which is allocated if it was never set."""
    element = [Output(Way.ALIAS, call.size(len(call.op.outputs) - 1))]
    outputs = {ListUse.GET: element, ListUse.POP: [_HANDLE, *element]}.get(use, [_HANDLE])
    return MemoryPlan(outputs=tuple(outputs), lists=use, value=value)


def _plan_tensors(use: ListUse, call: Call) -> MemoryPlan:
    """Output the elements of a list."""
    return MemoryPlan(outputs=allocate_all(call), lists=use)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy each row into a new buffer (``TensorListFromTensor``)."""
    rows = (call.shape(0) or (0,))[0]
    row_bytes = call.input_size(0) // max(rows, 1)
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.UNSTACK, rows_bytes=(row_bytes,) * rows)


RULES: Final = rule_table(
    (partial(_plan_list, ListUse.NEW, None), "EmptyTensorList TensorListReserve"),
    (partial(_plan_list, ListUse.PUSH, 1), "TensorListPushBack"),
    (partial(_plan_list, ListUse.SET, 2), "TensorListSetItem"),
    (partial(_plan_list, ListUse.RESIZE, None), "TensorListResize"),
    (partial(_plan_list, ListUse.POP, None), "TensorListPopBack"),
    (partial(_plan_list, ListUse.GET, None), "TensorListGetItem"),
    # Hold references to the inputs (``WriteOptionalWithValueToOutput``, ``optional_ops.cc``).
    (partial(_plan_list, ListUse.PACK, None), "OptionalNone OptionalFromValue"),
    (
        partial(_plan_tensors, ListUse.STACK),
        "TensorListStack TensorListConcatV2 TensorListGather",
    ),
    (partial(_plan_tensors, ListUse.UNPACK), "OptionalGetValue"),
    (_plan_unstack, "TensorListFromTensor TensorListScatterV2"),
)
"""Rules of ops for lists only; ``AddN`` and ``ZerosLike`` are with the other kernels."""
