"""One op as its kernel sees it: types, shapes and constant inputs; and plans built from it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from analyzer.model.contract.run_note import Op, TensorSpec, VariableNote

# Source of the buffer of an output.
Way = Enum("Way", "ALLOCATE FORWARD ALIAS NONE")

# Effect of a kernel on the variable whose handle is its first input, or on a TensorList.
Effect = Enum(
    "Effect",
    "NONE READ ASSIGN UPDATE "
    "NEW PUSH POP SET GET STACK UNSTACK RESIZE ZEROS ADD PACK UNPACK",
)


@dataclass(frozen=True)
class Output:
    """One output of a kernel."""

    # allocate it; forward the buffer of an input without other users, else allocate; share the
    # buffer of an input; or no buffer
    way: Way
    size_bytes: int = 0
    # Inputs to forward, in order of trial, or the input to share
    inputs: tuple[int, ...] = ()
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
    before_bytes: tuple[int, ...] = ()  # temporaries requested before the outputs
    after_bytes: tuple[int, ...] = ()  # temporaries requested after the outputs
    # Workspace of cuDNN, allocated last: of the fastest algorithm, and the least and most likely
    workspaces_bytes: tuple[int, int, int] = (0, 0, 0)
    effect: Effect = Effect.NONE
    # input that becomes the value of the variable, or an element of the list
    value: int = 0
    # whether the op has a rule; else each output counts as allocated
    modelled: bool = True


def without_zeros(sizes_bytes: Iterable[int]) -> tuple[int, ...]:
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

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Return the shape of an input; None unless it is fully known."""
        return spec.full_shape if (spec := self._input(index)) else None

    def out_shape(self, index: int = 0) -> tuple[int, ...] | None:
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
