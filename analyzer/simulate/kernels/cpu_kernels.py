"""Kernel rules: their types and helpers, and what each op type does on a CPU.

A rule is a function from a ``Call`` to a ``MemoryPlan``: outputs that are allocated, forwarded or
aliased, and temporaries. The table ``op_types.toml`` lists the op types of each effect. The rules are
read from TensorFlow's kernels (``tensorflow/core/kernels``, and the headers of the 2.21 wheel) and were
checked against the allocator's events. An op type without a rule counts as allocating its outputs and is
reported.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from analyzer.model.contract.run_note import (
    CONSTANTS,
    Op,
    TensorSpec,
    VariableNote,
    op_types,
    read_op_types,
)

# Source of the buffer of an output.
Way = Enum("Way", "ALLOCATE FORWARD ALIAS NONE")

# Effect of a kernel on the variable whose handle is its first input, or on a TensorList.
Effect = Enum(
    "Effect",
    "NONE READ ASSIGN UPDATE "
    "NEW PUSH POP SET GET STACK UNSTACK RESIZE ZEROS ADD PACK UNPACK",
)

# bytes of buffers, axes of a tensor, or numbers of inputs
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """One output of a kernel."""

    # allocate it; forward the buffer of an input without other users, else allocate; share the
    # buffer of an input; or no buffer
    way: Way
    size_bytes: int = 0
    # Inputs to forward, in order of trial, or the input to share
    inputs: Sizes = ()
    region: str = "output"  # ``temp`` if the kernel allocates its result as a temporary
    elsewhere: bool = False  # whether it lies outside the memory of the device

    @property
    def is_known(self) -> bool:
        """Whether its bytes are known, or shared, even if the graph has no shape for it."""
        return self.elsewhere or self.size_bytes > 0 or self.way is Way.ALIAS


NO_BUFFER = Output(Way.NONE)
ELSEWHERE = Output(Way.NONE, elsewhere=True)


@dataclass(frozen=True)
class MemoryPlan:
    """The requests of one run of a kernel, and its effect on a variable or a list.

    Temporaries are freed at its end.
    """

    # Those of the op in order; further ones are the elements of a list that the kernel makes
    outputs: tuple[Output, ...] = ()
    before_bytes: Sizes = ()  # temporaries requested before the outputs
    after_bytes: Sizes = ()  # temporaries requested after the outputs
    # Workspace of cuDNN, allocated last: of the fastest algorithm, and the least and most likely
    workspaces_bytes: tuple[int, int, int] = (0, 0, 0)
    effect: Effect = Effect.NONE
    # input that becomes the value of the variable, or an element of the list
    value: int = 0
    # whether the op has a rule; else each output counts as allocated
    modelled: bool = True


def without_zeros(sizes_bytes: Iterable[int]) -> Sizes:
    """Return the sizes above 0 bytes; a kernel makes no request for the others."""
    return tuple(size for size in sizes_bytes if size)


FLOAT_BYTES = 4  # bytes of a ``float32``


@dataclass(frozen=True)
class Call:
    """One op and the facts about its inputs; sizes are 0 if unknown."""

    op: Op
    # Type and shape of each input; None if unknown
    inputs: tuple[TensorSpec | None, ...]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the plain value of an attribute."""
        return self.op.attrs.get(name, default)

    def _input(self, index: int) -> TensorSpec | None:
        if index < len(self.inputs):
            return self.inputs[index]

        return None

    def shape(self, index: int) -> Sizes | None:
        """Return the shape of an input; None unless it is fully known."""
        return spec.full_shape if (spec := self._input(index)) else None

    def out_shape(self, index: int = 0) -> Sizes | None:
        """Return the shape of an output; None unless it is fully known."""
        return self.op.outputs[index].full_shape

    def size(self, index: int = 0) -> int:
        """Return the bytes of an output."""
        return self.op.outputs[index].size_bytes or 0

    def input_size(self, index: int) -> int:
        """Return the bytes of an input."""
        if spec := self._input(index):
            return spec.size_bytes or 0

        return 0

    def item_bytes(self) -> int:
        """Return the bytes of one element of output 0; 4 if it has no elements."""
        elements = math.prod(self.out_shape() or (0,))
        if elements:
            return self.size() // elements

        return FLOAT_BYTES


# A function from a call to the memory plan of its kernel. Of a rule that raises, the op counts as one
# without a rule, because graphs are untrusted; so test the rule itself (``tests/unit/kernels``).
Rule = Callable[[Call], MemoryPlan]


def assign_rules(
    tables: Mapping[str, frozenset[str]], **rules: Rule
) -> dict[str, Rule]:
    """Return the rule of each op type; each rule has the name of a row of ``tables``."""
    return {op_type: rule for name, rule in rules.items() for op_type in tables[name]}


def allocate(call: Call, index: int = 0, region: str = "output") -> Output:
    """Return output ``index`` as a new allocation."""
    size_bytes = call.size(index)
    return Output(Way.ALLOCATE if size_bytes else Way.NONE, size_bytes, region=region)


def allocate_all(call: Call) -> tuple[Output, ...]:
    """Return every output as a new allocation."""
    return tuple(allocate(call, index) for index in range(len(call.op.outputs)))


def alias(source: int = 0) -> Output:
    """Return an output that shares the buffer of input ``source``."""
    return Output(Way.ALIAS, inputs=(source,))


def forward(call: Call, sources: Iterable[int], index: int = 0) -> Output:
    """Return an output that takes the buffer of the first input without other users.

    The input must have the same element type and number of elements; its shape may differ
    (``OpKernelContext::forward_input``). Otherwise the output is allocated.
    """
    shape = call.out_shape(index)
    size_bytes = call.size(index)
    if shape is None or not size_bytes:
        return allocate(call, index)

    fitting = (
        source
        for source in sources
        if (spec := call.inputs[source]) is not None
        and spec.dtype == call.op.outputs[index].dtype
        and (other := call.shape(source)) is not None
        and math.prod(other) == math.prod(shape)
    )

    return Output(Way.FORWARD, size_bytes, tuple(fitting))


def plan_forward(call: Call, sources: Iterable[int]) -> MemoryPlan:
    """Return the plan of a kernel that forwards an input to its first output."""
    return MemoryPlan(outputs=(forward(call, sources), *allocate_all(call)[1:]))


def plan_allocation(
    call: Call,
    after_bytes: Sequence[int] = (),
) -> MemoryPlan:
    """Return the plan of a kernel that allocates all outputs and some temporaries."""
    return MemoryPlan(
        outputs=allocate_all(call),
        after_bytes=without_zeros(after_bytes),
    )


@dataclass(frozen=True, kw_only=True)
class KernelDevice:
    """The kernels of one device."""

    kind: str
    allocator: str  # TensorFlow's name of the device's allocator
    plan: Callable[[Call], MemoryPlan]
    # Of a constant or an argument, held outside the step
    held_bytes: Callable[[Op], int]
    handle_bytes: int
    # bytes that TensorFlow allocates with the device and never frees
    scratch_bytes: int = 0
    # Element types of variables in host memory
    host_dtypes: frozenset[str] = frozenset()
    is_cheap: bool  # whether the executor gives no kernel to another thread

    def holds(self, variable: VariableNote) -> bool:
        """Say whether a variable of the step lies in this device's memory."""
        is_elsewhere = self.kind != "cpu" and "CPU" in variable.device
        return not is_elsewhere and variable.dtype not in self.host_dtypes


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
