"""Shapes that the executed graph alone does not state, from the best available source.

The sources, in this order: the data set behind an iterator; the traced function (``set_shape`` after a
Python function leaves no node); the elements that are put into lists; the user's assumptions; and the
upper bound of an op's result, such as all elements for ``Where``. Then the stated range begins at one
element.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.input_pipeline import find_datasets, list_batch_specs
from analyzer.capture.graph.plain_graphs import get_node_name, read_traced_outputs
from analyzer.capture.graph.shape_inference import (
    Outputs,
    Shape,
    find_refuted_tensor,
    infer_graph,
    read_arguments,
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
_ROWS_OF_FIRST: Final = (
    "Where",
    "Unique",
    "UniqueV2",
    "ListDiff",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
)
_BOUNDS: Final = {
    **dict.fromkeys(_ROWS_OF_FIRST, 0),
    **dict.fromkeys(("SegmentSum", "SegmentMean"), 1),
    **dict.fromkeys(("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 2),
}
"""Ops with a number of output rows that depends on data -> the input whose elements are its bound."""


class SizedGraph:
    """One executed graph with the output specs of its ops.

    Attributes:
        outputs: The output specs.
        sizes: The sizes that data decide, by op.
    """

    def __init__(
        self,
        function: Any,
        graph_def: Any,
        given: Sequence[Any],
        assumed: Mapping[str, int],
        *,
        transposed: bool,
    ) -> None:
        self.outputs: Outputs = {}
        self.sizes: dict[str, DataSize] = {}
        self._function = function
        self._graph_def = graph_def
        self._given = given
        self._assumed = assumed
        self._transposed = transposed
        self._traced = read_traced_outputs(function.graph)
        self._arguments = read_arguments(function, given)
        self._shapes: dict[str, tuple[int, ...]] = {}  # learnt, by ``node:output``
        self._values: dict[str, Any] = {}
        self._refuted: set[str] = set()
        self._graph: Any = None  # the importable copy with the known shapes
        self._run()

    def _run(self) -> None:
        """Infer shapes and learn from the next source, until every shape is known or no source helps."""
        self._infer()

        for _ in range(_MAX_ROUNDS):
            specs = [spec for one in self.outputs.values() for spec in one]
            if not any(map(is_open, specs)):
                return

            earlier = dict(self._shapes), dict(self._values), dict(self.sizes)
            is_learnt = (
                self._learn_from_iterators()
                or self._learn_from_trace()
                or self._learn_from_lists()
                or self._learn_from_user()
                or self._learn_from_bounds()
            )
            if not is_learnt:
                return

            try:
                self._infer()
            except ValueError:  # another op's shape contradicts this round
                self._shapes, self._values, self.sizes = earlier
                return

    def _infer(self) -> None:
        """Infer the shapes; drop learnt shapes (of other ops of the same name) that contradict them."""
        while True:
            try:
                self.outputs, self._graph = infer_graph(
                    self._graph_def, self._arguments, self._shapes, self._values
                )
                return
            except ValueError as error:
                tensor = find_refuted_tensor(str(error))
                if self._shapes.pop(tensor, None) is None:
                    raise

                self._refuted.add(tensor)

    def _learn(
        self, tensor: str, shape: Shape, size: int | None = None, basis: _Basis = "most"
    ) -> bool:
        """Record a shape if it says more than the known one; return whether it does.

        ``size`` and ``basis`` describe the size that decides it, if its op depends on data.
        """
        spec = look_up_spec(self.outputs, tensor)
        merged = None if spec is None else _merge_shapes(spec.shape, shape)
        if spec is None or merged is None or tensor in self._refuted:
            return False
        if merged in (spec.shape, self._shapes.get(tensor)):
            return False

        self._shapes[tensor] = merged
        if size is not None:
            name = tensor.rpartition(":")[0]
            self.sizes[name] = DataSize(op=name, size=size, basis=basis)

        return True

    def _learn_from_iterators(self) -> bool:
        """Learn the shapes of batches from the stages of the data sets that the step reads."""
        captured = self._function.captured_inputs
        count = len(self._function.inputs)
        tensors = [*self._given[: count - len(captured)], *captured]
        by_handle = find_datasets(tensors) if len(tensors) == count else {}
        nodes = {node.name: node for node in self._graph_def.node}

        is_learnt = False
        for node in nodes.values():
            source = None
            if node.op == ITERATOR:
                source = nodes.get(get_node_name(node.input[0]))

            if source is None or source.op not in ARGUMENT_TYPES:
                continue

            index = int(source.attr["index"].i)
            if index >= len(tensors) or id(tensors[index]) not in by_handle:
                continue

            batch = list_batch_specs(by_handle[id(tensors[index])])
            for output, spec in enumerate(batch):
                size = spec.shape[0] if spec.shape else None
                tensor = f"{node.name}:{output}"
                is_learnt |= self._learn(tensor, spec.shape, size, "inputs")

        return is_learnt

    def _learn_from_trace(self) -> bool:
        is_learnt = False
        calls = {node.name for node in self._graph_def.node if node.op in _CALLS}

        for name, specs in self.outputs.items():
            if not any(map(is_open, specs)):
                continue

            may_be_transposed = self._transposed and name not in calls
            traced = find_inlined(name, self._traced) or ()
            pairs = zip(specs, traced, strict=False)

            for index, (spec, other) in enumerate(pairs):
                is_image = len(other.shape or ()) in _IMAGE_RANKS
                if may_be_transposed and is_image:
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    is_learnt |= self._learn(f"{name}:{index}", other.shape)

        return is_learnt

    def _learn_from_lists(self) -> bool:
        is_learnt = False
        elements = _infer_list_elements(self._graph_def, self._graph, self.outputs)

        for tensor, shape, value in elements:
            spec = look_up_spec(self.outputs, tensor)
            if spec is not None and is_open(spec):
                is_learnt |= self._learn(tensor, shape)

            if value is not None and tensor not in self._values:
                self._values[tensor] = value
                is_learnt = True

        return is_learnt

    def _learn_from_user(self) -> bool:
        is_learnt = False
        for name, size in self._assumed.items():
            for index, spec in enumerate(self.outputs.get(name, ())):
                if spec.shape is not None and -1 in spec.shape:
                    first = spec.shape.index(-1)
                    shape = (*spec.shape[:first], size, *spec.shape[first + 1 :])
                    is_learnt |= self._learn(f"{name}:{index}", shape, size, "told")

        return is_learnt

    def _learn_from_bounds(self) -> bool:
        is_learnt = False
        for node in self._graph_def.node:
            specs = self.outputs.get(node.name, ())
            most = self._find_bound(node) if any(map(is_open, specs)) else None
            if most is None:
                continue

            for index, spec in enumerate(specs):
                shape = _fill(spec.shape, most)
                is_learnt |= self._learn(f"{node.name}:{index}", shape, most, "most")

        return is_learnt

    def _find_bound(self, node: Any) -> int | None:
        """Return the largest number of output rows of an op that depends on data; None if unknown."""
        data = [name for name in node.input if name[0] != "^"]
        if node.op == "DynamicPartition":
            first = look_up_spec(self.outputs, data[0])
            if first is None or not first.shape or first.shape[0] < 0:
                return None

            return first.shape[0]

        if node.op not in _BOUNDS:
            return None

        spec = look_up_spec(self.outputs, data[_BOUNDS[node.op]])
        if spec is None or spec.shape is None or is_open(spec):
            return None

        return math.prod(spec.shape)

    def infer_least(self) -> Outputs:
        """Return the specs with one element instead of the upper bound; only ops that differ."""
        bounded = {name for name, size in self.sizes.items() if size.basis == "most"}
        if not bounded:
            return {}

        shapes = {}
        for tensor, shape in self._shapes.items():
            if tensor.rpartition(":")[0] not in bounded:
                shapes[tensor] = shape

        known = self._graph_def, self._arguments
        open_outputs, _ = infer_graph(*known, shapes, self._values)

        for name in bounded:
            for index, spec in enumerate(open_outputs[name]):
                least = _fill(spec.shape, 1)
                if least is not None and is_open(spec):
                    shapes[f"{name}:{index}"] = least

        try:
            inferred, _ = infer_graph(*known, shapes, self._values)
        except (ValueError, tf.errors.OpError):
            return {}

        changed = {}
        for name, specs in inferred.items():
            if specs != self.outputs[name]:
                changed[name] = specs

        return changed


def _fill(shape: Shape, size: int) -> tuple[int, ...] | None:
    """Return a shape with a size in place of each unknown axis."""
    if shape is None:
        return None

    return tuple(size if axis < 0 else axis for axis in shape)


def _merge_shapes(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return the union of two partial shapes; None if both are unknown or they differ."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None

    for first, second in zip(one, other, strict=True):
        if first != second and min(first, second) >= 0:
            return None

    return tuple(map(max, one, other))


_PUT: Final = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Ops that put an element into a list -> the input that is the element."""
_TAKE: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0, "TensorListStack": 0}
"""Ops that take elements from a list -> the output with the element, or with all of them."""
_MAKE: Final = ("EmptyTensorList", "TensorListReserve")
_MERGES: Final = ("Merge", "RefMerge")
_PASS_ON: Final = frozenset(
    (
        *_MERGES,
        *("Switch", "RefSwitch", "Enter", "Exit", "NextIteration"),
        *("Identity", "TensorListPopBack", *_PUT, *_MAKE),
    )
)
"""Ops that make a list or pass it on."""


