"""Shapes of a graph that the executor runs.

The executed graph has lost its shapes, and some fused oneDNN kernels have wrong or no shape functions.
So TensorFlow infers the shapes of a copy in which each oneDNN kernel is the plain op that it replaces,
each argument states its shape, and each loop is cut open, as a tensor keeps its shape through a loop.
"""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.plain_graphs import (
    get_node_name,
    get_output_dtypes,
    get_shape,
    get_spec,
    read_traced_outputs,
)
from analyzer.capture.private_names import graph_pb2, op_def_registry
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, TensorSpec

Shape: TypeAlias = tuple[int, ...] | None
"""Sizes of the axes, -1 for an unknown one; None for an unknown number of axes."""
Outputs: TypeAlias = dict[
    str, tuple[TensorSpec, ...]
]  # the output specs of ops, by name
_LOOP: Final = ("Enter", "Exit", "NextIteration")
_PREFIXES: Final = ("_MklNative", "_MklFused", "_Mkl")
_BIAS_SUFFIX: Final = "WithBias"
_PADDED: Final = re.compile("_Mkl.*PadWith.*Conv2D")
"""Convolutions with the padding as their last input; their shape function (``Conv2DShape`` in
``mkl_nn_ops.cc``) ignores it."""
_MARK: Final = "/analyzer_known_"
_PIN: Final = re.compile(rf"\{{\{{node ([^{{}}]+){_MARK}([0-9]+)\}}\}}")
"""The node that states a known shape, as TensorFlow's messages name it."""
_MAX_SIZES: Final = 8
"""Elements of an argument that may be a shape: TensorFlow's tensors have up to eight axes."""


Arguments: TypeAlias = Mapping[int, Shape | np.ndarray]
"""The shape of each argument by index, except handles; or its value if it may be a shape."""


def read_arguments(function: Any, given: Sequence[Any] = ()) -> Arguments:
    """Return the shapes of a concrete function's arguments, and their values if they may be shapes.

    Axes that the function leaves open come from the call's tensors (``given``). The shape of a sparse
    tensor is one of its parts, and decides the shapes of its products.
    """
    arguments: dict[int, Shape | np.ndarray] = {}
    for index, own in enumerate(function.inputs):
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
    copy, biases = _make_importable(graph_def, arguments)
    redirects = {f"{name}:1": bias for name, bias in biases.items()}
    _redirect(copy, graph_def, redirects, shapes)
    graph = tf.Graph()

    with graph.as_default():
        tf.import_graph_def(copy, name="")

    pins = {node.name for node in copy.node if _MARK in node.name}
    outputs: Outputs = {}
    for node in graph_def.node:
        if node.op in RESULT_TYPES:
            outputs[node.name] = ()
            continue

        tensors = graph.get_operation_by_name(node.name).outputs
        specs = list(map(_read_spec, tensors))
        if node.name in biases:
            bias = graph.get_tensor_by_name(f"{biases[node.name]}:0")
            specs.append(_read_spec(bias))

        _correct_specs(node, specs)
        for index, spec in enumerate(specs):
            pin = _get_pin_name(f"{node.name}:{index}")
            if pin in pins:
                pinned = get_shape(graph.get_tensor_by_name(f"{pin}:0"))
                specs[index] = TensorSpec(spec.dtype, pinned)

        outputs[node.name] = tuple(specs)

    return outputs


