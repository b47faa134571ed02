"""Shapes that the graph alone does not tell, from the best available source.

The sources, in this order: the traced function (``set_shape`` after a Python function leaves no node);
the elements that are put into lists; the values of the given inputs, from which small kernels compute
shapes (the rows of a ragged tensor, the elements of a mask); the user's assumptions; and the upper bound
of an op's result, such as all elements for ``Where``. With an upper bound, the stated range begins at
one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import read_traced_outputs
from analyzer.capture.graph.shape_inference import (
    Known,
    Shape,
    find_refuted_tensor,
    get_argument_shapes,
    get_argument_sizes,
    infer_graph,
)
from analyzer.capture.graph.value_evaluation import (
    Evaluator,
    Outputs,
    infer_list_elements,
    is_open,
    look_up_spec,
)
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.contract.run_note import DataSize
from analyzer.model.graph.graph_index import find_inlined

_IMAGE_RANKS: Final = (4, 5)
"""Ranks of the tensors that the layout pass transposes (``generic_layout_optimizer.cc``)."""
_CALLS: Final = frozenset(
    ("PartitionedCall", "StatefulPartitionedCall", "PyFunc", "PyFuncStateless", "EagerPyFunc")
)
"""Op types that the layout pass does not change."""
_MAX_ROUNDS: Final = 12  # of inference; each starts with the shapes learnt in earlier rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredSizes:
    """The output specs of a graph's ops.

    Attributes:
        least: The specs with one element instead of the upper bound; only ops that differ.
    """

    outputs: Outputs
    least: Outputs
    sizes: tuple[DataSize, ...]


def infer_sizes(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    assumed: Mapping[str, int],
    *,
    transposed: bool = False,
) -> InferredSizes:
    """Return the output specs of the executed graphs' ops.

    Args:
        transposed: Images in the graphs may have another order of axes than in the traced graphs.
    """
    result = InferredSizes(outputs={}, least={}, sizes=())
    traced = read_traced_outputs(function.graph)
    for graph_def in partitions:
        sized = _Sizing(function, graph_def, given, traced, assumed, transposed).run()
        result = InferredSizes(
            outputs=result.outputs | sized.outputs,
            least=result.least | sized.least,
            sizes=result.sizes + sized.sizes,
        )
    return result


@dataclass(slots=True)
class _Sizing:
    """The rounds of inference for one graph."""

    function: Any
    graph_def: Any
    given: Sequence[Any]
    traced: Mapping[str, tuple[TensorSpec, ...]]
    assumed: Mapping[str, int]
    transposed: bool = False
    known: Known = field(default_factory=Known)
    sizes: dict[str, DataSize] = field(default_factory=dict)
    refuted: set[str] = field(default_factory=set)
    shapes: dict[int, Shape] = field(init=False)
    values: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = get_argument_shapes(self.function, self.given)
        self.values = get_argument_sizes(self.function, self.given)

    def run(self) -> InferredSizes:
        """Infer shapes and learn from the next source, until every shape is known or no source helps."""
        outputs: Outputs = {}
        for _ in range(_MAX_ROUNDS):
            outputs, graph = self._infer()
            if not any(map(is_open, (spec for specs in outputs.values() for spec in specs))):
                break
            if not (
                self._learn_from_trace(outputs)
                or self._learn_from_lists(outputs, graph)
                or self._learn_from_inputs(outputs, graph)
                or self._learn_from_user(outputs)
                or self._learn_from_bounds(outputs)
            ):
                break
        return InferredSizes(
            outputs=outputs, least=self._infer_least(outputs), sizes=tuple(self.sizes.values())
        )

    def _infer(self) -> tuple[Outputs, Any]:
        """Infer the shapes; drop a learnt shape for good if another shape contradicts it.

        A traced op of the same name may be a different op: bodies of functions are inlined under the
        name of their call.
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
        """Record a shape if it says more than the known one; return whether it does."""
        merged = _merge_shapes(spec.shape, shape)
        if tensor in self.refuted:
            return False
        if merged is None or merged == spec.shape or self.known.shapes.get(tensor) == merged:
            return False
        self.known.shapes[tensor] = merged
        return True

    def _learn_from_trace(self, outputs: Outputs) -> bool:
        learnt = False
        calls = {node.name for node in self.graph_def.node if node.op in _CALLS}
        for name, specs in outputs.items():
            if not any(map(is_open, specs)):
                continue
            traced = find_inlined(name, self.traced) or ()
            for index, (spec, other) in enumerate(zip(specs, traced, strict=False)):
                if self.transposed and name not in calls and len(other.shape or ()) in _IMAGE_RANKS:
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    learnt |= self._learn(f"{name}:{index}", spec, other.shape)
        return learnt

    def _learn_from_lists(self, outputs: Outputs, graph: Any) -> bool:
        learnt = False
        for element in infer_list_elements(self.graph_def, graph, outputs):
            spec = look_up_spec(outputs, element.tensor)
            if spec is not None and is_open(spec):
                learnt |= self._learn(element.tensor, spec, element.shape)
            if element.value is not None and element.tensor not in self.known.values:
                self.known.values[element.tensor] = element.value
                learnt = True
        return learnt

    def _learn_from_inputs(self, outputs: Outputs, graph: Any) -> bool:
        evaluator = Evaluator(self.graph_def, graph, self.function, self.given, outputs)
        learnt = False
        for tensor, value in evaluator.evaluate_open_tensors().items():
            name, _, index = tensor.rpartition(":")
            if self._learn(tensor, outputs[name][int(index)], tuple(value.shape)):
                learnt = True
                if value.ndim and not evaluator.has_open_input(name):
                    self.sizes[name] = DataSize(op=name, size=int(value.shape[0]), basis="inputs")
        for tensor, value in evaluator.evaluate_numbers().items():
            if tensor not in self.known.values:
                self.known.values[tensor] = value
                learnt = True
        for name, shape in evaluator.infer_special_shapes().items():
            if self._learn(f"{name}:0", outputs[name][0], shape):
                learnt = True
                self.sizes[name] = DataSize(op=name, size=int(shape[0]), basis="inputs")
        return learnt

    def _learn_from_user(self, outputs: Outputs) -> bool:
        learnt = False
        for name, size in self.assumed.items():
            for index, spec in enumerate(outputs.get(name, ())):
                if spec.shape is None or -1 not in spec.shape:
                    continue
                first = spec.shape.index(-1)
                shape = (*spec.shape[:first], size, *spec.shape[first + 1 :])
                if self._learn(f"{name}:{index}", spec, shape):
                    learnt = True
                    self.sizes[name] = DataSize(op=name, size=size, basis="told")
        return learnt

    def _learn_from_bounds(self, outputs: Outputs) -> bool:
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

    def _infer_least(self, outputs: Outputs) -> Outputs:
        """Return the specs with one element instead of the upper bound; only ops that differ."""
        bounded = {name for name, size in self.sizes.items() if size.basis == "most"}
        if not bounded:
            return {}
        shapes = {
            tensor: shape
            for tensor, shape in self.known.shapes.items()
            if tensor.rpartition(":")[0] not in bounded
        }
        known = replace(self.known, shapes=shapes)
        open_outputs, _ = infer_graph(self.graph_def, self.shapes, self.values, known)
        least = {
            f"{name}:{index}": tuple(1 if axis < 0 else axis for axis in spec.shape)
            for name in bounded
            for index, spec in enumerate(open_outputs[name])
            if spec.shape is not None and is_open(spec)
        }
        known = replace(known, shapes=shapes | least)
        try:
            inferred, _ = infer_graph(self.graph_def, self.shapes, self.values, known)
        except (ValueError, tf.errors.OpError):
            return {}
        return {name: specs for name, specs in inferred.items() if specs != outputs[name]}