def _infer_list_elements(
    graph_def: Any, graph: Any, outputs: Outputs
) -> Iterator[tuple[str, Shape, Any]]:
    """Yield each tensor that is taken from a list, its shape, and its value if it is a shape itself.

    A loop's forward pass puts tensors into lists and its backward pass takes them out (``while_v2.py``).
    No shape function looks into a list.
    """
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        if node.op not in _TAKE:
            continue

        elements, makers = _trace_list(nodes, node.input[0])
        if not elements:
            continue

        shape, value = _merge_elements(elements, graph, outputs)
        if node.op == "TensorListStack":
            length = _find_length(makers, graph)
            has_shape = length is not None and shape is not None
            shape, value = (length, *shape) if has_shape else None, None

        yield f"{node.name}:{_TAKE[node.op]}", shape, value


def _find_length(makers: Sequence[Any], graph: Any) -> int | None:
    """Return the size that all makers of a list reserve; an empty list has none."""
    sizes = set()
    for maker in makers:
        if maker.op != "TensorListReserve":
            return None

        size = _get_static_value(graph, maker.input[1])
        sizes.add(None if size is None else int(size))

    return sizes.pop() if len(sizes) == 1 else None


def _trace_list(nodes: Mapping[str, Any], source: str) -> tuple[set[str], list[Any]]:
    """Return the tensors put into a list and the nodes that make it; none if its origin is unknown."""
    elements: set[str] = set()
    makers: dict[str, Any] = {}
    names = [get_node_name(source)]

    for name in names:  # which grows
        node = nodes.get(name)
        if node is None or node.op not in _PASS_ON:
            return set(), []
        if node.op in _MAKE:
            makers[name] = node
            continue

        if node.op in _PUT:
            elements.add(node.input[_PUT[node.op]])

        lists = node.input if node.op in _MERGES else node.input[:1]
        for origin in lists:
            if origin[0] != "^" and get_node_name(origin) not in names:
                names.append(get_node_name(origin))

    return elements, list(makers.values())


