"""CPU kernels: what each op type allocates, forwards, aliases and holds.

The table ``op_types.toml`` lists the op types of each effect. The rules are read from TensorFlow's
kernels (``tensorflow/core/kernels``, and the headers of the 2.21 wheel) and were checked against the
allocator's events. An op type without a rule counts as allocating its outputs and is reported.
"""

from functools import partial

from analyzer.model.contract.run_note import CONSTANTS, Op, op_types, read_op_types
from analyzer.simulate.kernels.op_call import (
    NO_BUFFER,
    Call,
    Effect,
    KernelDevice,
    MemoryPlan,
    Output,
    Rule,
    Way,
    alias,
    allocate,
    allocate_all,
    assign_rules,
    forward,
    plan_allocation,
    plan_forward,
)

# Bytes that ``VarHandleOp`` allocates for a resource handle (``sizeof(ResourceHandle)``).
HANDLE_BYTES = 200


LIST_BYTES = 64  # bytes of the tensor of a list: one ``Variant``

_HANDLE = Output(Way.ALLOCATE, LIST_BYTES)


def _plan_list(effect: Effect, value: int = 0) -> Rule:
    return lambda call: MemoryPlan(
        outputs=(_HANDLE,),
        effect=effect,
        value=value,
    )


def _plan_element(effect: Effect, call: Call) -> MemoryPlan:
    """Output an element, which is allocated if it was never set, after the rest of the list."""
    element = Output(Way.ALIAS, call.size(len(call.op.outputs) - 1))
    return MemoryPlan(
        outputs=(_HANDLE, element) if effect is Effect.POP else (element,),
        effect=effect,
    )


def _plan_tensors(effect: Effect) -> Rule:
    return lambda call: MemoryPlan(outputs=allocate_all(call), effect=effect)


def _plan_unstack(call: Call) -> MemoryPlan:
    """Copy each row into a new buffer (``TensorListFromTensor``, ``Scatter``)."""
    source = int(call.op.type == "TensorListScatterIntoExistingList")
    rows = (call.shape(source) or (0,))[0]
    row_bytes = call.input_size(source) // max(rows, 1)

    return MemoryPlan(
        outputs=(_HANDLE, *(Output(Way.ALLOCATE, row_bytes),) * rows),
        effect=Effect.UNSTACK,
        value=source,
    )


_STACKS = op_types("TensorListStack TensorListConcatV2 TensorListGather")
_UNSTACKS = op_types(
    "TensorListFromTensor TensorListScatterV2 TensorListScatterIntoExistingList"
)

# Rules of ops for lists only; ``AddN`` and ``ZerosLike`` are with the other kernels.
_LIST_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        op_types("EmptyTensorList TensorListReserve"),
        _plan_list(Effect.NEW),
    ),
    "TensorListPushBack": _plan_list(Effect.PUSH, 1),
    "TensorListSetItem": _plan_list(Effect.SET, 2),
    "TensorListResize": _plan_list(Effect.RESIZE),
    "TensorListPopBack": partial(_plan_element, Effect.POP),
    "TensorListGetItem": partial(_plan_element, Effect.GET),
    # Hold references to the inputs (``WriteOptionalWithValueToOutput``, ``optional_ops.cc``).
    **dict.fromkeys(
        op_types("OptionalNone OptionalFromValue"),
        _plan_list(Effect.PACK),
    ),
    **dict.fromkeys(_STACKS, _plan_tensors(Effect.STACK)),
    "OptionalGetValue": _plan_tensors(Effect.UNPACK),
    **dict.fromkeys(_UNSTACKS, _plan_unstack),
}


_TYPES = read_op_types("simulate/kernels/op_types.toml")["types"]

# Op types whose kernel usually has the same effect on a card.
SAME_ON_CARDS = frozenset(_LIST_RULES).union(
    *map(_TYPES.__getitem__, ("aliases", "allocating_anywhere", "binary", "constant")),
    *map(_TYPES.__getitem__, ("in_part", "in_place", "nothing", "unary")),
)


