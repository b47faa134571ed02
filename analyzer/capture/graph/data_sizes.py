"""Shapes of a graph that the executor runs, from the best available source.

The executed graph has lost its shapes. TensorFlow infers them (``GraphProperties``) on a copy in which
each argument states its shape, or its value if that may be a shape. The inference lacks some shapes.
Their sources, in this order: the data set behind an iterator; the traced function (``set_shape`` after a
Python function leaves no node); the user's assumptions; the upper bound of an op's result, such as all
elements for ``Where``.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import (
    get_output_dtypes,
    get_shape,
    get_spec,
    read_traced_outputs,
)
from analyzer.capture.private_names import (
    get_batch_size,
    get_dataset,
    get_input_dataset,
    get_iterator_handle,
    graph_pb2,
    infer_op_properties,
)
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.model.contract.run_note import (
    ARGUMENT_TYPES,
    RESULT_TYPES,
    DataSize,
    TensorSpec,
    op_types,
    split_tensor,
)
from analyzer.model.graph.buffer_sharing import ITERATOR
from analyzer.model.graph.graph_index import find_inlined

# Sizes of the axes, -1 for an unknown one; None for an unknown number of axes.
Shape: TypeAlias = tuple[int, ...] | None

# The output specs of ops, by name.
Outputs: TypeAlias = dict[str, tuple[TensorSpec, ...]]

# Stands for an argument: an op without inputs that states its shape and cannot be folded.
# (TensorFlow's Python interface to Grappler drops the shape of an ``_Arg``.)
ARGUMENT = "_ParallelConcatStart"

# In the name of a node that states the known shape of a tensor.
_PIN = "/analyzer_known_"

# Elements of an argument that may be a shape: TensorFlow's tensors have up to eight axes.
_MAX_SIZES = 8


# The shape of each argument by index and type, except handles; or its value if it may be a shape. The
# executor's graphs include those of eager ops, whose arguments have the same indices and other types.
Arguments: TypeAlias = Mapping[tuple[int, int], Shape | np.ndarray]


def read_arguments(graph: Any, given: Sequence[Any]) -> Arguments:
    """Return the shapes of a function's arguments, and their values if they may be shapes.

    Axes that the function leaves open come from the call's tensors (``given``). The shape of a sparse
    tensor is one of its parts, and decides the shapes of its products.
    """
    arguments: dict[tuple[int, int], Shape | np.ndarray] = {}
    for index, own in enumerate(graph.inputs):
        tensor = given[index] if index < len(given) else own
        if tensor.dtype != own.dtype:
            tensor = own

        if own.dtype == tf.resource:
            continue

        key = index, own.dtype.as_datatype_enum
        arguments[key] = get_shape(tensor)
        is_known = hasattr(tensor, "numpy") and tensor.dtype in (tf.int32, tf.int64)
        is_vector = is_known and tensor.shape.rank < 2

        if is_vector and tensor.shape.num_elements() <= _MAX_SIZES:
            arguments[key] = tensor.numpy()

    return arguments


def infer_graph(
    graph_def: Any,
    arguments: Arguments,
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Outputs:
    """Return the output specs of every node.

    ``shapes`` are known of tensors (``node:output``) that the graph does not tell.
    """
    copy = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)

    for node in graph_def.node:
        twin = copy.node.add()
        twin.CopyFrom(node)
        twin.device = ""
        is_argument = node.op in ARGUMENT_TYPES

        if is_argument and not node.attr["_handle_dtypes"].list.type:
            key = int(node.attr["index"].i), node.attr["T"].type
            _state_argument(twin, arguments.get(key))

    pins = _pin_known(copy, graph_def, shapes)
    properties = infer_op_properties(copy)
    outputs: Outputs = {}

    for node in graph_def.node:
        is_result = node.op in RESULT_TYPES
        own = () if is_result else properties.get(node.name, ())
        specs = [*map(_read_spec, own)]
        _correct_specs(node, specs)

        for index, spec in enumerate(specs):
            pin = pins.get(f"{node.name}:{index}")

            if pin in properties:
                shape = _read_spec(properties[pin][0]).shape
                specs[index] = TensorSpec(spec.dtype, shape)

        outputs[node.name] = tuple(specs)

    return outputs


def _read_spec(properties: Any) -> TensorSpec:
    """Return the spec of an output from TensorFlow's ``TensorProperties``."""
    dtype = tf.dtypes.as_dtype(properties.dtype).base_dtype.name
    if properties.shape.unknown_rank:
        return TensorSpec(dtype, None)

    return TensorSpec(dtype, tuple(max(axis.size, -1) for axis in properties.shape.dim))


