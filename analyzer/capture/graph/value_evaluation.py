"""Values and list elements that decide shapes and follow from the step's inputs.

Small stateless kernels run on the given inputs; an op that depends on state, weights or a branch is not
evaluated. A loop's forward pass puts tensors into lists and its backward pass takes them out
(``TensorListPushBack`` and ``TensorListPopBack``, ``while_v2.py``). No shape function looks into a list,
so the elements' shapes are inferred here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_node_name
from analyzer.capture.graph.shape_inference import Outputs
from analyzer.capture.initializers.variable_births import is_stand_in
from analyzer.capture.private_names import op_def_registry
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, TensorSpec

_MAX_NUMBERS: Final = 64
"""Elements of an integer tensor that may be a shape, a limit or a number of segments."""
_MAX_BYTES: Final = 64 << 20  # largest tensor that is evaluated to learn a shape, bytes
_MERGES: Final = frozenset({"Merge", "RefMerge"})
_CONTROL_FLOW: Final = _MERGES | {"Switch", "RefSwitch", "Enter", "Exit", "NextIteration"}
_NOT_EVALUATED: Final = (
    _CONTROL_FLOW
    | {"_SwitchN", "LoopCond", "Placeholder", "VarHandleOp"}
    | {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval"}
)
_SEGMENTS: Final = {
    **dict.fromkeys(["SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"], 1),
    **dict.fromkeys(["SegmentSumV2", "SegmentProdV2", "SegmentMaxV2", "SegmentMinV2"], 1),
    **dict.fromkeys(["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"], 2),
}
"""Segment sums -> the input with the rows' segments in rising order: the last one gives their number
(``SegmentReductionOp``, ``SparseSegmentReductionOpBase``)."""


class Evaluator:
    """Computes values that follow from the given inputs; ``graph`` is the copy of ``infer_graph``."""

    def __init__(
        self, graph_def: Any, graph: Any, function: Any, given: Sequence[Any], outputs: Outputs
    ) -> None:
        self._nodes = {node.name: node for node in graph_def.node}
        self._graph = graph
        self._outputs = outputs
        self._fed: dict[str, Any] = {}
        for node in graph_def.node:
            index = int(node.attr["index"].i) if node.op in ARGUMENT_TYPES else -1
            tensor: Any = given[index] if 0 <= index < len(given) else None
            if not hasattr(tensor, "numpy") or (tensor.dtype.is_floating and is_stand_in(tensor)):
                continue
            if tensor.dtype == function.inputs[index].dtype:
                self._fed[node.name] = tensor
        self._unknown = self._find_unknown()

    def _find_unknown(self) -> set[str]:
        """Return the nodes that do not follow from the inputs, and all that read them."""
        readers = defaultdict(list)
        for node in self._nodes.values():
            for source in node.input:
                readers[get_node_name(source)].append(node.name)
        unknown = {
            name
            for name, node in self._nodes.items()
            if name not in self._fed and not self._can_evaluate(node)
        }
        pending = list(unknown)
        while pending:
            reached = set(readers[pending.pop()]) - unknown
            unknown |= reached
            pending += reached
        return unknown

    def _can_evaluate(self, node: Any) -> bool:
        definition = op_def_registry.get(node.op)
        specs = self._outputs.get(node.name, ())
        return (
            definition is not None
            and not definition.is_stateful
            and node.op not in _NOT_EVALUATED
            and bool(specs)
            and all(spec.dtype not in ("resource", "variant", "string", "") for spec in specs)
            and all((spec.size_bytes or 0) <= _MAX_BYTES for spec in specs)
        )

    def _is_known(self, source: str) -> bool:
        return get_node_name(source) not in self._unknown

    def evaluate_open_tensors(self) -> dict[str, Any]:
        """Return the values of tensors of unknown shape."""
        return self._evaluate(
            f"{name}:{index}"
            for name, specs in self._outputs.items()
            for index, spec in enumerate(specs)
            if is_open(spec) and self._is_known(name) and name not in self._fed
        )

    def has_open_input(self, name: str) -> bool:
        """Say whether the shape of one of an op's inputs is unknown."""
        specs = (look_up_spec(self._outputs, source) for source in self._nodes[name].input)
        return any(spec is not None and is_open(spec) for spec in specs)

    def evaluate_numbers(self) -> dict[str, Any]:
        """Return the values of small integer inputs of ops with an unknown output shape."""
        wanted = {
            _get_tensor_name(source)
            for name, specs in self._outputs.items()
            if any(map(is_open, specs)) and not self._is_known(name)
            for source in self._nodes[name].input
            if source[0] != "^" and self._is_number(source)
        }
        return self._evaluate(sorted(wanted))

    def _is_number(self, source: str) -> bool:
        spec = look_up_spec(self._outputs, source)
        return (
            self._is_known(source)
            and self._nodes[get_node_name(source)].op not in ("Const", "HostConst")
            and spec is not None
            and spec.dtype in ("int32", "int64")
            and not is_open(spec)
            and math.prod(spec.shape or ()) <= _MAX_NUMBERS
        )

    def infer_special_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shapes that follow from integers, for ops whose shape function ignores them."""
        shapes: dict[str, tuple[int, ...] | None] = {}
        for name, specs in self._outputs.items():
            node = self._nodes[name]
            if specs and is_open(specs[0]) and not self._is_known(name):
                if node.op in _SEGMENTS:
                    shapes[name] = self._infer_segments(node)
                elif node.op == "RaggedTensorToTensor":
                    shapes[name] = self._infer_padded(node)
        return {name: shape for name, shape in shapes.items() if shape is not None}

    def _infer_segments(self, node: Any) -> tuple[int, ...] | None:
        data = look_up_spec(self._outputs, node.input[0])
        ids = _get_tensor_name(node.input[_SEGMENTS[node.op]])
        if data is None or not data.shape or not self._is_known(ids):
            return None
        value = self._evaluate([ids]).get(ids)
        if value is None or any(axis < 0 for axis in data.shape[1:]):
            return None
        return (int(value[-1]) + 1 if len(value) else 0, *data.shape[1:])

    def _infer_padded(self, node: Any) -> tuple[int, ...] | None:
        """Return the shape of a padded ragged tensor, computed with one-byte elements."""
        values = look_up_spec(self._outputs, node.input[1])
        if values is None or is_open(values) or math.prod(values.shape or ()) > _MAX_BYTES:
            return None
        numbers = [node.input[0], *(name for name in node.input[3:] if name[0] != "^")]
        if not all(map(self._is_known, numbers)):
            return None
        shape, *rows = (self._graph.get_tensor_by_name(_get_tensor_name(n)) for n in numbers)
        kinds = node.attr["row_partition_types"].list.s
        with self._graph.as_default():
            padded = tf.raw_ops.RaggedTensorToTensor(
                shape=shape,
                values=tf.zeros(values.shape, tf.uint8),
                default_value=tf.zeros((), tf.uint8),
                row_partition_tensors=rows,
                row_partition_types=[kind.decode() for kind in kinds],
            )
        value = self._evaluate([padded.name]).get(padded.name)
        return None if value is None else tuple(value.shape)

    def _evaluate(self, tensors: Iterable[str]) -> dict[str, Any]:
        """Return the values of the tensors that can be evaluated."""
        feeds = {
            f"{name}:0": tensor.numpy()
            for name, tensor in self._fed.items()
            if self._graph.get_operation_by_name(name).type == "Placeholder"
        }
        values: dict[str, Any] = {}
        with tf.compat.v1.Session(graph=self._graph) as session:
            for tensor in tensors:
                try:
                    values[tensor] = np.asarray(session.run(tensor, feeds))
                except (tf.errors.OpError, ValueError):
                    continue
        return values


_PUT: Final = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Ops that put an element into a list -> the input that is the element."""
_TAKE: Final = {"TensorListPopBack": 1, "TensorListGetItem": 0, "TensorListStack": 0}
"""Ops that take elements from a list -> the output with the element, or with all of them."""
_RESERVE: Final = "TensorListReserve"
_MAKE: Final = ("EmptyTensorList", _RESERVE)
_PASS_ON: Final = _CONTROL_FLOW | {"Identity", "TensorListPopBack", *_PUT, *_MAKE}
"""Ops that make a list or pass it on."""


