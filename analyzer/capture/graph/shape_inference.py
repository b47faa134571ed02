"""Shapes of a graph that the executor runs.

The executed graph has lost its shapes, and some of its fused oneDNN kernels have wrong or missing shape
functions. So TensorFlow infers the shapes of a copy in which each oneDNN kernel is the plain op that it
replaces, each argument states its shape, and each loop is cut open: a tensor keeps its shape through a
loop, as ``tf.while_loop`` requires. Nothing runs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

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

_LOOP: Final = ("Enter", "Exit", "NextIteration")
_PREFIXES: Final = ("_MklNative", "_MklFused", "_Mkl")
_BIAS_SUFFIX: Final = "WithBias"
_MARK: Final = "/analyzer_known_"
_PIN: Final = re.compile(rf"\{{\{{node ([^{{}}]+){_MARK}([0-9]+)\}}\}}")
"""The node that states a known shape, as TensorFlow's messages name it."""
_MAX_SIZES: Final = 8
"""Elements of an argument that may be a shape: TensorFlow's tensors have up to eight axes."""


@dataclass(slots=True)
class Known:
    """Shapes and values that the graph does not tell, by tensor (``node:output``)."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def infer_graph(
    graph_def: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any], known: Known
) -> tuple[dict[str, tuple[TensorSpec, ...]], tf.Graph]:
    """Return the output specs of every node, and the copy of the graph that they come from.

    Args:
        arguments: Argument index -> shape.
        sizes: Argument index -> value, if it may be a shape (``get_argument_sizes``).
    """
    copy, biases, workspaces = _make_importable(graph_def, arguments, sizes, known)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(copy, name="")
    outputs: dict[str, tuple[TensorSpec, ...]] = {}
    for node in graph_def.node:
        specs = [_read_spec(tensor) for tensor in graph.get_operation_by_name(node.name).outputs]
        if node.name in biases:
            specs.append(_read_spec(graph.get_tensor_by_name(f"{biases[node.name]}:0")))
        if node.name in workspaces and len(specs) == 1:
            specs.append(TensorSpec("uint8", specs[0].shape))
        if node.op == "Merge" and len(specs) == 1:
            specs.append(TensorSpec("int32", ()))
        for index, spec in enumerate(specs):
            name = f"{node.name}:{index}"
            if name in known.shapes:
                pinned = graph.get_tensor_by_name(f"{_get_pin_name(name)}:0")
                specs[index] = TensorSpec(spec.dtype, get_shape(pinned))
        outputs[node.name] = () if node.op in RESULT_TYPES else tuple(specs)
    return outputs, graph


def get_argument_shapes(function: Any, given: Sequence[Any] = ()) -> dict[int, Shape]:
    """Return the shapes of a concrete function's arguments by index, except handles.

    ``given`` are the tensors of the call. Their shapes are known even if the function leaves axes open
    (the parts of a sparse or ragged tensor).
    """
    shapes: dict[int, Shape] = {}
    for index, tensor in enumerate(function.inputs):
        if tensor.dtype != tf.resource:
            is_given = index < len(given) and given[index].dtype == tensor.dtype
            shapes[index] = get_shape(given[index] if is_given else tensor)
    return shapes


def get_argument_sizes(function: Any, given: Sequence[Any]) -> dict[int, Any]:
    """Return the values of a function's arguments that may be shapes: a few integers each.

    The shape of a sparse tensor is one of its parts, and decides the shapes of its products.
    """
    return {
        index: tensor.numpy()
        for index, tensor in enumerate(given)
        if index < len(function.inputs)
        and tensor.dtype == function.inputs[index].dtype
        and tensor.dtype in (tf.int32, tf.int64)
        and (tensor.shape.rank or 0) < 2
        and tensor.shape.num_elements() <= _MAX_SIZES
        and hasattr(tensor, "numpy")
    }


def infer_executed_outputs(
    function: Any, partitions: Sequence[Any], given: Sequence[Any] = ()
) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the output specs of the ops of executed graphs.

    Ops of a graph that TensorFlow cannot import (it sends to another device) get their traced shapes.

    ``partitions`` are the executor's graphs, ``given`` the arguments of the call, if known.
    """
    outputs = read_traced_outputs(function.graph)
    shapes, sizes = get_argument_shapes(function, given), get_argument_sizes(function, given)
    for graph_def in partitions:
        with contextlib.suppress(ValueError, TypeError, KeyError, tf.errors.OpError):
            outputs |= infer_graph(graph_def, shapes, sizes, Known())[0]
    return outputs


def _read_spec(tensor: Any) -> TensorSpec:
    spec = get_spec(tensor)
    return TensorSpec(spec.dtype.removesuffix("_ref"), spec.shape)


def _get_pin_name(tensor: str) -> str:
    return tensor.replace(":", _MARK)


def find_refuted_tensor(error: str) -> str:
    """Return the tensor (``node:output``) whose known shape made an import fail; empty for none."""
    match = _PIN.search(error)
    return ":".join(match.groups()) if match else ""


