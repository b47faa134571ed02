"""One op as its kernel sees it: input types, shapes and the few constant inputs that matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels.shared.memory_plan import Output, Way

ALIGNMENT_BYTES = 64
"""Eigen's vector alignment in TensorFlow's builds (``EIGEN_MAX_ALIGN_BYTES``): a slice that does not
start and end on it is copied, not shared."""


FLOAT_BYTES: Final = 4
"""Bytes of a ``float32``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op with what is known of its inputs.

    Attributes:
        op: The op.
        inputs: What each input is; None where it is not known.
        values: The value of each input where it is a small constant, flat.
        threads: Intra-op threads, which size oneDNN's scratchpads.
        unused: Outputs that no op uses (``OpKernelContext::output_required``).
    """

    op: Op
    inputs: tuple[TensorSpec | None, ...]
    values: tuple[tuple[int, ...] | None, ...]
    threads: int = 1
    unused: frozenset[int] = frozenset()

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's plain value."""
        return self.op.attrs.get(name, default)

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Return the fully known shape of an input, None where it is not."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        if spec is None or spec.shape is None or any(axis < 0 for axis in spec.shape):
            return None
        return spec.shape

    def out_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Return the fully known shape of an output, None where it is not."""
        shape = self.op.outputs[index].shape
        return None if shape is None or any(axis < 0 for axis in shape) else shape

    def size(self, index: int = 0) -> int:
        """Return the bytes of an output; 0 where it has none that show."""
        return self.op.outputs[index].size_bytes or 0

    def input_size(self, index: int) -> int:
        """Return the bytes of an input; 0 where it has none that show."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        return 0 if spec is None else spec.size_bytes or 0

    def item_bytes(self) -> int:
        """Return the bytes of one element of output 0; a float's where it has none."""
        elements = math.prod(self.out_shape() or (0,))
        return self.size() // elements if elements else FLOAT_BYTES


def allocate(call: Call, index: int = 0, region: str = "output") -> Output:
    """Return output ``index`` as a fresh allocation.

    Args:
        call: The op as its kernel sees it.
        index: Which of its outputs.
        region: TensorFlow's type of the request: ``output`` or ``temp``.
    """
    size_bytes = call.size(index)
    return Output(Way.ALLOCATE if size_bytes else Way.NONE, size_bytes, region=region)


def allocate_all(call: Call) -> tuple[Output, ...]:
    """Return every output as a fresh allocation."""
    return tuple(allocate(call, index) for index in range(len(call.op.outputs)))


def alias(source: int = 0) -> Output:
    """Return an output that shares the buffer of input ``source``."""
    return Output(Way.ALIAS, inputs=(source,))


def forward(call: Call, sources: Sequence[int], index: int = 0) -> Output:
    """Return an output that takes over the first input that nothing else uses, else allocates.

    TensorFlow asks for the same element type and the same number of elements; the shape may differ
    (``OpKernelContext::forward_input``).

    Args:
        call: The op as its kernel sees it.
        sources: Indexes of the inputs that are tried, in order.
        index: Which of its outputs.
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
