"""Shapes that the graph alone does not tell, and what they are taken from.

In this order: what the traced function says of a tensor (``set_shape`` after a Python function is in
no node); the values of the inputs that the step is given, from which small kernels work out what shapes
follow (the rows of a ragged tensor, the elements of a mask); what the user tells; and the most that an
op's result can be, such as every element of what ``Where`` looks at. For the last the stated range
begins with one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from analyzer.capture.graphs import traced_outputs
from analyzer.capture.shapes import (
    Known,
    Shape,
    argument_shapes,
    argument_sizes,
    infer_graph,
    infer_outputs,
)
from analyzer.contract.run import DataSize
from analyzer.graph.ops import TensorSpec
from analyzer.graph.structure import look_up

Outputs = dict[str, tuple[TensorSpec, ...]]

_ROUNDS: Final = 12
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The output specs of a graph's ops.

    Attributes:
        outputs: By name of the op.
        least: The same with one element where the most was taken; those alone that differ.
        sizes: Sizes that depend on data.
    """

    outputs: Outputs
    least: Outputs
    sizes: tuple[DataSize, ...]


def sized_outputs(
    function: Any, partitions: Sequence[Any], given: Sequence[Any], told: Mapping[str, int]
) -> Sized:
    """Return the output specs of the executed graphs' ops.

    Args:
        function: The step's concrete function.
        partitions: The graphs, one a device.
        given: The tensors that it is called with.
        told: Sizes that the user told, by op.
    """
    found = Sized(outputs={}, least={}, sizes=())
    traced = traced_outputs(function.graph)
    for graph_def in partitions:
        sizing = _Sizing(function, graph_def, given, traced, told)
        sized = sizing.run()
        found = Sized(
            outputs=found.outputs | sized.outputs,
            least=found.least | sized.least,
            sizes=found.sizes + sized.sizes,
        )
    return found


