"""Kernels of TensorLists, the stacks and arrays of loops (``list_kernels.h``), and of optionals.

A branch passes tensors to its gradient in optionals, which are modelled as lists. A plan names the
operation on the list; the executor tracks the elements (``predict/buffers/tensor_lists``).
"""

from __future__ import annotations

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

HANDLE_BYTES: Final = 64
"""Bytes of the tensor of a list: one ``Variant``."""

_HANDLE: Final = Output(Way.ALLOCATE, HANDLE_BYTES)


def is_list(call: Call) -> bool:
    """Return whether an op for tensors or lists gets a list."""
    return bool(call.op.outputs) and call.op.outputs[0].dtype == "variant"


def _make_list(use: ListUse, value: int | None = None) -> Rule:
    """Return a rule for an op that outputs a list."""

    def rule(call: Call) -> MemoryPlan:
        return MemoryPlan(outputs=(_HANDLE,), lists=use, value=value)

    return rule


def _make_tensors(use: ListUse) -> Rule:
    """Return a rule for an op that outputs the elements of a list."""

    def rule(call: Call) -> MemoryPlan:
        return MemoryPlan(outputs=allocate_all(call), lists=use)

    return rule


def _element(call: Call, index: int) -> Output:
    """Return an output that is an element of a list, allocated if the element was never set."""
    return Output(Way.ALIAS, call.size(index))


def _plan_get(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(_element(call, 0),), lists=ListUse.GET)


def _plan_pop(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(_HANDLE, _element(call, 1)), lists=ListUse.POP)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy each row into a new buffer (``TensorListFromTensor``)."""
    shape = call.shape(0)
    rows = shape[0] if shape else 0
    row_bytes = call.input_size(0) // rows if rows else 0
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.UNSTACK, rows_bytes=(row_bytes,) * rows)


def _plan_pack(call: Call) -> MemoryPlan:
    """Hold references to the inputs (``WriteOptionalWithValueToOutput``, ``optional_ops.cc``)."""
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.PACK)


RULES: Final = rule_table(
    (_make_list(ListUse.NEW), "EmptyTensorList TensorListReserve"),
    (_make_list(ListUse.PUSH, 1), "TensorListPushBack"),
    (_make_list(ListUse.SET, 2), "TensorListSetItem"),
    (_make_list(ListUse.RESIZE), "TensorListResize"),
    (_plan_pop, "TensorListPopBack"),
    (_plan_get, "TensorListGetItem"),
    (_make_tensors(ListUse.STACK), "TensorListStack TensorListConcatV2 TensorListGather"),
    (_plan_unstack, "TensorListFromTensor TensorListScatterV2"),
    (_plan_pack, "OptionalNone OptionalFromValue"),
    (_make_tensors(ListUse.UNPACK), "OptionalGetValue"),
)
"""Rules of ops for lists only; ``AddN`` and ``ZerosLike`` are with the other kernels."""
