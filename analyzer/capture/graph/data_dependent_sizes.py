"""Shapes that the graph alone does not tell, from the best available source.

The sources, in this order: the data set behind an iterator; the traced function (``set_shape`` after a
Python function leaves no node); the elements that are put into lists; the values of the given inputs,
from which small kernels compute shapes (the rows of a ragged tensor, the elements of a mask); the user's
assumptions; and the upper bound of an op's result, such as all elements for ``Where``; then the stated
range begins at one element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import tensorflow as tf

from analyzer.capture.graph.input_pipeline import find_datasets, list_batch_specs
from analyzer.capture.graph.plain_graphs import get_node_name, read_traced_outputs
from analyzer.capture.graph.shape_inference import (
    Known,
    Outputs,
    Shape,
    find_refuted_tensor,
    infer_graph,
    read_arguments,
)
from analyzer.capture.graph.value_evaluation import (
    Evaluator,
    infer_list_elements,
    is_open,
    look_up_spec,
)
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, TensorSpec
from analyzer.model.contract.run_note import DataSize
from analyzer.model.graph.graph_index import find_inlined
from analyzer.model.graph.host_copies import ITERATOR

_Basis: TypeAlias = Literal["inputs", "told", "most"]
_IMAGE_RANKS: Final = (4, 5)
"""Ranks of the tensors that the layout pass transposes (``generic_layout_optimizer.cc``)."""
_CALLS: Final = frozenset(
    (
        "PartitionedCall",
        "StatefulPartitionedCall",
        "PyFunc",
        "PyFuncStateless",
        "EagerPyFunc",
    )
)
"""Op types that the layout pass does not change."""
_MAX_ROUNDS: Final = (
    12  # of inference; each starts with the shapes learnt in earlier rounds
)
_BOUNDS: Final = {
    **dict.fromkeys(
        [
            "Where",
            "Unique",
            "UniqueV2",
            "ListDiff",
            "UniqueWithCounts",
            "UniqueWithCountsV2",
        ],
        0,
    ),
    **dict.fromkeys(("SegmentSum", "SegmentMean"), 1),
    **dict.fromkeys(("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 2),
}
"""Ops with a number of output rows that depends on data -> the input whose elements are its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredSizes:
    """The output specs of ops; ``least`` has those with one element instead of the upper bound."""

    outputs: Outputs
    least: Outputs
    sizes: tuple[DataSize, ...]
    # tensor that enters a loop -> its value, if it follows from the inputs
    bounds: Mapping[str, int]


def infer_sizes(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    assumed: Mapping[str, int],
    *,
    transposed: bool = False,
) -> InferredSizes:
    """Return the output specs of the executed graphs' ops."""
    traced = read_traced_outputs(function.graph)
    sized = [
        _Sizing(function, graph_def, given, traced, assumed, transposed).run()
        for graph_def in partitions
    ]
    return InferredSizes(
        outputs={name: specs for one in sized for name, specs in one.outputs.items()},
        least={name: specs for one in sized for name, specs in one.least.items()},
        sizes=tuple(size for one in sized for size in one.sizes),
        bounds={tensor: value for one in sized for tensor, value in one.bounds.items()},
    )