def _correct_specs(node: Any, specs: list[TensorSpec]) -> None:
    """State the bias gradients and workspaces of oneDNN's kernels, whose shape functions do not."""
    if re.fullmatch("_Mkl.*BackpropFilter.*WithBias", node.op):
        filters = (specs[0].full_shape or (-1,))[-1:]
        specs[1] = TensorSpec(specs[1].dtype, filters)
    elif re.fullmatch("_Mkl.*MaxPool(?!.*Grad).*", node.op):
        # A byte for each maximum.
        specs[1:] = [TensorSpec("uint8", specs[0].shape)]
    elif node.op == "_MklNativeFusedBatchNormEx" and node.attr["is_training"].b:
        shape = specs[0].full_shape
        if shape is not None:
            # A bit for each element that the activation lets pass, counted in bytes, in a tensor of
            # the statistics' type (``init_default_ws``, ``MklFusedBatchNormOp``).
            specs[5] = TensorSpec(specs[5].dtype, (-(-math.prod(shape) // 8),))


def infer_executed_outputs(
    graph: Any,
    partitions: Sequence[Any],
    given: Sequence[Any] = (),
) -> Outputs:
    """Return the output specs of executed ops: traced ones where TensorFlow infers none."""
    traced = read_traced_outputs(graph)
    arguments = read_arguments(graph, given)
    outputs = dict(traced)

    for graph_def in partitions:
        inferred: Outputs = {}
        with suppress(ValueError, TypeError, KeyError, tf.errors.OpError):
            inferred = infer_graph(graph_def, arguments)

        for name, specs in inferred.items():
            known = list(specs)
            pairs = zip(specs, find_inlined(name, traced) or (), strict=False)

            for index, (own, other) in enumerate(pairs):
                if own.full_shape is None and own.dtype == other.dtype:
                    known[index] = other

            outputs[name] = tuple(known)

    return outputs


def _state_argument(twin: Any, argument: Any) -> None:
    """Replace an argument by an op that states its shape, or its value if it may be a shape."""
    dtype = twin.attr["T"].type
    if isinstance(argument, np.ndarray | np.generic):
        twin.attr.clear()
        proto = tf.make_tensor_proto(argument)
        twin.op = "Const"
        twin.attr["dtype"].type = proto.dtype
        twin.attr["value"].tensor.CopyFrom(proto)
    else:
        _retype(twin, ARGUMENT, dtype=dtype)
        _set_shape(twin, argument)


def _retype(node: Any, kind: str, **types: int) -> None:
    """Make a node an op of another type, with element types as its only attributes."""
    node.op = kind
    node.attr.clear()

    for name, dtype in types.items():
        node.attr[name].type = dtype


def _pin_known(
    copy: Any,
    graph_def: Any,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, str]:
    """Let ops read a node with each known shape; return the node by the tensor that it replaces."""
    nodes = {node.name: node for node in graph_def.node}
    known = [tensor for tensor in shapes if split_tensor(tensor)[0] in nodes]
    pins = {tensor: tensor.replace(":", _PIN) for tensor in known}

    for node in copy.node if pins else ():
        for place, name in enumerate(node.input):
            full = name if ":" in name else f"{name}:0"
            node.input[place] = pins.get(full, name)

    for tensor, pin in pins.items():
        name, index = split_tensor(tensor)
        dtype = tf.dtypes.as_dtype(get_output_dtypes(nodes[name])[index])
        node = copy.node.add(name=pin, input=[tensor])
        _retype(node, "EnsureShape", T=dtype.as_datatype_enum)
        _set_shape(node, shapes[tensor])

    return pins


def _set_shape(node: Any, shape: Shape) -> None:
    axes = None if shape is None else [None if axis < 0 else axis for axis in shape]
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(axes).as_proto())


def find_datasets(tensors: Iterable[Any]) -> dict[int, Any]:
    """Return the data sets of iterators by the ``id`` of the iterator's handle."""
    handles = {id(tensor) for tensor in tensors if tensor.dtype == tf.resource}
    iterators = find_live_objects(tf.data.Iterator) if handles else []
    found = {}

    for one in iterators:
        handle = id(get_iterator_handle(one))
        dataset = get_dataset(one)
        if handle in handles and dataset is not None:
            found[handle] = dataset

    return found


def list_batch_specs(dataset: Any) -> list[TensorSpec]:
    """Return the components of a full batch: an open first axis is the batch's."""
    size = None
    stage = dataset

    while stage is not None and size is None:
        size = get_batch_size(stage)
        stage = get_input_dataset(stage)

    size = tf.get_static_value(size) if size is not None else None
    size = -1 if size is None else int(size)
    specs = []

    for leaf in tf.nest.flatten(dataset.element_spec):
        spec = TensorSpec("variant", None)  # of sparse and ragged components
        if isinstance(leaf, tf.TensorSpec):
            spec = get_spec(leaf)

        if spec.shape and spec.shape[0] < 0:
            spec = TensorSpec(spec.dtype, (size, *spec.shape[1:]))

        specs.append(spec)

    return specs


def count_element_bytes(stage: Any) -> int | None:
    """Return the bytes of one element; None if a shape is open."""
    sizes = [spec.size_bytes for spec in list_batch_specs(stage)]
    if None in sizes:
        return None

    return sum(size or 0 for size in sizes)


_Basis: TypeAlias = Literal["inputs", "told", "most"]

# Ranks of the tensors that the layout pass transposes (``generic_layout_optimizer.cc``).
_IMAGE_RANKS = (4, 5)

# Op types that the layout pass does not change.
_CALLS = op_types(
    "PartitionedCall StatefulPartitionedCall PyFunc PyFuncStateless EagerPyFunc"
)

# of inference; each starts with the shapes learnt in earlier rounds
_MAX_ROUNDS = 12
_ROWS_OF_FIRST = (
    "Where",
    "Unique",
    "UniqueV2",
    "ListDiff",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
)

# Ops with a number of output rows that depends on data -> the input whose elements are its bound.
_BOUNDS = {
    **dict.fromkeys(_ROWS_OF_FIRST, 0),
    **dict.fromkeys(("SegmentSum", "SegmentMean", "DynamicPartition"), 1),
    **dict.fromkeys(("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"), 2),
}


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
        self._refuted: set[str] = set()
        self._run()

    def _run(self) -> None:
        """Infer shapes and learn from the next source, until every shape is known or no source helps."""
        self.outputs = self._infer()

        for _ in range(_MAX_ROUNDS):
            specs = [spec for one in self.outputs.values() for spec in one]
            if not any(map(is_open, specs)):
                return

            earlier = dict(self._shapes), dict(self.sizes)
            if not (
                self._learn_from_iterators()
                or self._learn_from_trace()
                or self._learn_from_user()
                or self._learn_from_bounds()
            ):
                return

            outputs = self._infer()
            # The inputs of an op contradict each other if known shapes are lost.
            is_lost = any(
                now.shape is None and before.shape is not None
                for name, specs in outputs.items()
                for now, before in zip(specs, self.outputs[name], strict=True)
            )

            if is_lost:
                self._shapes, self.sizes = earlier
                return

            self.outputs = outputs

    def _infer(self) -> Outputs:
        """Infer the shapes; drop learnt shapes (of other ops of the same name) that contradict them."""
        while True:
            outputs = infer_graph(self._graph_def, self._arguments, self._shapes)
            known = {}

            for tensor, shape in self._shapes.items():
                spec = look_up_spec(outputs, tensor)
                if spec is not None and spec.shape is not None:
                    known[tensor] = shape

            if len(known) == len(self._shapes):
                return outputs

            self._refuted |= self._shapes.keys() - known.keys()
            self._shapes = known

    def _learn(
        self,
        tensor: str,
        shape: Shape,
        size: int | None = None,
        basis: _Basis = "most",
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
            name, _ = split_tensor(tensor)
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
                source = nodes.get(split_tensor(node.input[0])[0])

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

            for index, (spec, other) in enumerate(zip(specs, traced, strict=False)):
                if may_be_transposed and len(other.shape or ()) in _IMAGE_RANKS:
                    continue
                if is_open(spec) and other.dtype == spec.dtype:
                    is_learnt |= self._learn(f"{name}:{index}", other.shape)

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
                axes = spec.shape or ()
                shape = tuple(most if axis < 0 else axis for axis in axes)
                is_learnt |= self._learn(f"{node.name}:{index}", shape, most)

        return is_learnt

    def _find_bound(self, node: Any) -> int | None:
        """Return the largest number of output rows of an op that depends on data; None if unknown."""
        if node.op not in _BOUNDS:
            return None

        data = [name for name in node.input if name[0] != "^"]
        spec = look_up_spec(self.outputs, data[_BOUNDS[node.op]])
        shape = None if spec is None else spec.full_shape

        return None if shape is None else math.prod(shape)


def _merge_shapes(one: Shape, other: Shape) -> Shape:
    """Return the union of two partial shapes; None if both are unknown or they differ."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other):
        return None

    for first, second in zip(one, other, strict=True):
        if first != second and min(first, second) >= 0:
            return None

    return tuple(map(max, one, other))


def is_open(spec: TensorSpec) -> bool:
    """Say whether a tensor's size is unknown."""
    return spec.dtype not in ("resource", "variant", "") and spec.full_shape is None


def look_up_spec(outputs: Outputs, source: str) -> TensorSpec | None:
    """Return the spec of a node's input by its name there; None if unknown."""
    name, index = split_tensor(source)
    specs = outputs.get(name, ())

    return specs[index] if index < len(specs) else None