def _get_output_types(graph_def: Any) -> dict[str, int]:
    """Return the type number of every tensor (``node:output``)."""
    return {
        f"{node.name}:{index}": tf.dtypes.as_dtype(dtype).as_datatype_enum
        for node in graph_def.node
        for index, dtype in enumerate(get_output_dtypes(node))
        if dtype
    }


def _make_importable(
    graph_def: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any], known: Known
) -> tuple[Any, dict[str, str], set[str]]:
    """Return a copy that every TensorFlow can import, and the outputs that it lacks.

    The second value is, for each filter gradient with a fused bias, the node with the bias' shape; the
    third the max poolings whose second output is oneDNN's workspace: the index of each maximum, a byte
    each.
    """
    copy = graph_pb2.GraphDef()
    copy.versions.CopyFrom(graph_def.versions)
    copy.library.CopyFrom(graph_def.library)
    types = {node.name: node.op for node in graph_def.node}
    for node in graph_def.node:
        _rewrite(_add_twin(copy, node), node, types, arguments, sizes)
    biases = {node.name: _add_bias(copy, node) for node in graph_def.node if _fuses_bias(node.op)}
    workspaces = {node.name for node in graph_def.node if _has_workspace(node.op)}
    redirects = {f"{name}:1": bias for name, bias in biases.items()}
    redirects |= _skip_switches(graph_def) | _pin_known(copy, graph_def, known)
    _redirect_inputs(copy, redirects)
    return copy, biases, workspaces


def _rewrite(
    twin: Any,
    node: Any,
    types: Mapping[str, str],
    arguments: Mapping[int, Shape],
    sizes: Mapping[int, Any],
) -> None:
    """Turn the copy of a node that cannot be imported into one with the same output shapes."""
    if node.op in ARGUMENT_TYPES:
        _state_argument(twin, node, arguments, sizes)
    elif node.op in RESULT_TYPES or node.op in _LOOP:
        _make_identity(twin, node)
    elif _closes_loop(node, types):
        _make_identity(twin, node)
        del twin.input[:]
        twin.input.extend(n for n in node.input if types[get_node_name(n)] != "NextIteration")
    elif node.op == "LookupTableFindV2":
        _make_element_wise(twin, node)
    elif node.op.startswith("_Mkl"):
        _make_plain(twin, node.op)


def _fuses_bias(kind: str) -> bool:
    """Return whether a oneDNN op computes the gradients of a filter and of a bias."""
    return kind.startswith("_Mkl") and kind.endswith(_BIAS_SUFFIX) and "BackpropFilter" in kind


def _has_workspace(kind: str) -> bool:
    """Return whether a oneDNN op is a max pooling with a workspace."""
    return kind.startswith("_Mkl") and "MaxPool" in kind and "Grad" not in kind


def _add_twin(copy: Any, node: Any) -> Any:
    """Add a copy of a node without its device and private attributes."""
    twin = copy.node.add()
    twin.CopyFrom(node)
    twin.device = ""
    for key in [key for key in twin.attr if key.startswith("_")]:
        del twin.attr[key]
    return twin


def _closes_loop(node: Any, types: Mapping[str, str]) -> bool:
    """Return whether a node merges the first and the later iterations of a loop."""
    sources = (types.get(get_node_name(name)) for name in node.input)
    return bool(node.op == "Merge" and "NextIteration" in sources)


def _redirect_inputs(graph_def: Any, redirects: Mapping[str, str]) -> None:
    """Replace inputs of all nodes except the added ones with known shapes and values."""
    for node in graph_def.node:
        for index, name in enumerate(node.input):
            if name in redirects and _MARK not in node.name:
                node.input[index] = redirects[name]


def _pin_known(copy: Any, graph_def: Any, known: Known) -> dict[str, str]:
    """Add a node for each known shape or value; return which input it replaces."""
    nodes = {node.name for node in copy.node}
    redirects: dict[str, str] = {}
    for tensor, value in known.values.items():
        pin = copy.node.add()
        pin.name = f"{_get_pin_name(tensor)}_value"
        _make_constant(pin, value)
        redirects[tensor] = pin.name
    types = _get_output_types(graph_def)
    for tensor, shape in known.shapes.items():
        if get_node_name(tensor) not in nodes:
            continue
        pin = copy.node.add()
        pin.name, pin.op = _get_pin_name(tensor), "EnsureShape"
        pin.input.append(tensor)
        pin.attr["T"].type = types[tensor]
        _set_shape(pin, shape)
        redirects.setdefault(tensor, f"{pin.name}:0")
    return redirects | {
        tensor.removesuffix(":0"): pin for tensor, pin in redirects.items() if tensor[-2:] == ":0"
    }


def _skip_switches(graph_def: Any) -> dict[str, str]:
    """Return, for each constant that reaches a branch through a ``Switch``, the constant itself.

    Shape functions that need a constant's value do not look through a ``Switch``; the size of a
    densified gradient in a branch is such a value.
    """
    nodes = {node.name: node for node in graph_def.node}
    redirects: dict[str, str] = {}
    for node in graph_def.node:
        source = node
        while source is not None and source.op in ("Switch", "RefSwitch"):
            source = nodes.get(get_node_name(source.input[0]))
        if source is not None and source is not node and source.op in ("Const", "HostConst"):
            redirects |= {node.name: source.name, f"{node.name}:1": source.name}
    return redirects