def _correct_specs(node: Any, specs: list[TensorSpec]) -> None:
    """Add or correct outputs of oneDNN's kernels that the plain op lacks."""
    is_single = len(specs) == 1
    if is_single and re.fullmatch("_Mkl.*MaxPool(?!.*Grad).*", node.op):
        # oneDNN's max pooling has a second output, a byte for each maximum.
        specs.append(TensorSpec("uint8", specs[0].shape))
    elif node.op == "_MklNativeFusedBatchNormEx" and node.attr["is_training"].b:
        shape = specs[0].known_shape
        if shape is not None:
            # oneDNN's workspace: a bit for each element that the activation lets pass, counted in
            # bytes, in a tensor of the statistics' type (``init_default_ws``, ``MklFusedBatchNormOp``).
            specs[5] = TensorSpec(specs[5].dtype, (-(-math.prod(shape) // 8),))
    elif node.op == "Merge" and is_single:
        specs.append(TensorSpec("int32", ()))


def infer_executed_outputs(
    function: Any, partitions: Sequence[Any], given: Sequence[Any] = ()
) -> Outputs:
    """Return the output specs of executed ops: traced ones if TensorFlow cannot import a graph."""
    outputs = read_traced_outputs(function.graph)
    arguments = read_arguments(function, given)
    for graph_def in partitions:
        with contextlib.suppress(ValueError, TypeError, KeyError, tf.errors.OpError):
            outputs |= infer_graph(graph_def, arguments)

    return outputs


def find_refuted_tensor(error: str) -> str:
    """Return the tensor (``node:output``) whose known shape made an import fail; empty for none."""
    match = _PIN.search(error)
    return ":".join(match.groups()) if match else ""


def _read_spec(tensor: Any) -> TensorSpec:
    spec = get_spec(tensor)
    return TensorSpec(spec.dtype.removesuffix("_ref"), spec.shape)


def _get_pin_name(tensor: str) -> str:
    return tensor.replace(":", _MARK)


def _make_importable(
    graph_def: Any, arguments: Arguments
) -> tuple[Any, dict[str, str]]:
    """Return a copy that can be imported, and the node with the bias' shape of a fused gradient."""
    copy = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    nodes = {node.name: node for node in graph_def.node}
    biases = {}

    for node in graph_def.node:
        twin = copy.node.add()
        twin.CopyFrom(node)
        twin.device = ""
        # The order of ops changes no shape and no value.
        twin.input[:] = [name for name in node.input if name[0] != "^"]

        for key in [key for key in twin.attr if key.startswith("_")]:
            del twin.attr[key]

        _rewrite(twin, node, nodes, arguments)
        if _PADDED.fullmatch(node.op):
            _pad_first(twin, copy.node.add(name=f"{node.name}/analyzer_pad"))

        if re.fullmatch(rf"_Mkl.*BackpropFilter.*{_BIAS_SUFFIX}", node.op):
            name = f"{node.name}/analyzer_bias"
            bias = copy.node.add(name=name, input=[node.input[2]])
            _retype(bias, "BiasAddGrad", T=node.attr["T"].type)
            bias.attr["data_format"].CopyFrom(node.attr["data_format"])
            biases[node.name] = name

    return copy, biases


def _redirect(
    copy: Any,
    graph_def: Any,
    redirects: dict[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Let nodes read what is known of their inputs instead of the inputs."""
    nodes = {node.name: node for node in graph_def.node}
    redirects |= _pin_known(copy, nodes, shapes)
    for node in copy.node:
        if _MARK in node.name:
            continue

        for index, name in enumerate(node.input):
            node.input[index] = redirects.get(name, name)


def _rewrite(
    twin: Any, node: Any, nodes: Mapping[str, Any], arguments: Arguments
) -> None:
    """Turn the copy of a node that cannot be imported into one with the same output shapes."""
    firsts = []
    for name in twin.input:
        source = nodes.get(get_node_name(name))
        if source is None or source.op != "NextIteration":
            firsts.append(name)

    is_loop_head = node.op == "Merge" and len(firsts) < len(twin.input)
    if node.op in ARGUMENT_TYPES:
        _state_argument(twin, node, arguments)
    elif node.op in RESULT_TYPES or node.op in _LOOP or is_loop_head:
        _retype(twin, "Identity", T=node.attr["T"].type)
        twin.input[:] = firsts
    elif node.op.startswith("_Mkl"):
        _make_plain(twin, node.op)


def _pad_first(twin: Any, pad: Any) -> None:
    """Turn a padded convolution into a plain one that reads ``pad``; what is fused keeps the shape."""
    image, weights, *others = twin.input
    pad.input[:] = [image, others[twin.attr["num_args"].i]]
    _retype(pad, "Pad", T=twin.attr["T"].type, Tpaddings=twin.attr["Tpaddings"].type)
    twin.op = "Conv2D"
    twin.input[:] = [pad.name, weights]

    for key in set(twin.attr) - {"T", "strides", "padding", "data_format", "dilations"}:
        del twin.attr[key]


def _retype(node: Any, kind: str, **types: int) -> None:
    """Make a node an op of another type, with element types as its only attributes."""
    node.op = kind
    node.attr.clear()
    for name, dtype in types.items():
        node.attr[name].type = dtype


def _pin_known(
    copy: Any, nodes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Add a node for each known shape; return which input it replaces."""
    redirects: dict[str, str] = {}
    for tensor, shape in shapes.items():
        name, _, index = tensor.rpartition(":")
        if name in nodes:
            pin = copy.node.add(name=_get_pin_name(tensor), input=[tensor])
            dtype = tf.dtypes.as_dtype(get_output_dtypes(nodes[name])[int(index)])
            _retype(pin, "EnsureShape", T=dtype.as_datatype_enum)
            _set_shape(pin, shape)
            redirects[tensor] = f"{pin.name}:0"

    firsts = [tensor for tensor in redirects if tensor.endswith(":0")]
    return redirects | {tensor[:-2]: redirects[tensor] for tensor in firsts}


def _state_argument(twin: Any, node: Any, arguments: Arguments) -> None:
    """Replace an argument by an op that states its shape, or its value if it may be a shape."""
    handles = node.attr["_handle_dtypes"].list.type
    argument = arguments.get(int(node.attr["index"].i))
    if handles:
        _retype(twin, "VarHandleOp", dtype=handles[0])
        twin.attr["shape"].shape.CopyFrom(node.attr["_handle_shapes"].list.shape[0])
    elif isinstance(argument, np.ndarray | np.generic):
        twin.attr.clear()
        _make_constant(twin, argument)
    else:
        _retype(twin, "Placeholder", dtype=node.attr["T"].type)
        _set_shape(twin, argument)


def _set_shape(node: Any, shape: Shape) -> None:
    axes = None if shape is None else [None if axis < 0 else axis for axis in shape]
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(axes).as_proto())


def _make_constant(node: Any, value: Any) -> None:
    proto = tf.make_tensor_proto(value)
    node.op = "Const"
    node.attr["dtype"].type = proto.dtype
    node.attr["value"].tensor.CopyFrom(proto)


def _make_plain(twin: Any, kind: str) -> None:
    """Turn a oneDNN node into the op that it replaces, without its extra inputs and attributes."""
    if "BackpropFilter" in kind:
        kind = kind.removesuffix(_BIAS_SUFFIX)

    names = []  # of ops that it may replace, the likeliest first
    for prefix in _PREFIXES:
        if kind.startswith(prefix):
            core = kind.removeprefix(prefix)
            fused = f"_Fused{core}" if prefix == "_MklFused" else f"_{core}"
            names += [fused, core, f"{core}V2", f"{core}V3"]

    names += [name.removeprefix("_Fused") for name in names]

    plain = None
    for name in names:
        plain = op_def_registry.get(name)
        if plain is not None and _accepts(plain, twin):
            break
    else:
        return

    twin.op = plain.name
    if not any(arg.number_attr or arg.type_list_attr for arg in plain.input_arg):
        del twin.input[len(plain.input_arg) :]

    for key in set(twin.attr) - {attr.name for attr in plain.attr}:
        del twin.attr[key]


def _accepts(definition: Any, node: Any) -> bool:
    for attribute in definition.attr:
        if attribute.name == "T" and "T" in node.attr:
            allowed = attribute.allowed_values.list.type
            return not allowed or node.attr["T"].type in allowed

    return True