@dataclass(slots=True)
class _Sizing:
    function: Any
    graph_def: Any
    given: Sequence[Any]
    traced: Mapping[str, tuple[TensorSpec, ...]]
    assumed: Mapping[str, int]
    transposed: bool = False
    known: Known = field(init=False)
    outputs: Outputs = field(default_factory=dict)
    graph: Any = None  # the importable copy with the known shapes
    sizes: dict[str, DataSize] = field(default_factory=dict)
    refuted: set[str] = field(default_factory=set)

    def run(self) -> InferredSizes:
        """Infer shapes and learn from the next source, until every shape is known or no source helps."""
        self.known = read_arguments(self.function, self.given)
        self._infer()
        for _ in range(_MAX_ROUNDS):
            if not any(
                is_open(spec) for specs in self.outputs.values() for spec in specs
            ):
                break
            known, known_sizes = self.known, dict(self.sizes)
            self.known = replace(
                known, shapes=dict(known.shapes), values=dict(known.values)
            )
            if not (
                self._learn_from_iterators()
                or self._learn_from_trace()
                or self._learn_from_lists()
                or self._learn_from_inputs()
                or self._learn_from_user()
                or self._learn_from_bounds()
            ):
                break
            try:
                self._infer()
            except ValueError:  # another op's shape contradicts this round
                self.known, self.sizes = known, known_sizes
                break
        least = self._infer_least()
        sizes = tuple(self.sizes.values())
        evaluator = Evaluator(
            self.graph_def, self.graph, self.function, self.given, self.outputs
        )
        bounds = {
            tensor: int(value) for tensor, value in evaluator.evaluate_bounds().items()
        }
        return InferredSizes(
            outputs=self.outputs, least=least, sizes=sizes, bounds=bounds
        )

    def _infer(self) -> None:
        """Infer the shapes; drop learnt shapes (of other ops of the same name) that contradict them."""
        while True:
            try:
                self.outputs, self.graph = infer_graph(self.graph_def, self.known)
                return
            except ValueError as error:
                tensor = find_refuted_tensor(str(error))
                if self.known.shapes.pop(tensor, None) is None:
                    raise
                self.refuted.add(tensor)

    def _learn(
        self, tensor: str, shape: Shape, size: int | None = None, basis: _Basis = "most"
    ) -> bool:
        """Record a shape if it says more than the known one; return whether it does.

        ``size`` and ``basis`` describe the size that decides it, if its op depends on data.
        """
        spec = look_up_spec(self.outputs, tensor)
        merged = None if spec is None else _merge_shapes(spec.shape, shape)
        if spec is None or merged is None or tensor in self.refuted:
            return False
        if merged in (spec.shape, self.known.shapes.get(tensor)):
            return False
        self.known.shapes[tensor] = merged
        if size is not None:
            name = tensor.rpartition(":")[0]
            self.sizes[name] = DataSize(op=name, size=size, basis=basis)
        return True

    def _learn_value(self, tensor: str, value: Any) -> bool:
        """Record a value if none is known; return whether it is new."""
        return (
            value is not None and self.known.values.setdefault(tensor, value) is value
        )

    def _learn_from_iterators(self) -> bool:
        """Learn the shapes of batches from the stages of the data sets that the step reads."""
        captured, count = self.function.captured_inputs, len(self.function.inputs)
        tensors = [*self.given[: count - len(captured)], *captured]
        by_handle = find_datasets(tensors) if len(tensors) == count else {}
        nodes = {node.name: node for node in self.graph_def.node}
        learnt = False
        for node in nodes.values():
            source = (
                nodes.get(get_node_name(node.input[0])) if node.op == ITERATOR else None
            )
            index = (
                int(source.attr["index"].i)
                if source and source.op in ARGUMENT_TYPES
                else count
            )
            dataset = (
                by_handle.get(id(tensors[index])) if index < len(tensors) else None
            )
            for output, spec in enumerate(list_batch_specs(dataset) if dataset else ()):
                size = spec.shape[0] if spec.shape else None
                learnt |= self._learn(
                    f"{node.name}:{output}", spec.shape, size, "inputs"
                )
        return learnt

    def _learn_from_trace(self) -> bool:
        learnt = False
        calls = {node.name for node in self.graph_def.node if node.op in _CALLS}
        for name, specs in self.outputs.items():
            traced = find_inlined(name, self.traced) if any(map(is_open, specs)) else ()
            for index, (spec, other) in enumerate(
                zip(specs, traced or (), strict=False)
            ):
                if (
                    self.transposed
                    and name not in calls
                    and len(other.shape or ()) in _IMAGE_RANKS
                ):
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    learnt |= self._learn(f"{name}:{index}", other.shape)
        return learnt

    def _learn_from_lists(self) -> bool:
        learnt = False
        for tensor, shape, value in infer_list_elements(
            self.graph_def, self.graph, self.outputs
        ):
            spec = look_up_spec(self.outputs, tensor)
            if spec is not None and is_open(spec):
                learnt |= self._learn(tensor, shape)
            learnt |= self._learn_value(tensor, value)
        return learnt

    def _learn_from_inputs(self) -> bool:
        evaluator = Evaluator(
            self.graph_def, self.graph, self.function, self.given, self.outputs
        )
        learnt = False
        for tensor, shape, decides in evaluator.infer_shapes():
            learnt |= self._learn(
                tensor, shape, shape[0] if decides else None, "inputs"
            )
        for tensor, value in evaluator.evaluate_numbers().items():
            learnt |= self._learn_value(tensor, value)
        return learnt

    def _learn_from_user(self) -> bool:
        learnt = False
        for name, size in self.assumed.items():
            for index, spec in enumerate(self.outputs.get(name, ())):
                if spec.shape is not None and -1 in spec.shape:
                    first = spec.shape.index(-1)
                    shape = (*spec.shape[:first], size, *spec.shape[first + 1 :])
                    learnt |= self._learn(f"{name}:{index}", shape, size, "told")
        return learnt

    def _learn_from_bounds(self) -> bool:
        learnt = False
        for node in self.graph_def.node:
            specs = self.outputs.get(node.name, ())
            most = self._find_bound(node) if any(map(is_open, specs)) else None
            if most is None:
                continue
            for index, spec in enumerate(specs):
                shape = spec.shape and tuple(
                    most if axis < 0 else axis for axis in spec.shape
                )
                learnt |= self._learn(f"{node.name}:{index}", shape, most, "most")
        return learnt

    def _find_bound(self, node: Any) -> int | None:
        """Return the largest number of output rows of an op that depends on data; None if unknown."""
        inputs = [
            look_up_spec(self.outputs, name) for name in node.input if name[0] != "^"
        ]
        if node.op == "DynamicPartition":
            first = inputs[0]
            return (
                first.shape[0]
                if first and first.shape and first.shape[0] >= 0
                else None
            )
        spec = inputs[_BOUNDS[node.op]] if node.op in _BOUNDS else None
        if spec is None or spec.shape is None or is_open(spec):
            return None
        return math.prod(spec.shape)

    def _infer_least(self) -> Outputs:
        """Return the specs with one element instead of the upper bound; only ops that differ."""
        bounded = {name for name, size in self.sizes.items() if size.basis == "most"}
        if not bounded:
            return {}
        shapes = {
            tensor: shape
            for tensor, shape in self.known.shapes.items()
            if tensor.rpartition(":")[0] not in bounded
        }
        open_outputs, _ = infer_graph(
            self.graph_def, replace(self.known, shapes=shapes)
        )
        least = {
            f"{name}:{index}": tuple(1 if axis < 0 else axis for axis in spec.shape)
            for name in bounded
            for index, spec in enumerate(open_outputs[name])
            if spec.shape is not None and is_open(spec)
        }
        try:
            inferred, _ = infer_graph(
                self.graph_def, replace(self.known, shapes=shapes | least)
            )
        except (ValueError, tf.errors.OpError):
            return {}
        return {
            name: specs
            for name, specs in inferred.items()
            if specs != self.outputs[name]
        }


def _merge_shapes(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return the union of two partial shapes; None if both are unknown or they differ."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None
    if any(a != b and min(a, b) >= 0 for a, b in zip(one, other, strict=True)):
        return None
    return tuple(map(max, one, other))
