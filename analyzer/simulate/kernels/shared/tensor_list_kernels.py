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
    Rule,
    Way,
    allocate_all,
    rule_table,
)

HANDLE_BYTES: Final = 64  # bytes of the tensor of a list: one ``Variant``

_HANDLE: Final = Output(Way.ALLOCATE, HANDLE_BYTES)


def is_list(call: Call) -> bool:
    """Return whether an op for tensors or lists gets a list."""
    return bool(call.op.outputs) and call.op.outputs[0].dtype == "variant"


def _plan_list(use: ListUse, value: int | None = None) -> Rule:
    return lambda call: MemoryPlan(outputs=(_HANDLE,), lists=use, value=value)


def _plan_element(use: ListUse, call: Call) -> MemoryPlan:
    """Output an element, which is allocated if it was never set, after the rest of the list."""
    element = Output(Way.ALIAS, call.size(len(call.op.outputs) - 1))
    return MemoryPlan(outputs=(_HANDLE, element) if use is ListUse.POP else (element,), lists=use)


def _plan_tensors(use: ListUse) -> Rule:
    return lambda call: MemoryPlan(outputs=allocate_all(call), lists=use)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy each row into a new buffer (``TensorListFromTensor``)."""
    rows = (call.shape(0) or (0,))[0]
    row_bytes = call.input_size(0) // max(rows, 1)
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.UNSTACK, rows_bytes=(row_bytes,) * rows)


RULES: Final = rule_table(
    (_plan_list(ListUse.NEW), "EmptyTensorList TensorListReserve"),
    (_plan_list(ListUse.PUSH, 1), "TensorListPushBack"),
    (_plan_list(ListUse.SET, 2), "TensorListSetItem"),
    (_plan_list(ListUse.RESIZE), "TensorListResize"),
    (partial(_plan_element, ListUse.POP), "TensorListPopBack"),
    (partial(_plan_element, ListUse.GET), "TensorListGetItem"),
    # Hold references to the inputs (``WriteOptionalWithValueToOutput``, ``optional_ops.cc``).
    (_plan_list(ListUse.PACK), "OptionalNone OptionalFromValue"),
    (_plan_tensors(ListUse.STACK), "TensorListStack TensorListConcatV2 TensorListGather"),
    (_plan_tensors(ListUse.UNPACK), "OptionalGetValue"),
    (_plan_unstack, "TensorListFromTensor TensorListScatterV2"),
)
"""Rules of ops for lists only; ``AddN`` and ``ZerosLike`` are with the other kernels."""