@dataclass(slots=True)
class _Sizing:
    """The rounds for one graph: what is learnt in one lets the shapes of more ops be inferred."""

    function: Any
    graph_def: Any
    given: Sequence[Any]
    traced: Mapping[str, tuple[TensorSpec, ...]]
    told: Mapping[str, int]
    known: Known = field(default_factory=Known)
    sizes: dict[str, DataSize] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(init=False)
    values: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = argument_shapes(self.function, self.given)
        self.values = argument_sizes(self.function, self.given)

    def run(self) -> Sized:
        """Learn shapes until there is nothing more to learn."""
        outputs: Outputs = {}
        for _ in range(_ROUNDS):
            outputs, graph = self._infer()
            if not any(map(_is_open, (spec for specs in outputs.values() for spec in specs))):
                break
            learnt = (
                self._from_trace(outputs)
                or self._from_inputs(outputs, graph)
                or self._from_user(outputs)
                or self._from_bounds(outputs)
            )
            if not learnt:
                break
        return Sized(outputs=outputs, least=self._least(outputs), sizes=tuple(self.sizes.values()))

    def _infer(self) -> tuple[Outputs, Any]:
        return infer_graph(self.graph_def, self.shapes, self.values, self.known)

    def _learn(self, tensor: str, spec: TensorSpec, shape: Shape) -> bool:
        """Note a shape where it says more than what is known."""
        merged = _merged(spec.shape, shape)
        if merged is None or merged == spec.shape or self.known.shapes.get(tensor) == merged:
            return False
        self.known.shapes[tensor] = merged
        return True

    def _from_trace(self, outputs: Outputs) -> bool:
        learnt = False
        for name, specs in outputs.items():
            if not any(map(_is_open, specs)):
                continue
            for index, (spec, other) in enumerate(
                zip(specs, look_up(name, self.traced) or (), strict=False)
            ):
                if _is_open(spec) and other.dtype == spec.dtype:
                    learnt |= self._learn(f"{name}:{index}", spec, other.shape)
        return learnt

    def _from_inputs(self, outputs: Outputs, graph: Any) -> bool:
        evaluating = _Evaluating(self.graph_def, graph, self.function, self.given, outputs)
        learnt = False
        for tensor, value in evaluating.open_values().items():
            name, _, index = tensor.rpartition(":")
            spec = outputs[name][int(index)]
            if self._learn(tensor, spec, tuple(value.shape)):
                learnt = True
                if value.ndim and not evaluating.is_behind(name):
                    self.sizes[name] = DataSize(op=name, size=int(value.shape[0]), basis="inputs")
        for tensor, value in evaluating.numbers().items():
            if tensor not in self.known.values:
                self.known.values[tensor] = value
                learnt = True
        for name, shape in evaluating.special_shapes().items():
            if self._learn(f"{name}:0", outputs[name][0], shape):
                learnt = True
                self.sizes[name] = DataSize(op=name, size=int(shape[0]), basis="inputs")
        return learnt

    def _from_user(self, outputs: Outputs) -> bool:
        learnt = False
        for name, size in self.told.items():
            for index, spec in enumerate(outputs.get(name, ())):
                if spec.shape is None or -1 not in spec.shape:
                    continue
                first = spec.shape.index(-1)
                shape = (*spec.shape[:first], size, *spec.shape[first + 1 :])
                if self._learn(f"{name}:{index}", spec, shape):
                    learnt = True
                    self.sizes[name] = DataSize(op=name, size=size, basis="told")
        return learnt

    def _from_bounds(self, outputs: Outputs) -> bool:
        learnt = False
        for node in self.graph_def.node:
            rule = _BOUNDS.get(node.op)
            specs = outputs.get(node.name, ())
            if rule is None or not any(map(_is_open, specs)):
                continue
            most = rule([_spec_of(outputs, name) for name in node.input if name[0] != "^"])
            if most is None:
                continue
            for index, spec in enumerate(specs):
                shape = (
                    None if spec.shape is None else tuple(most if a < 0 else a for a in spec.shape)
                )
                if self._learn(f"{node.name}:{index}", spec, shape):
                    learnt = True
                    self.sizes[node.name] = DataSize(op=node.name, size=most, basis="most")
        return learnt

    def _least(self, outputs: Outputs) -> Outputs:
        """Return the specs with one element where the most was taken."""
        most = {name for name, size in self.sizes.items() if size.basis == "most"}
        if not most:
            return {}
        open_shapes = infer_outputs(
            self.graph_def, self.shapes, self.values, _without(self.known, most)
        )
        shapes = {
            f"{name}:{index}": tuple(1 if axis < 0 else axis for axis in spec.shape)
            for name in most
            for index, spec in enumerate(open_shapes[name])
            if spec.shape is not None and _is_open(spec)
        }
        known = replace(self.known, shapes={**_without(self.known, most).shapes, **shapes})
        try:
            least = infer_outputs(self.graph_def, self.shapes, self.values, known)
        except (ValueError, tf.errors.OpError):
            return {}
        return {name: specs for name, specs in least.items() if specs != outputs[name]}