def plan(call: Call) -> MemoryPlan:
    """Return the memory plan of one run of the op's CPU kernel."""
    return _RULES.get(call.op.type, plan_unknown)(call)


def plan_unknown(call: Call) -> MemoryPlan:
    """Allocate each output: the assumption for an op type without a rule."""
    return MemoryPlan(outputs=allocate_all(call), modelled=False)


def _forward_any(*inputs: int) -> Rule:
    """Return the rule of a kernel that forwards one of these inputs."""
    return lambda call: plan_forward(call, inputs)


def _forward_tensor(effect: Effect, call: Call) -> MemoryPlan:
    """Forward any input (``AddNOp``, ``ZerosLikeOp``); apply ``effect`` if the input is a list."""
    if call.op.outputs and call.op.outputs[0].dtype == "variant":
        return MemoryPlan(outputs=(NO_BUFFER,), effect=effect)

    return plan_forward(call, range(len(call.inputs)))


def _plan_merge(call: Call) -> MemoryPlan:
    """Pass on the input that arrived; allocate its index (``MergeOp``)."""
    arrived = Output(Way.ALIAS, inputs=tuple(range(len(call.inputs))))
    return MemoryPlan(outputs=(arrived, *allocate_all(call)[1:]))


def _plan_cross_entropy(call: Call) -> MemoryPlan:
    """Allocate one number a row as scratch, and the loss; forward the logits to the gradient.

    ``SparseSoftmaxXentWithLogitsOp``, ``SoftmaxXentWithLogitsOp``.
    """
    outputs = (allocate(call, 0), forward(call, (0,), 1))
    return MemoryPlan(outputs=outputs, before_bytes=(call.size(0),))


_RULES = _LIST_RULES | assign_rules(
    _TYPES,
    aliases=lambda call: MemoryPlan(
        outputs=tuple(map(alias, range(len(call.op.outputs))))
    ),
    unary=_forward_any(0),
    binary=_forward_any(0, 1),
    **dict.fromkeys(
        ("allocating_anywhere", "allocating", "onednn_allocating", "in_part"),
        plan_allocation,
    ),
    in_place=lambda call: MemoryPlan(
        outputs=allocate_all(call),
        effect=Effect.UPDATE,
    ),
    **dict.fromkeys(
        ("nothing", "constant"),
        lambda call: MemoryPlan(outputs=(NO_BUFFER,) * len(call.op.outputs)),
    ),
    sum=lambda call: (
        MemoryPlan(outputs=(alias(),))
        if len(call.inputs) == 1
        else _forward_tensor(Effect.ADD, call)
    ),
    zeros=lambda call: _forward_tensor(Effect.ZEROS, call),
    # Either value that has the size of the result, broadcast or not (``SelectV2Op``).
    select=_forward_any(1, 2),
    switch=lambda call: MemoryPlan(outputs=(alias(),) * len(call.op.outputs)),
    merge=_plan_merge,
    cross_entropy=_plan_cross_entropy,
    read=lambda _: MemoryPlan(
        outputs=(Output(Way.ALIAS),),
        effect=Effect.READ,
    ),
    assign=lambda _: MemoryPlan(effect=Effect.ASSIGN, value=1),
)


def _count_held_bytes(op: Op) -> int:
    spec = op.outputs[0]
    if spec.dtype == "variant" and op.type in CONSTANTS:
        return LIST_BYTES  # an empty list

    if spec.dtype == "resource":
        return HANDLE_BYTES

    return spec.size_bytes or 0


# The CPU with its BFC allocator (``TF_CPU_ALLOCATOR_USE_BFC=1``).
CPU = KernelDevice(
    kind="cpu",
    allocator="bfc_cpu_allocator_for_gpu",
    plan=plan,
    held_bytes=_count_held_bytes,
    handle_bytes=HANDLE_BYTES,
    is_cheap=False,
)
