"""Kernels of TensorLists, the stacks and arrays of loops (``list_kernels.h``), and of optionals.

A branch passes tensors to its gradient in optionals, which are modelled as lists. A plan names the
operation on the list; the executor tracks the elements (``predict/buffers/tensor_lists``).
"""

from functools import partial
from typing import Final

from analyzer.model.contract.graph_note import op_types
from analyzer.simulate.kernels.shared.op_call import (
    Call,
    ListUse,
    MemoryPlan,
    Output,
    Rule,
    Way,
    allocate_all,
)

HANDLE_BYTES: Final = 64  # bytes of the tensor of a list: one ``Variant``

_HANDLE: Final = Output(Way.ALLOCATE, HANDLE_BYTES)


def _plan_list(use: ListUse, value: int | None = None) -> Rule:
    return lambda call: MemoryPlan(outputs=(_HANDLE,), lists=use, value=value)


def _plan_element(use: ListUse, call: Call) -> MemoryPlan:
    """Output an element, which is allocated if it was never set, after the rest of the list."""
    element = Output(Way.ALIAS, call.size(len(call.op.outputs) - 1))
    return MemoryPlan(
        outputs=(_HANDLE, element) if use is ListUse.POP else (element,), lists=use
    )


def _plan_tensors(use: ListUse) -> Rule:
    return lambda call: MemoryPlan(outputs=allocate_all(call), lists=use)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy each row into a new buffer (``TensorListFromTensor``, ``Scatter``)."""
    source = int(call.op.type == "TensorListScatterIntoExistingList")
    rows = (call.shape(source) or (0,))[0]
    row_bytes = call.input_size(source) // max(rows, 1)
    sizes = (row_bytes,) * rows

    return MemoryPlan((_HANDLE,), lists=ListUse.UNSTACK, value=source, rows_bytes=sizes)


_STACKS: Final = op_types("TensorListStack TensorListConcatV2 TensorListGather")
_UNSTACKS: Final = op_types(
    "TensorListFromTensor TensorListScatterV2 TensorListScatterIntoExistingList"
)
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(
        op_types("EmptyTensorList TensorListReserve"), _plan_list(ListUse.NEW)
    ),
    "TensorListPushBack": _plan_list(ListUse.PUSH, 1),
    "TensorListSetItem": _plan_list(ListUse.SET, 2),
    "TensorListResize": _plan_list(ListUse.RESIZE),
    "TensorListPopBack": partial(_plan_element, ListUse.POP),
    "TensorListGetItem": partial(_plan_element, ListUse.GET),
    # Hold references to the inputs (``WriteOptionalWithValueToOutput``, ``optional_ops.cc``).
    **dict.fromkeys(
        op_types("OptionalNone OptionalFromValue"), _plan_list(ListUse.PACK)
    ),
    **dict.fromkeys(_STACKS, _plan_tensors(ListUse.STACK)),
    "OptionalGetValue": _plan_tensors(ListUse.UNPACK),
    **dict.fromkeys(_UNSTACKS, _plan_unstack),
}
"""Rules of ops for lists only; ``AddN`` and ``ZerosLike`` are with the other kernels."""
