"""Shapes of a graph that the executor runs, from TensorFlow's own inference (``GraphProperties``).

The executed graph has lost its shapes. They are inferred on a copy in which each argument states its
shape, or its value if that may be a shape. A kernel of oneDNN has a wrong shape function.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import (
    get_output_dtypes,
    get_shape,
    read_traced_outputs,
)
from analyzer.capture.private_names import graph_pb2, infer_op_properties
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, TensorSpec
from analyzer.model.graph.graph_index import find_inlined

# Sizes of the axes, -1 for an unknown one; None for an unknown number of axes.
Shape: TypeAlias = tuple[int, ...] | None

# The output specs of ops, by name.
Outputs: TypeAlias = dict[str, tuple[TensorSpec, ...]]

# Stands for an argument: an op without inputs that states its shape and cannot be folded.
# (TensorFlow's Python interface to Grappler drops the shape of an ``_Arg``.)
ARGUMENT = "_ParallelConcatStart"

# Gradients of a filter and of its bias, to which the shape function gives another size.
_WITH_BIAS = re.compile("_Mkl.*BackpropFilter.*WithBias")

# In the name of a node that states the known shape of a tensor.
_PIN = "/analyzer_known_"

# Elements of an argument that may be a shape: TensorFlow's tensors have up to eight axes.
_MAX_SIZES = 8


# The shape of each argument by index, except handles; or its value if it may be a shape.
Arguments: TypeAlias = Mapping[int, Shape | np.ndarray]


def read_arguments(graph: Any, given: Sequence[Any]) -> Arguments:
    """Return the shapes of a function's arguments, and their values if they may be shapes.

    Axes that the function leaves open come from the call's tensors (``given``). The shape of a sparse
    tensor is one of its parts, and decides the shapes of its products.
    """
    arguments: dict[int, Shape | np.ndarray] = {}
    for index, own in enumerate(graph.inputs):
        tensor = given[index] if index < len(given) else own
        if tensor.dtype != own.dtype:
            tensor = own

        if own.dtype == tf.resource:
            continue

        arguments[index] = get_shape(tensor)
        is_known = hasattr(tensor, "numpy") and tensor.dtype in (tf.int32, tf.int64)
        is_vector = is_known and tensor.shape.rank < 2

        if is_vector and tensor.shape.num_elements() <= _MAX_SIZES:
            arguments[index] = tensor.numpy()

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
    redirects: dict[str, str] = {}

    for node in graph_def.node:
        twin = copy.node.add()
        twin.CopyFrom(node)
        twin.device = ""
        is_argument = node.op in ARGUMENT_TYPES

        if is_argument and not node.attr["_handle_dtypes"].list.type:
            _state_argument(twin, arguments.get(int(node.attr["index"].i)))
        elif _WITH_BIAS.fullmatch(node.op):
            redirects[f"{node.name}:1"] = bias = f"{node.name}/analyzer_bias"
            added = copy.node.add(name=bias, input=[node.input[2]])
            _retype(added, "BiasAddGrad", T=node.attr["T"].type)
            added.attr["data_format"].CopyFrom(node.attr["data_format"])

    pins = _pin_known(copy, graph_def, shapes)
    _redirect(copy, redirects | pins)
    properties = infer_op_properties(copy)
    outputs: Outputs = {}

    for node in graph_def.node:
        is_result = node.op in RESULT_TYPES
        own = () if is_result else properties.get(node.name, ())
        specs = [*map(_read_spec, own)]
        _correct_specs(node, specs)

        for index, spec in enumerate(specs):
            tensor = f"{node.name}:{index}"
            other = redirects.get(tensor) or pins.get(tensor)

            if other in properties:
                shape = _read_spec(properties[other][0]).shape
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
    """State the workspaces of oneDNN's kernels, which have no shape function."""
    if re.fullmatch("_Mkl.*MaxPool(?!.*Grad).*", node.op):
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
    """Add a node for each known shape; return the node by the tensor that it replaces."""
    nodes = {node.name: node for node in graph_def.node}
    pins: dict[str, str] = {}

    for tensor, shape in shapes.items():
        name, _, index = tensor.rpartition(":")
        if name in nodes:
            pins[tensor] = f"{name}{_PIN}{index}"
            pin = copy.node.add(name=pins[tensor], input=[tensor])
            dtype = tf.dtypes.as_dtype(get_output_dtypes(nodes[name])[int(index)])
            _retype(pin, "EnsureShape", T=dtype.as_datatype_enum)
            _set_shape(pin, shape)

    return pins


def _redirect(copy: Any, redirects: Mapping[str, str]) -> None:
    """Let nodes read others instead of some of their inputs."""
    for node in copy.node if redirects else ():
        if _PIN in node.name:
            continue

        for index, name in enumerate(node.input):
            full = name if ":" in name else f"{name}:0"
            node.input[index] = redirects.get(full, name)


def _set_shape(node: Any, shape: Shape) -> None:
    axes = None if shape is None else [None if axis < 0 else axis for axis in shape]
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(axes).as_proto())