class Element(NamedTuple):
    """A tensor that is taken from a list; ``value`` is its value if it is a known shape itself."""

    tensor: str
    shape: tuple[int, ...] | None
    value: Any = None


def infer_list_elements(graph_def: Any, graph: Any, outputs: Outputs) -> Iterator[Element]:
    """Yield the known properties of each tensor that an executed graph takes from a list."""
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        if node.op not in _TAKE:
            continue
        elements, makers = _trace_list(nodes, node.input[0])
        if elements:
            element = _merge_elements(f"{node.name}:{_TAKE[node.op]}", elements, graph, outputs)
            if node.op == "TensorListStack":
                element = Element(element.tensor, _stack_shape(element.shape, makers, graph))
            yield element


def _trace_list(nodes: dict[str, Any], source: str) -> tuple[set[str], list[Any]]:
    """Return the tensors put into a list and the nodes that make it; none if its origin is unknown."""
    elements: set[str] = set()
    makers: list[Any] = []
    seen: set[str] = set()
    remaining = [source]
    while remaining:
        name = get_node_name(remaining.pop())
        if name in seen:
            continue
        seen.add(name)
        node = nodes.get(name)
        if node is None or node.op not in _PASS_ON:
            return set(), []
        if node.op in _MAKE:
            makers.append(node)
            continue
        if node.op in _PUT:
            elements.add(node.input[_PUT[node.op]])
        lists = node.input if node.op in _MERGES else node.input[:1]
        remaining += [name for name in lists if name[0] != "^"]
    return elements, makers


