"""Values that follow from the inputs that a step is given: the small kernels that decide shapes, run.

Nothing of the step itself runs: no node with a state, a weight or a branch before it is worked out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from analyzer.capture.initializers.variable_births import is_stand_in
from analyzer.capture.private_names import op_def_registry
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, TensorSpec

Outputs = dict[str, tuple[TensorSpec, ...]]

_SMALL: Final = 64
"""Elements of a whole-number tensor that may be a shape, a limit or a number of segments."""
_EVALUATED_BYTES: Final = 64 << 20
"""Most bytes of a tensor that is worked out to learn a shape."""
_NO_VALUE: Final = frozenset(
    (
        *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge", "Enter", "Exit", "NextIteration"),
        *(
            "LoopCond",
            "Placeholder",
            "VarHandleOp",
            "_Arg",
            "_DeviceArg",
            "_Retval",
            "_DeviceRetval",
        ),
    )
)
_SEGMENTS: Final = {
    **dict.fromkeys(("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"), 1),
    **dict.fromkeys(("SegmentSumV2", "SegmentProdV2", "SegmentMaxV2", "SegmentMinV2"), 1),
    **dict.fromkeys(("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 2),
}
"""Sums by segment, and which input says the segment of each row, in rising order: the last one tells how
many there are (``SegmentReductionOp``, ``SparseSegmentReductionOpBase``)."""


class Evaluator:
    """Values that follow from the inputs given alone, by kernels without a state."""

    def __init__(
        self, graph_def: Any, graph: Any, function: Any, given: Sequence[Any], outputs: Outputs
    ) -> None:
        self._nodes = {node.name: node for node in graph_def.node}
        self._graph = graph
        self._outputs = outputs
        self._fed: dict[str, Any] = {}
        for node in graph_def.node:
            index = int(node.attr["index"].i) if node.op in ARGUMENT_TYPES else -1
            if not 0 <= index < len(given) or not hasattr(given[index], "numpy"):
                continue
            if given[index].dtype.is_floating and is_stand_in(given[index]):
                continue
            if given[index].dtype == function.inputs[index].dtype:
                self._fed[node.name] = given[index]
        self._follows: dict[str, bool] = {}
        for node in graph_def.node:
            self._record(node.name)

    def _record(self, name: str) -> None:
        """Say of a node and of all before it whether its value follows from the inputs."""
        stack = [(name, False)]
        while stack:
            current, is_ready = stack.pop()
            sources = [_op_of(source) for source in self._nodes[current].input]
            if is_ready:
                self._follows[current] = all(self._follows[source] for source in sources)
            elif current not in self._follows:
                self._follows[current] = current in self._fed  # and so is what comes back to itself
                if self._may_follow(self._nodes[current]):
                    stack.append((current, True))
                    stack.extend((source, False) for source in sources)

    def _may_follow(self, node: Any) -> bool:
        definition = op_def_registry.get(node.op)
        specs = self._outputs.get(node.name, ())
        return (
            definition is not None
            and not definition.is_stateful
            and node.op not in _NO_VALUE
            and bool(specs)
            and all(spec.dtype not in ("resource", "variant", "string", "") for spec in specs)
            and all((spec.size_bytes or 0) <= _EVALUATED_BYTES for spec in specs)
        )

    def open_values(self) -> dict[str, Any]:
        """Return the values of tensors whose shape is not known."""
        return self._values(
            f"{name}:{index}"
            for name, specs in self._outputs.items()
            for index, spec in enumerate(specs)
            if is_open(spec) and self._follows.get(name) and name not in self._fed
        )

    def is_behind(self, name: str) -> bool:
        """Say whether the shape of one of an op's inputs is not known either."""
        specs = (look_up_spec(self._outputs, source) for source in self._nodes[name].input)
        return any(spec is not None and is_open(spec) for spec in specs)

    def numbers(self) -> dict[str, Any]:
        """Return the values of small whole numbers that ops read whose shape is not known."""
        wanted = {
            _tensor_of(source)
            for name, specs in self._outputs.items()
            if any(map(is_open, specs)) and not self._follows.get(name)
            for source in self._nodes[name].input
            if source[0] != "^" and self._is_number(source)
        }
        return self._values(sorted(wanted))

    def _is_number(self, source: str) -> bool:
        name = _op_of(source)
        spec = look_up_spec(self._outputs, source)
        if not self._follows.get(name) or self._nodes[name].op in ("Const", "HostConst"):
            return False
        if spec is None or spec.dtype not in ("int32", "int64") or is_open(spec):
            return False
        return math.prod(spec.shape or ()) <= _SMALL

    def special_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that whole numbers tell, and no shape function."""
        found: dict[str, tuple[int, ...]] = {}
        for name, specs in self._outputs.items():
            node = self._nodes[name]
            if not specs or not is_open(specs[0]) or self._follows.get(name):
                continue
            if node.op in _SEGMENTS:
                shape = self._segments(node)
            elif node.op == "RaggedTensorToTensor":
                shape = self._padded(node)
            else:
                continue
            if shape is not None:
                found[name] = shape
        return found

    def _segments(self, node: Any) -> tuple[int, ...] | None:
        data = look_up_spec(self._outputs, node.input[0])
        ids = _tensor_of(node.input[_SEGMENTS[node.op]])
        if data is None or not data.shape or not self._follows.get(_op_of(ids)):
            return None
        found = self._values([ids]).get(ids)
        if found is None or any(axis < 0 for axis in data.shape[1:]):
            return None
        return (int(found[-1]) + 1 if len(found) else 0, *data.shape[1:])

    def _padded(self, node: Any) -> tuple[int, ...] | None:
        """Return the shape of a ragged tensor made whole, which its rows tell: with bytes for values."""
        values = look_up_spec(self._outputs, node.input[1])
        if values is None or is_open(values) or math.prod(values.shape or ()) > _EVALUATED_BYTES:
            return None
        rows = [name for name in node.input[3:] if name[0] != "^"]
        if not all(self._follows.get(_op_of(name)) for name in [node.input[0], *rows]):
            return None
        with self._graph.as_default():
            made = tf.raw_ops.RaggedTensorToTensor(
                shape=self._graph.get_tensor_by_name(_tensor_of(node.input[0])),
                values=tf.zeros(values.shape, tf.uint8),
                default_value=tf.zeros((), tf.uint8),
                row_partition_tensors=[
                    self._graph.get_tensor_by_name(_tensor_of(name)) for name in rows
                ],
                row_partition_types=[
                    kind.decode() for kind in node.attr["row_partition_types"].list.s
                ],
            )
        found = self._values([made.name]).get(made.name)
        return None if found is None else tuple(found.shape)

    def _values(self, tensors: Iterable[str]) -> dict[str, Any]:
        """Return the values of those that can be worked out."""
        wanted = list(tensors)
        if not wanted:
            return {}
        feeds = {
            f"{name}:0": tensor.numpy()
            for name, tensor in self._fed.items()
            if self._graph.get_operation_by_name(name).type == "Placeholder"
        }
        found: dict[str, Any] = {}
        with tf.compat.v1.Session(graph=self._graph) as session:
            try:
                found = dict(zip(wanted, session.run(wanted, feeds), strict=True))
            except (tf.errors.OpError, ValueError):
                for tensor in wanted:
                    try:
                        found[tensor] = session.run(tensor, feeds)
                    except (tf.errors.OpError, ValueError):
                        continue
        return {tensor: np.asarray(value) for tensor, value in found.items()}


def is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is not known."""
    if spec.dtype in ("resource", "variant", ""):
        return False
    return spec.shape is None or any(axis < 0 for axis in spec.shape)


def look_up_spec(outputs: Outputs, source: str) -> TensorSpec | None:
    """Return what a node's input is, by its name there; None where it is not known."""
    name, _, index = _tensor_of(source).rpartition(":")
    specs = outputs.get(name, ())
    return specs[int(index)] if int(index) < len(specs) else None


def _op_of(source: str) -> str:
    return source.removeprefix("^").partition(":")[0]


def _tensor_of(source: str) -> str:
    return source if ":" in source else f"{source}:0"
