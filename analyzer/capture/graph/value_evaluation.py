"""Values and list elements that decide shapes and follow from the step's inputs.

Small stateless kernels run on the given inputs; an op that depends on state, weights or a branch is not
evaluated. A loop's forward pass puts tensors into lists and its backward pass takes them out
(``while_v2.py``). No shape function looks into a list, so the elements' shapes are inferred here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_node_name
from analyzer.capture.graph.shape_inference import Outputs
from analyzer.capture.graph.unbacked_variables import is_stand_in
from analyzer.capture.private_names import op_def_registry
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, TensorSpec, read_op_types

_MAX_NUMBERS: Final = 64
"""Elements of an integer tensor that may be a shape, a limit or a number of segments."""
_MAX_BYTES: Final = 64 << 20  # largest tensor that is evaluated to learn a shape, bytes
_MERGES: Final = frozenset({"Merge", "RefMerge"})
_CONTROL_FLOW: Final = _MERGES | {
    "Switch",
    "RefSwitch",
    "Enter",
    "Exit",
    "NextIteration",
}
_NOT_EVALUATED: Final = (
    _CONTROL_FLOW
    | {"_SwitchN", "LoopCond", "Placeholder", "VarHandleOp", "LookupTableFindV2"}
    | {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval"}
)
_SEGMENTS: Final = read_op_types("model/graph/graph_op_types.toml")["types"]["segments"]
_DATA_INPUTS: Final = dict.fromkeys((*_SEGMENTS, "DynamicPartition"), (0,)) | {
    "RaggedTensorToTensor": (1, 2)
}
"""Ops whose output shape depends on the values of some inputs -> the other inputs
(``SegmentReductionOp``, ``SparseSegmentReductionOpBase``, ``DynamicPartitionOp_Shared``,
``RaggedTensorToTensorBaseOp``)."""


InferredShape: TypeAlias = tuple[str, tuple[int, ...], bool]
"""A tensor, its shape, and whether no open input of its op explains it."""


class Evaluator:
    """Computes values that follow from the given inputs; ``graph`` is the copy of ``infer_graph``."""

    def __init__(
        self,
        graph_def: Any,
        graph: Any,
        function: Any,
        given: Sequence[Any],
        outputs: Outputs,
    ) -> None:
        self._nodes = {node.name: node for node in graph_def.node}
        self._graph = graph
        self._outputs = outputs
        self._fed: dict[str, Any] = {}
        for node in graph_def.node:
            index = int(node.attr["index"].i) if node.op in ARGUMENT_TYPES else -1
            tensor: Any = given[index] if 0 <= index < len(given) else None
            if not hasattr(tensor, "numpy") or (
                tensor.dtype.is_floating and is_stand_in(tensor)
            ):
                continue
            dtype = tensor.dtype
            if dtype == function.inputs[index].dtype and dtype.is_numpy_compatible:
                self._fed[node.name] = tensor.numpy()
        self._known = set(self._fed)
        for op in graph.get_operations():  # each after its inputs
            sources = {tensor.op.name for tensor in op.inputs}
            if self._known >= sources and self._can_evaluate(op):
                self._known.add(op.name)

    def _can_evaluate(self, op: Any) -> bool:
        if op.name not in self._nodes:
            return True  # it states a known shape or value
        node, specs = self._nodes[op.name], self._outputs.get(op.name, ())
        definition = op_def_registry.get(node.op)
        return (
            definition is not None
            and not definition.is_stateful
            and node.op not in _NOT_EVALUATED
            and bool(specs)
            and all(
                spec.dtype not in ("resource", "variant", "string", "")
                for spec in specs
            )
            and all((spec.size_bytes or 0) <= _MAX_BYTES for spec in specs)
        )

    def infer_shapes(self) -> Iterator[InferredShape]:
        """Yield shapes of open tensors: evaluated ones, and those that only integers decide."""
        for name, specs in self._outputs.items():
            if name in self._fed or not any(map(is_open, specs)):
                continue
            node = self._nodes[name]
            feeds = {} if name in self._known else self._feed_data(node)
            if feeds is None:
                continue
            tensors = [f"{name}:{i}" for i, spec in enumerate(specs) if is_open(spec)]
            inputs = (look_up_spec(self._outputs, source) for source in node.input)
            decides = bool(feeds) or not any(
                spec is not None and is_open(spec) for spec in inputs
            )
            for tensor, value in self._evaluate(tensors, feeds).items():
                yield tensor, value.shape, decides and bool(value.shape)

    def _feed_data(self, node: Any) -> dict[str, Any] | None:
        """Return zeros for the inputs whose values do not matter; None if another is unknown."""
        if node.op not in _DATA_INPUTS:
            return None
        feeds = {}
        tensors = self._graph.get_operation_by_name(node.name).inputs
        for position, (source, tensor) in enumerate(
            zip(node.input, tensors, strict=False)
        ):
            spec = look_up_spec(self._outputs, source)
            if position in _DATA_INPUTS[node.op]:
                if spec is None or is_open(spec) or (spec.size_bytes or 0) > _MAX_BYTES:
                    return None
                feeds[tensor.name] = np.zeros(
                    spec.shape or (), tensor.dtype.as_numpy_dtype
                )
            elif get_node_name(source) not in self._known:
                return None
        return feeds

    def evaluate_numbers(self) -> dict[str, Any]:
        """Return the values of small integer inputs of ops with an unknown output shape."""
        wanted = {
            get_tensor_name(source)
            for name, specs in self._outputs.items()
            if any(map(is_open, specs)) and name not in self._known
            for source in self._nodes[name].input
            if source[0] != "^" and self._is_number(source)
        }
        return self._evaluate(sorted(wanted), {})

    def evaluate_bounds(self) -> dict[str, Any]:
        """Return the single numbers that enter loops: a bound may follow from the inputs."""
        wanted = {
            get_tensor_name(node.input[0])
            for node in self._nodes.values()
            if node.op == "Enter" and self._is_number(node.input[0])
        }
        values = self._evaluate(sorted(wanted), {})
        return {tensor: value for tensor, value in values.items() if value.size == 1}

    def _is_number(self, source: str) -> bool:
        spec, name = look_up_spec(self._outputs, source), get_node_name(source)
        return (
            name in self._known
            and self._nodes[name].op not in ("Const", "HostConst")
            and spec is not None
            and spec.dtype in ("int32", "int64")
            and not is_open(spec)
            and math.prod(spec.shape or ()) <= _MAX_NUMBERS
        )

    def _evaluate(
        self, tensors: Sequence[str], data: Mapping[str, Any]
    ) -> dict[str, Any]:
        feeds = {
            f"{name}:0": value
            for name, value in self._fed.items()
            if self._graph.get_operation_by_name(name).type == "Placeholder"
        }
        values: dict[str, Any] = {}
        with tf.compat.v1.Session(graph=self._graph) as session:
            for tensor in tensors:
                try:
                    values[tensor] = np.asarray(session.run(tensor, {**feeds, **data}))
                except (tf.errors.OpError, ValueError):
                    continue
        return values


_PUT: Final = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Ops that put an element into a list -> the input that is the element."""
_TAKE: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0, "TensorListStack": 0}
"""Ops that take elements from a list -> the output with the element, or with all of them."""
_MAKE: Final = ("EmptyTensorList", "TensorListReserve")
_PASS_ON: Final = _CONTROL_FLOW | {"Identity", "TensorListPopBack", *_PUT, *_MAKE}
"""Ops that make a list or pass it on."""


