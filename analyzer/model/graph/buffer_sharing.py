"""Tensors that share one buffer.

A kernel may pass its input's buffer on: it only changes the view (``Reshape``), moves the tensor
through control flow (``Switch``), or writes in place because no other op needs the input
(*forwarding*, which shows in a trace as an output without an allocation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from analyzer.model.contract.graph_note import Op, split_tensor
from analyzer.model.graph.graph_index import GraphIndex

# op_kernel.h, forward_ref_input_to_ref_output / set_output(i, input(i)); control_flow_ops.cc;
# list_kernels.cc: a list holds references to its elements.
ALIAS_OPS: Final = frozenset(
    {
        "Bitcast",
        "Enter",
        "EnsureShape",
        "Exit",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "LoopCond",
        "Merge",
        "NextIteration",
        "PreventGradient",
        "RefEnter",
        "RefExit",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
        "Switch",
        "_ReadVariablesOp",
    }
)
LIST_OPS: Final = frozenset(
    {
        "TensorListPushBack",
        "TensorListPopBack",
        "TensorListSetItem",
        "TensorListGetItem",
        "TensorListFromTensor",
        "TensorListResize",
        "EmptyTensorList",
        "TensorListReserve",
    }
)
_ALL_INPUTS: Final = frozenset({"Merge", "NextIteration"})


class Sharing:
    """Sets of tensors that share a buffer."""

    def __init__(self, structure: GraphIndex, own: Collection[str]) -> None:
        """Build the sets; an output outside ``own`` must lie in the buffer of one of its op's inputs."""
        self._structure = structure
        self._parent: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        for op in structure.ops.values():
            self._unite_op(op, own)
        self._members: dict[str, list[str]] = {}
        for tensor in self._parent:
            self._members.setdefault(self.root(tensor), []).append(tensor)

    def root(self, tensor: str) -> str:
        """Return the representative of the set that contains ``tensor``."""
        parent = self._parent
        while (above := parent.get(tensor, tensor)) != tensor:
            parent[tensor] = parent.get(above, above)
            tensor = above
        return tensor

    def members(self, tensor: str) -> Sequence[str]:
        """Return all tensors that share ``tensor``'s buffer, including itself."""
        return self._members.get(self.root(tensor), [tensor])

    def consumers(self, tensor: str) -> Iterable[str]:
        """Yield the names of the ops that use the buffer, except ops that only pass it on."""
        seen = set()
        for member in self.members(tensor):
            for name in self._structure.consumers.get(member, ()):
                op = self._structure.ops[name]
                if name not in seen and op.type not in ALIAS_OPS:
                    seen.add(name)
                    yield name

    def _unite(self, first: str, second: str) -> None:
        self._parent.setdefault(first, first)
        self._parent.setdefault(second, second)
        one, other = self.root(first), self.root(second)
        if one != other:
            self._parent[other] = one

    def _unite_op(self, op: Op, own: Collection[str]) -> None:
        if not op.inputs or not op.outputs:
            return
        if op.type in ALIAS_OPS:
            self._unite_aliases(op)
        elif op.type in LIST_OPS:
            for tensor in op.inputs:
                spec = self._structure.spec(tensor)
                if spec is None or spec.dtype == "variant" or (spec.shape or ()) != ():
                    for index in range(len(op.outputs)):
                        self._unite(tensor, f"{op.name}:{index}")
        else:
            self._unite_forwarded(op, own)

    def _unite_aliases(self, op: Op) -> None:
        """Unite the inputs of an op that hands its inputs on with its outputs."""
        if op.type == "IdentityN":
            for index, tensor in enumerate(op.inputs[: len(op.outputs)]):
                self._unite(tensor, f"{op.name}:{index}")
            return
        sources = op.inputs if op.type in _ALL_INPUTS else op.inputs[:1]
        for tensor in sources:
            for index in range(2) if op.type == "Switch" else range(1):
                self._unite(tensor, f"{op.name}:{index}")

    def _unite_forwarded(self, op: Op, own: Collection[str]) -> None:
        """Unite each output without a buffer with the matching input that has the fewest consumers."""
        ops, consumers = self._structure.ops, self._structure.consumers
        for index, output in enumerate(op.outputs):
            if f"{op.name}:{index}" in own:
                continue
            size_bytes = self._size(f"{op.name}:{index}")
            if not size_bytes:
                continue
            makers = ((tensor, ops.get(split_tensor(tensor)[0])) for tensor in op.inputs)
            candidates = [
                tensor
                for tensor, maker in makers
                if (spec := self._structure.spec(tensor)) is not None
                and spec.dtype == output.dtype
                and self._size(tensor) == size_bytes
                and maker is not None
                and maker.type not in ("ReadVariableOp", "Const", "_Arg")
            ]
            if candidates:
                fewest = min(candidates, key=lambda tensor: len(consumers.get(tensor, ())))
                self._unite(fewest, f"{op.name}:{index}")

    def _size(self, tensor: str) -> int:
        """Return the tensor's bytes, 0 if unknown.

        Ops that TensorFlow's optimiser made have no shape. Their output counts like the largest input.
        """
        known = self._sizes.get(tensor)
        if known is not None:
            return known
        self._sizes[tensor] = 0  # stops at cycles
        spec = self._structure.spec(tensor)
        size_bytes = spec.size_bytes if spec is not None else 0
        if size_bytes is None and spec is not None:
            maker = self._structure.ops[split_tensor(tensor)[0]]
            specs = ((source, self._structure.spec(source)) for source in maker.inputs)
            same = (source for source, found in specs if found and found.dtype == spec.dtype)
            size_bytes = max(map(self._size, same), default=0)
        self._sizes[tensor] = size_bytes or 0
        return self._sizes[tensor]