def _merge_elements(
    elements: set[str], graph: Any, outputs: Outputs
) -> tuple[Any, Any]:
    """Return the common shape and the common value of the tensors put into a list, or None."""
    specs = [look_up_spec(outputs, source) for source in elements]
    shapes = {None if spec is None or is_open(spec) else spec.shape for spec in specs}
    shape = shapes.pop() if len(shapes) == 1 else None
    are_numbers = all(one is not None and one.dtype == "int32" for one in specs)

    if shape is None or len(shape) > 1 or not are_numbers:
        return shape, None

    values = [_get_static_value(graph, source) for source in elements]
    is_same = all(one is not None and np.array_equal(one, values[0]) for one in values)
    return shape, values[0] if is_same else None


def _get_static_value(graph: Any, source: str) -> Any:
    return tf.get_static_value(graph.get_tensor_by_name(_get_tensor_name(source)))


def is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is unknown."""
    return spec.dtype not in ("resource", "variant", "") and spec.known_shape is None


def look_up_spec(outputs: Outputs, source: str) -> TensorSpec | None:
    """Return the spec of a node's input by its name there; None if unknown."""
    name, _, index = _get_tensor_name(source).rpartition(":")
    specs = outputs.get(name, ())
    return specs[int(index)] if int(index) < len(specs) else None


def _get_tensor_name(source: str) -> str:
    """Return the full name of a node's input: ``node`` means ``node:0``."""
    return source if ":" in source else f"{source}:0"