class _Evaluating:
    """Values that follow from the inputs given alone, by kernels without a state."""

    def __init__(
        self, graph_def: Any, graph: Any, function: Any, given: Sequence[Any], outputs: Outputs
    ) -> None:
        self._nodes = {node.name: node for node in graph_def.node}
        self._graph = graph
        self._outputs = outputs
        self._fed: dict[str, Any] = {}
        for node in graph_def.node:
            index = int(node.attr["index"].i) if node.op in ("_Arg", "_DeviceArg") else -1
            if not 0 <= index < len(given) or not hasattr(given[index], "numpy"):
                continue
            if given[index].dtype == function.inputs[index].dtype:
                self._fed[node.name] = given[index]
        self._follows: dict[str, bool] = {}
        for node in graph_def.node:
            self._note(node.name)

    def _note(self, name: str) -> None:
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
            if _is_open(spec) and self._follows.get(name) and name not in self._fed
        )

    def is_behind(self, name: str) -> bool:
        """Say whether the shape of one of an op's inputs is not known either."""
        specs = (_spec_of(self._outputs, source) for source in self._nodes[name].input)
        return any(spec is not None and _is_open(spec) for spec in specs)

    def numbers(self) -> dict[str, Any]:
        """Return the values of small whole numbers that ops read whose shape is not known."""
        wanted = {
            _tensor_of(source)
            for name, specs in self._outputs.items()
            if any(map(_is_open, specs)) and not self._follows.get(name)
            for source in self._nodes[name].input
            if source[0] != "^" and self._is_number(source)
        }
        return self._values(sorted(wanted))

    def _is_number(self, source: str) -> bool:
        name = _op_of(source)
        spec = _spec_of(self._outputs, source)
        if not self._follows.get(name) or self._nodes[name].op in ("Const", "HostConst"):
            return False
        if spec is None or spec.dtype not in ("int32", "int64") or _is_open(spec):
            return False
        return math.prod(spec.shape or ()) <= _SMALL

    def special_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that whole numbers tell, and no shape function."""
        found: dict[str, tuple[int, ...]] = {}
        for name, specs in self._outputs.items():
            node = self._nodes[name]
            if not specs or not _is_open(specs[0]) or self._follows.get(name):
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
        data = _spec_of(self._outputs, node.input[0])
        ids = _tensor_of(node.input[_SEGMENTS[node.op]])
        if data is None or not data.shape or not self._follows.get(_op_of(ids)):
            return None
        found = self._values([ids]).get(ids)
        if found is None or any(axis < 0 for axis in data.shape[1:]):
            return None
        return (int(found[-1]) + 1 if len(found) else 0, *data.shape[1:])

    def _padded(self, node: Any) -> tuple[int, ...] | None:
        """Return the shape of a ragged tensor made whole, which its rows tell: with bytes for values."""
        values = _spec_of(self._outputs, node.input[1])
        if values is None or _is_open(values) or math.prod(values.shape or ()) > _EVALUATED_BYTES:
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

    def _values(self, tensors: Any) -> dict[str, Any]:
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


def _elements(inputs: list[TensorSpec | None]) -> int | None:
    first = inputs[0]
    if first is None or first.shape is None or _is_open(first):
        return None
    return math.prod(first.shape)


def _rows(inputs: list[TensorSpec | None]) -> int | None:
    first = inputs[0]
    if first is None or not first.shape or first.shape[0] < 0:
        return None
    return first.shape[0]


_BOUNDS: Final[dict[str, Callable[[list[TensorSpec | None]], int | None]]] = {
    "Where": _elements,
    "Unique": _elements,
    "UniqueV2": _elements,
    "UniqueWithCounts": _elements,
    "UniqueWithCountsV2": _elements,
    "ListDiff": _elements,
    "DynamicPartition": _rows,
    "SparseSegmentSum": lambda inputs: _elements(inputs[2:]),
    "SparseSegmentMean": lambda inputs: _elements(inputs[2:]),
    "SparseSegmentSqrtN": lambda inputs: _elements(inputs[2:]),
    "SegmentSum": lambda inputs: _elements(inputs[1:]),
    "SegmentMean": lambda inputs: _elements(inputs[1:]),
}
"""Ops whose result has as many rows as the data say, and the most that these can be."""


def _is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is not known."""
    if spec.dtype in ("resource", "variant", ""):
        return False
    return spec.shape is None or any(axis < 0 for axis in spec.shape)


def _merged(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return what two shapes say together; None where they say nothing or not the same."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None
    if any(a != b and a >= 0 and b >= 0 for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))


def _without(known: Known, ops: set[str]) -> Known:
    shapes = {t: shape for t, shape in known.shapes.items() if t.rpartition(":")[0] not in ops}
    return replace(known, shapes=shapes)


def _spec_of(outputs: Outputs, source: str) -> TensorSpec | None:
    name, _, index = _tensor_of(source).rpartition(":")
    specs = outputs.get(name, ())
    return specs[int(index)] if int(index) < len(specs) else None


def _op_of(source: str) -> str:
    return source.removeprefix("^").partition(":")[0]


def _tensor_of(source: str) -> str:
    return source if ":" in source else f"{source}:0"