_Rule = Callable[[list[TensorSpec | None]], int | None]


def _count_elements(position: int) -> _Rule:
    """Return a rule: at most as many rows as the input at ``position`` has elements."""

    def count(inputs: list[TensorSpec | None]) -> int | None:
        spec = inputs[position]
        return (
            None if spec is None or spec.shape is None or is_open(spec) else math.prod(spec.shape)
        )

    return count


def _count_rows(inputs: list[TensorSpec | None]) -> int | None:
    first = inputs[0]
    if first is None or not first.shape or first.shape[0] < 0:
        return None
    return first.shape[0]


_BOUNDS: Final[dict[str, _Rule]] = {
    **dict.fromkeys(["Where", "Unique", "UniqueV2", "ListDiff"], _count_elements(0)),
    **dict.fromkeys(["UniqueWithCounts", "UniqueWithCountsV2"], _count_elements(0)),
    "DynamicPartition": _count_rows,
    **dict.fromkeys(["SegmentSum", "SegmentMean"], _count_elements(1)),
    **dict.fromkeys(
        ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"], _count_elements(2)
    ),
}
"""Ops whose number of output rows depends on data -> the rule for its upper bound."""


def _merge_shapes(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return the union of two partial shapes; None if both are unknown or they differ."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None
    if any(a != b and a >= 0 and b >= 0 for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))
