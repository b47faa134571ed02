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

import tensorflow as tf

from analyzer.capture.graph.list_elements import infer_list_elements
from analyzer.capture.graph.plain_graphs import read_traced_outputs
from analyzer.capture.graph.shape_inference import (
    Known,
    Shape,
    find_refuted_tensor,
    get_argument_shapes,
    get_argument_sizes,
    infer_graph,
    infer_outputs,
)
from analyzer.capture.graph.value_evaluation import Evaluator, Outputs, is_open, look_up_spec
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import DataSize
from analyzer.model.graph.graph_index import find_inlined

_IMAGE_RANKS: Final = (4, 5)
"""Axes of what the layout pass transposes (``generic_layout_optimizer.cc``)."""
_CALLS: Final = frozenset(
    ("PartitionedCall", "StatefulPartitionedCall", "PyFunc", "PyFuncStateless", "EagerPyFunc")
)
"""Types that the layout pass leaves as they are."""

_ROUNDS: Final = 12  # of inference; what one learns, the next begins with


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


def infer_sizes(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    told: Mapping[str, int],
    *,
    transposed: bool = False,
) -> Sized:
    """Return the output specs of the executed graphs' ops.

    Args:
        function: The step's concrete function.
        partitions: The graphs, one a device.
        given: The tensors that it is called with.
        told: Sizes that the user told, by op.
        transposed: The graphs' images may have another order of axes than the traced ones.
    """
    found = Sized(outputs={}, least={}, sizes=())
    traced = read_traced_outputs(function.graph)
    for graph_def in partitions:
        sizing = _Sizing(function, graph_def, given, traced, told, transposed)
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
    transposed: bool = False
    known: Known = field(default_factory=Known)
    sizes: dict[str, DataSize] = field(default_factory=dict)
    refuted: set[str] = field(default_factory=set)
    shapes: dict[int, Shape] = field(init=False)
    values: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = get_argument_shapes(self.function, self.given)
        self.values = get_argument_sizes(self.function, self.given)

    def run(self) -> Sized:
        """Learn shapes until there is nothing more to learn."""
        outputs: Outputs = {}
        for _ in range(_ROUNDS):
            outputs, graph = self._infer()
            if not any(map(is_open, (spec for specs in outputs.values() for spec in specs))):
                break
            learnt = (
                self._from_trace(outputs)
                or self._from_lists(outputs, graph)
                or self._from_inputs(outputs, graph)
                or self._from_user(outputs)
                or self._from_bounds(outputs)
            )
            if not learnt:
                break
        return Sized(outputs=outputs, least=self._least(outputs), sizes=tuple(self.sizes.values()))

    def _infer(self) -> tuple[Outputs, Any]:
        """Infer the shapes; one that was learnt and that the rest contradicts is forgotten for good.

        A traced op of the same name may be another one: bodies of functions are inlined under the name
        of their call.
        """
        while True:
            try:
                return infer_graph(self.graph_def, self.shapes, self.values, self.known)
            except ValueError as error:
                tensor = find_refuted_tensor(str(error))
                if self.known.shapes.pop(tensor, None) is None:
                    raise
                self.refuted.add(tensor)

    def _learn(self, tensor: str, spec: TensorSpec, shape: Shape) -> bool:
        """Note a shape where it says more than what is known."""
        merged = _merged(spec.shape, shape)
        if tensor in self.refuted:
            return False
        if merged is None or merged == spec.shape or self.known.shapes.get(tensor) == merged:
            return False
        self.known.shapes[tensor] = merged
        return True

    def _from_trace(self, outputs: Outputs) -> bool:
        learnt = False
        calls = {node.name for node in self.graph_def.node if node.op in _CALLS}
        for name, specs in outputs.items():
            if not any(map(is_open, specs)):
                continue
            for index, (spec, other) in enumerate(
                zip(specs, find_inlined(name, self.traced) or (), strict=False)
            ):
                if self.transposed and name not in calls and len(other.shape or ()) in _IMAGE_RANKS:
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    learnt |= self._learn(f"{name}:{index}", spec, other.shape)
        return learnt

    def _from_lists(self, outputs: Outputs, graph: Any) -> bool:
        learnt = False
        for element in infer_list_elements(self.graph_def, graph, outputs):
            spec = look_up_spec(outputs, element.tensor)
            if spec is not None and is_open(spec):
                learnt |= self._learn(element.tensor, spec, element.shape)
            if element.value is not None and element.tensor not in self.known.values:
                self.known.values[element.tensor] = element.value
                learnt = True
        return learnt

    def _from_inputs(self, outputs: Outputs, graph: Any) -> bool:
        evaluating = Evaluator(self.graph_def, graph, self.function, self.given, outputs)
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
            if rule is None or not any(map(is_open, specs)):
                continue
            most = rule([look_up_spec(outputs, name) for name in node.input if name[0] != "^"])
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
            if spec.shape is not None and is_open(spec)
        }
        known = replace(self.known, shapes={**_without(self.known, most).shapes, **shapes})
        try:
            least = infer_outputs(self.graph_def, self.shapes, self.values, known)
        except (ValueError, tf.errors.OpError):
            return {}
        return {name: specs for name, specs in least.items() if specs != outputs[name]}


def _elements(inputs: list[TensorSpec | None]) -> int | None:
    first = inputs[0]
    if first is None or first.shape is None or is_open(first):
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