Element: TypeAlias = tuple[str, tuple[int, ...] | None, Any]
"""A tensor that is taken from a list, its shape, and its value if it is a known shape itself."""


def infer_list_elements(
    graph_def: Any, graph: Any, outputs: Outputs
) -> Iterator[Element]:
    """Yield the known properties of each tensor that an executed graph takes from a list."""
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        elements, makers = (
            _trace_list(nodes, node.input[0]) if node.op in _TAKE else (set(), [])
        )
        if elements:
            shape, value = _merge_elements(elements, graph, outputs)
            if node.op == "TensorListStack":
                # The first axis is the size that the list's makers reserve; an empty list has none.
                sizes = [_get_static_value(graph, maker.input[1]) for maker in makers]
                is_same = all(size is not None and size == sizes[0] for size in sizes)
                is_same = is_same and all(
                    maker.op == "TensorListReserve" for maker in makers
                )
                shape = (
                    (int(sizes[0]), *shape)
                    if sizes and is_same and shape is not None
                    else None
                )
                value = None
            yield f"{node.name}:{_TAKE[node.op]}", shape, value


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
        origins = (get_node_name(origin) for origin in lists if origin[0] != "^")
        names += [origin for origin in origins if origin not in names]
    return elements, list(makers.values())


def _merge_elements(
    elements: set[str], graph: Any, outputs: Outputs
) -> tuple[Any, Any]:
    """Return the common shape and the common value of the tensors put into a list, or None."""
    specs = [look_up_spec(outputs, source) for source in elements]
    shapes = {None if spec is None or is_open(spec) else spec.shape for spec in specs}
    shape = shapes.pop() if len(shapes) == 1 else None
    if (
        shape is None
        or len(shape) > 1
        or not all(one and one.dtype == "int32" for one in specs)
    ):
        return shape, None
    values = [_get_static_value(graph, source) for source in elements]
    is_same = all(one is not None and np.array_equal(one, values[0]) for one in values)
    return shape, values[0] if is_same else None


def _get_static_value(graph: Any, source: str) -> Any:
    return tf.get_static_value(graph.get_tensor_by_name(get_tensor_name(source)))


def is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is unknown."""
    return spec.dtype not in ("resource", "variant", "") and spec.known_shape is None


def look_up_spec(outputs: Outputs, source: str) -> TensorSpec | None:
    """Return the spec of a node's input by its name there; None if unknown."""
    name, _, index = get_tensor_name(source).rpartition(":")
    specs = outputs.get(name, ())
    return specs[int(index)] if int(index) < len(specs) else None


def get_tensor_name(source: str) -> str:
    """Return the full name of a node's input: ``node`` means ``node:0``."""
    return source if ":" in source else f"{source}:0"