def _state_argument(
    twin: Any, node: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any]
) -> None:
    """Replace an argument by an op that states its shape, or its value if it may be a shape."""
    handles = node.attr["_handle_dtypes"].list.type
    index = int(node.attr["index"].i)
    twin.attr.clear()
    if handles:
        twin.op = "VarHandleOp"
        twin.attr["dtype"].type = handles[0]
        twin.attr["shape"].shape.CopyFrom(node.attr["_handle_shapes"].list.shape[0])
    elif index in sizes:
        _make_constant(twin, sizes[index])
        twin.attr["dtype"].type = node.attr["T"].type
    else:
        twin.op = "Placeholder"
        twin.attr["dtype"].type = node.attr["T"].type
        _set_shape(twin, arguments.get(index))


def _set_shape(node: Any, shape: Shape) -> None:
    axes = None if shape is None else [None if axis < 0 else axis for axis in shape]
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(axes).as_proto())


def _make_constant(node: Any, value: Any) -> None:
    proto = tf.make_tensor_proto(value)
    node.op = "Const"
    node.attr["dtype"].type = proto.dtype
    node.attr["value"].tensor.CopyFrom(proto)


def _make_identity(twin: Any, node: Any) -> None:
    dtype = node.attr["T"].type
    twin.op = "Identity"
    twin.attr.clear()
    twin.attr["T"].type = dtype


def _make_element_wise(twin: Any, node: Any) -> None:
    """Turn a look-up into an op of the same types that keeps the keys' shape.

    The look-up's shape function asks the table for the shape of its values, and no table exists here.
    Except in tables made by hand, values are scalars.
    """
    source, result = node.attr["Tin"].type, node.attr["Tout"].type
    string = tf.string.as_datatype_enum
    keys = node.input[1]
    twin.attr.clear()
    del twin.input[:]
    twin.input.append(keys)
    if source == result:
        twin.op = "Identity"
        twin.attr["T"].type = source
    elif result == string:
        twin.op = "AsString"
        twin.attr["T"].type = source
    elif source == string:
        twin.op = "StringToNumber"
        twin.attr["out_type"].type = result
    else:
        twin.op = "Cast"
        twin.attr["SrcT"].type, twin.attr["DstT"].type = source, result


def _make_plain(twin: Any, kind: str) -> None:
    """Turn a oneDNN node into the op that it replaces, without its extra inputs and attributes."""
    if "BackpropFilter" in kind:
        kind = kind.removesuffix(_BIAS_SUFFIX)
    plain = next((name for name in _list_plain_names(kind) if _accepts(name, twin)), None)
    if plain is None:
        return
    twin.op = plain
    definition = op_def_registry.get(plain)
    _drop_extra_inputs(twin, definition)
    known = {attr.name for attr in definition.attr}
    for key in [key for key in twin.attr if key not in known]:
        del twin.attr[key]


def _drop_extra_inputs(twin: Any, definition: Any) -> None:
    """Keep as many data inputs as the op takes.

    A fused factor, summand or workspace does not change the shape of the result.
    """
    if not any(arg.number_attr or arg.type_list_attr for arg in definition.input_arg):
        data = [name for name in twin.input if not name.startswith("^")]
        controls = [name for name in twin.input if name.startswith("^")]
        del twin.input[:]
        twin.input.extend([*data[: len(definition.input_arg)], *controls])


def _accepts(name: str, node: Any) -> bool:
    """Say whether an op of that name exists and accepts the node's element type.

    oneDNN's fused convolution accepts bfloat16; the op that it replaces does not.
    """
    definition = op_def_registry.get(name)
    if definition is None:
        return False
    allowed = next((a.allowed_values.list.type for a in definition.attr if a.name == "T"), ())
    return not allowed or "T" not in node.attr or node.attr["T"].type in allowed


def _list_plain_names(kind: str) -> list[str]:
    """Return the ops that a oneDNN node may replace, the likeliest first, unfused ones last."""
    names = []
    for prefix in _PREFIXES:
        if kind.startswith(prefix):
            core = kind.removeprefix(prefix)
            fused = f"_Fused{core}" if prefix == "_MklFused" else f"_{core}"
            names += [fused, core, f"{core}V2", f"{core}V3"]
    return [*names, *(name.removeprefix("_Fused") for name in names if name.startswith("_Fused"))]


def _add_bias(copy: Any, node: Any) -> str:
    bias = copy.node.add()
    bias.name = f"{node.name}/analyzer_bias"
    bias.op = "BiasAddGrad"
    bias.input.append(node.input[2])
    bias.attr["T"].type = node.attr["T"].type
    bias.attr["data_format"].CopyFrom(node.attr["data_format"])
    return str(bias.name)