def _merge_elements(tensor: str, elements: set[str], graph: Any, outputs: Outputs) -> Element:
    """Return the common properties of the tensors put into a list, for a tensor taken from it."""
    specs = [look_up_spec(outputs, source) for source in elements]
    shapes = {None if spec is None or is_open(spec) else spec.shape for spec in specs}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None or len(shape) > 1 or not all(one and one.dtype == "int32" for one in specs):
        return Element(tensor, shape)
    values = [_get_static_value(graph, source) for source in elements]
    is_same = all(one is not None and np.array_equal(one, values[0]) for one in values)
    return Element(tensor, shape, values[0] if is_same else None)


def _stack_shape(
    shape: tuple[int, ...] | None, makers: list[Any], graph: Any
) -> tuple[int, ...] | None:
    """Return the shape of a list's stacked elements, from the size that its makers reserve."""
    sizes = set()
    for node in makers:
        value = _get_static_value(graph, node.input[1]) if node.op == _RESERVE else None
        sizes.add(None if value is None or value.size != 1 else int(value))
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None or shape is None else (size, *shape)


def _get_static_value(graph: Any, source: str) -> Any:
    return tf.get_static_value(graph.get_tensor_by_name(_get_tensor_name(source)))


def is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is unknown."""
    is_sized = spec.dtype not in ("resource", "variant", "")
    return is_sized and (spec.shape is None or any(axis < 0 for axis in spec.shape))


def look_up_spec(outputs: Outputs, source: str) -> TensorSpec | None:
    """Return the spec of a node's input by its name there; None if unknown."""
    name, _, index = _get_tensor_name(source).rpartition(":")
    specs = outputs.get(name, ())
    return specs[int(index)] if int(index) < len(specs) else None


def _get_tensor_name(source: str) -> str:
    return source if ":" in source else f"{source}:0"
