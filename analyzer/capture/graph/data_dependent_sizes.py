"""Shapes that the graph alone does not tell, from the best available source.

The sources, in this order: the traced function (``set_shape`` after a Python function leaves no node);
the elements that are put into lists; the values of the given inputs, from which small kernels compute
shapes (the rows of a ragged tensor, the elements of a mask); the user's assumptions; and the upper bound
of an op's result, such as all elements for ``Where``. With an upper bound, the stated range begins at
one element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import read_traced_outputs
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
    """The output specs of ops; ``least`` has those with one element instead of the upper bound."""

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
    )


@dataclass(slots=True)
class _Sizing:
    """The rounds of inference for one graph."""

    function: Any
    graph_def: Any
    given: Sequence[Any]
    traced: Mapping[str, tuple[TensorSpec, ...]]
    assumed: Mapping[str, int]
    transposed: bool = False
    known: Known = field(init=False)
    sizes: dict[str, DataSize] = field(default_factory=dict)
    refuted: set[str] = field(default_factory=set)

    def run(self) -> InferredSizes:
        """Infer shapes and learn from the next source, until every shape is known or no source helps."""
        outputs: Outputs = {}
        self.known = read_arguments(self.function, self.given)
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
        """Infer the shapes; drop learnt shapes (of other ops of the same name) that contradict them."""
        while True:
            try:
                return infer_graph(self.graph_def, self.known)
            except ValueError as error:
                tensor = find_refuted_tensor(str(error))
                if self.known.shapes.pop(tensor, None) is None:
                    raise
                self.refuted.add(tensor)

    def _learn(self, tensor: str, spec: TensorSpec, shape: Shape) -> bool:
        """Record a shape if it says more than the known one; return whether it does."""
        merged = _merge_shapes(spec.shape, shape)
        if merged is None or tensor in self.refuted:
            return False
        if merged in (spec.shape, self.known.shapes.get(tensor)):
            return False
        self.known.shapes[tensor] = merged
        return True

    def _learn_value(self, tensor: str, value: Any) -> bool:
        """Record a value if none is known; return whether it is new."""
        return value is not None and self.known.values.setdefault(tensor, value) is value

    def _learn_size(
        self, name: str, index: int, spec: TensorSpec, shape: Shape, **size: Any
    ) -> bool:
        """Record a shape, and the size (``size``, ``basis``) of its op that decides it."""
        is_new = self._learn(f"{name}:{index}", spec, shape)
        if is_new:
            self.sizes[name] = DataSize(op=name, **size)
        return is_new

    def _learn_from_trace(self, outputs: Outputs) -> bool:
        learnt = False
        calls = {node.name for node in self.graph_def.node if node.op in _CALLS}
        for name, specs in outputs.items():
            traced = find_inlined(name, self.traced) if any(map(is_open, specs)) else ()
            for index, (spec, other) in enumerate(zip(specs, traced or (), strict=False)):
                if self.transposed and name not in calls and len(other.shape or ()) in _IMAGE_RANKS:
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    learnt |= self._learn(f"{name}:{index}", spec, other.shape)
        return learnt

    def _learn_from_lists(self, outputs: Outputs, graph: Any) -> bool:
        learnt = False
        for tensor, shape, value in infer_list_elements(self.graph_def, graph, outputs):
            spec = look_up_spec(outputs, tensor)
            if spec is not None and is_open(spec):
                learnt |= self._learn(tensor, spec, shape)
            learnt |= self._learn_value(tensor, value)
        return learnt

    def _learn_from_inputs(self, outputs: Outputs, graph: Any) -> bool:
        evaluator = Evaluator(self.graph_def, graph, self.function, self.given, outputs)
        learnt = False
        for tensor, value in evaluator.evaluate_open_tensors().items():
            name, _, index = tensor.rpartition(":")
            spec, shape = outputs[name][int(index)], tuple(value.shape)
            if shape and not evaluator.has_open_input(name):
                learnt |= self._learn_size(
                    name, int(index), spec, shape, size=shape[0], basis="inputs"
                )
            else:
                learnt |= self._learn(tensor, spec, shape)
        for tensor, value in evaluator.evaluate_numbers().items():
            learnt |= self._learn_value(tensor, value)
        for name, shape in evaluator.infer_special_shapes().items():
            spec = outputs[name][0]
            learnt |= self._learn_size(name, 0, spec, shape, size=shape[0], basis="inputs")
        return learnt

    def _learn_from_user(self, outputs: Outputs) -> bool:
        learnt = False
        for name, size in self.assumed.items():
            for index, spec in enumerate(outputs.get(name, ())):
                if spec.shape is not None and -1 in spec.shape:
                    first = spec.shape.index(-1)
                    shape = (*spec.shape[:first], size, *spec.shape[first + 1 :])
                    learnt |= self._learn_size(name, index, spec, shape, size=size, basis="told")
        return learnt

    def _learn_from_bounds(self, outputs: Outputs) -> bool:
        learnt = False
        for node in self.graph_def.node:
            specs = outputs.get(node.name, ())
            if node.op not in _BOUNDS or not any(map(is_open, specs)):
                continue
            most = _BOUNDS[node.op]([look_up_spec(outputs, n) for n in node.input if n[0] != "^"])
            if most is None:
                continue
            for index, spec in enumerate(specs):
                shape = spec.shape and tuple(most if axis < 0 else axis for axis in spec.shape)
                learnt |= self._learn_size(node.name, index, spec, shape, size=most, basis="most")
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
        open_outputs, _ = infer_graph(self.graph_def, replace(self.known, shapes=shapes))
        least = {
            f"{name}:{index}": tuple(1 if axis < 0 else axis for axis in spec.shape)
            for name in bounded
            for index, spec in enumerate(open_outputs[name])
            if spec.shape is not None and is_open(spec)
        }
        try:
            inferred, _ = infer_graph(self.graph_def, replace(self.known, shapes=shapes | least))
        except (ValueError, tf.errors.OpError):
            return {}
        return {name: specs for name, specs in inferred.items() if specs != outputs[name]}


def _count_elements(inputs: Sequence[TensorSpec | None], position: int) -> int | None:
    """Return the number of elements of one input; None if unknown."""
    spec = inputs[position]
    is_sized = spec is not None and spec.shape is not None and not is_open(spec)
    return math.prod(spec.shape or ()) if spec is not None and is_sized else None


def _count_rows(inputs: Sequence[TensorSpec | None]) -> int | None:
    first = inputs[0]
    return first.shape[0] if first and first.shape and first.shape[0] >= 0 else None


_BOUNDS: Final[dict[str, Callable[[list[TensorSpec | None]], int | None]]] = {
    "DynamicPartition": _count_rows,
    **{
        op: functools.partial(_count_elements, position=position)
        for position, ops in enumerate(
            (
                "Where Unique UniqueV2 ListDiff UniqueWithCounts UniqueWithCountsV2",
                "SegmentSum SegmentMean",
                "SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN",
            )
        )
        for op in ops.split()
    },
}
"""Ops whose number of output rows depends on data -> a function from input specs to its upper bound: the
rows of the first input, or the elements of the first, second or third."""


def _merge_shapes(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return the union of two partial shapes; None if both are unknown or they differ."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None
    if any(a != b and a >= 0 and b >= 0 for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))
