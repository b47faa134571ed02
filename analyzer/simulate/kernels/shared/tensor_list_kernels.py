"""Kernels of TensorLists, the stacks and arrays of loops (``tensorflow/core/kernels/list_kernels.h``).

Those of optionals, in which a branch hands tensors to its gradient, are here too: lists made whole.
A plan says what a kernel does to the list; the elements are followed where the step is played
(``tensor_lists``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import ListUse, MemoryPlan, Output, Way
from analyzer.simulate.kernels.shared.op_call import Call, allocate_all

HANDLE_BYTES: Final = 64
"""A list's own tensor: one ``Variant``."""

_HANDLE: Final = Output(Way.ALLOCATE, HANDLE_BYTES)


def is_list(call: Call) -> bool:
    """Say whether an op that is not one of lists alone is given one here."""
    return bool(call.op.outputs) and call.op.outputs[0].dtype == "variant"


def _makes(use: ListUse, value: int | None = None) -> Callable[[Call], MemoryPlan]:
    def rule(call: Call) -> MemoryPlan:
        return MemoryPlan(outputs=(_HANDLE,), lists=use, value=value)

    return rule


def _gives(use: ListUse) -> Callable[[Call], MemoryPlan]:
    def rule(call: Call) -> MemoryPlan:
        return MemoryPlan(outputs=allocate_all(call), lists=use)

    return rule


def _element(call: Call, index: int) -> Output:
    """Return an output that is an element of a list; its bytes are asked for where it was never set."""
    return Output(Way.ALIAS, call.size(index))


def _plan_get(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(_element(call, 0),), lists=ListUse.GET)


def _plan_pop(call: Call) -> MemoryPlan:
    return MemoryPlan(outputs=(_HANDLE, _element(call, 1)), lists=ListUse.POP)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy every row into a buffer of its own (``TensorListFromTensor``)."""
    shape = call.shape(0)
    rows = shape[0] if shape else 0
    row_bytes = call.input_size(0) // rows if rows else 0
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.UNSTACK, rows_bytes=(row_bytes,) * rows)


def _plan_pack(call: Call) -> MemoryPlan:
    """Refer to the inputs (``WriteOptionalWithValueToOutput`` in ``optional_ops.cc``)."""
    return MemoryPlan(outputs=(_HANDLE,), lists=ListUse.PACK)


RULES: Final[dict[str, Callable[[Call], MemoryPlan]]] = {
    "EmptyTensorList": _makes(ListUse.NEW),
    "TensorListReserve": _makes(ListUse.NEW),
    "TensorListPushBack": _makes(ListUse.PUSH, 1),
    "TensorListSetItem": _makes(ListUse.SET, 2),
    "TensorListResize": _makes(ListUse.RESIZE),
    "TensorListPopBack": _plan_pop,
    "TensorListGetItem": _plan_get,
    "TensorListStack": _gives(ListUse.STACK),
    "TensorListConcatV2": _gives(ListUse.STACK),
    "TensorListGather": _gives(ListUse.STACK),
    "TensorListFromTensor": _plan_unstack,
    "TensorListScatterV2": _plan_unstack,
    "OptionalNone": _plan_pack,
    "OptionalFromValue": _plan_pack,
    "OptionalGetValue": _gives(ListUse.UNPACK),
}
"""What each kernel does; those that sum or zero other tensors too are with those."""
