"""One op as its kernel sees it: types, shapes and constant inputs; and plans built from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.ops import op_types
from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Output, Way, without_zeros

ALIGNMENT_BYTES: Final = 64
"""Eigen's vector alignment in TensorFlow's builds (``EIGEN_MAX_ALIGN_BYTES``). A slice that does not
start and end on it is copied instead of shared."""

FLOAT_BYTES: Final = 4
"""Bytes of a ``float32``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op and what is known about its inputs.

    Attributes:
        op: The op.
        inputs: Type and shape of each input; None if unknown.
        values: Value of each input if it is a small constant, flat; else None.
        threads: Intra-op threads, which determine the size of oneDNN's scratchpads.
        unused: Outputs that no op uses (``OpKernelContext::output_required``).
    """

    op: Op
    inputs: tuple[TensorSpec | None, ...]
    values: tuple[tuple[int, ...] | None, ...]
    threads: int = 1
    unused: frozenset[int] = frozenset()

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the plain value of an attribute."""
        return self.op.attrs.get(name, default)

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Return the shape of an input; None unless it is fully known."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        if spec is None or spec.shape is None or any(axis < 0 for axis in spec.shape):
            return None
        return spec.shape

    def out_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Return the shape of an output; None unless it is fully known."""
        shape = self.op.outputs[index].shape
        return None if shape is None or any(axis < 0 for axis in shape) else shape

    def value(self, index: int) -> tuple[int, ...] | None:
        """Return the value of an input if it is a small constant; else None."""
        return self.values[index] if index < len(self.values) else None

    def size(self, index: int = 0) -> int:
        """Return the bytes of an output; 0 if unknown."""
        return self.op.outputs[index].size_bytes or 0

    def input_size(self, index: int) -> int:
        """Return the bytes of an input; 0 if unknown."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        return 0 if spec is None else spec.size_bytes or 0

    def item_bytes(self) -> int:
        """Return the bytes of one element of output 0; 4 if it has no elements."""
        elements = math.prod(self.out_shape() or (0,))
        return self.size() // elements if elements else FLOAT_BYTES


Rule: TypeAlias = Callable[[Call], MemoryPlan]
"""A function from a call to the memory plan of its kernel."""


def rule_table(*rows: tuple[Rule, str | frozenset[str]]) -> dict[str, Rule]:
    """Return the rule of each op type; of several rows with one op type the last counts."""
    return {
        op_type: rule
        for rule, types in rows
        for op_type in (op_types(types) if isinstance(types, str) else types)
    }


def allocate(call: Call, index: int = 0, region: str = "output") -> Output:
    """Return output ``index`` as a new allocation.

    Args:
        region: TensorFlow's type of the request: ``output`` or ``temp``.
    """
    size_bytes = call.size(index)
    return Output(Way.ALLOCATE if size_bytes else Way.NONE, size_bytes, region=region)


def allocate_all(call: Call) -> tuple[Output, ...]:
    """Return every output as a new allocation."""
    return tuple(allocate(call, index) for index in range(len(call.op.outputs)))


def alias(source: int = 0) -> Output:
    """Return an output that shares the buffer of input ``source``."""
    return Output(Way.ALIAS, inputs=(source,))


def forward(call: Call, sources: Sequence[int], index: int = 0) -> Output:
    """Return an output that takes the buffer of the first input without other users.

    The input must have the same element type and number of elements; its shape may differ
    (``OpKernelContext::forward_input``). Otherwise the output is allocated.
    """
    spec = call.op.outputs[index]
    shape = call.out_shape(index)
    size_bytes = call.size(index)
    if shape is None or not size_bytes:
        return allocate(call, index)
    fitting = []
    for source in sources:
        other, other_shape = call.inputs[source], call.shape(source)
        if other is None or other_shape is None or other.dtype != spec.dtype:
            continue
        if math.prod(other_shape) == math.prod(shape):
            fitting.append(source)
    return Output(Way.FORWARD, size_bytes, tuple(fitting))


def plan_alias(source: int = 0) -> MemoryPlan:
    """Return the plan of a kernel whose only output shares the buffer of an input."""
    return MemoryPlan(outputs=(alias(source),))


def plan_forward(call: Call, sources: Sequence[int]) -> MemoryPlan:
    """Return the plan of a kernel that forwards an input to its only output."""
    return MemoryPlan(outputs=(forward(call, sources),))


def plan_allocation(
    call: Call, *, before_bytes: Sequence[int] = (), after_bytes: Sequence[int] = ()
) -> MemoryPlan:
    """Return the plan of a kernel that allocates all outputs and some temporaries."""
    return MemoryPlan(
        outputs=allocate_all(call),
        before_bytes=without_zeros(before_bytes),
        after_bytes=without_zeros(after_bytes),
    )
