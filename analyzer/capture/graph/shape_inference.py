"""Shapes of a graph that the executor runs.

The executed graph has lost its shapes, and some of its fused oneDNN kernels have shape functions that
are wrong or missing. So a copy of it is imported in which each of them is the plain op that it stands
for, each argument states its own shape, and each loop is cut open: a loop keeps the shapes that enter
it, which is what ``tf.while_loop`` requires of it. Nothing runs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import get_output_dtypes, get_spec, read_traced_outputs
from analyzer.capture.private_names import graph_pb2, op_def_registry
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, RESULT_TYPES, TensorSpec

Shape = tuple[int, ...] | None

_LOOP: Final = ("Enter", "Exit", "NextIteration")
_PREFIXES: Final = ("_MklNative", "_MklFused", "_Mkl")
_BIAS_SUFFIX: Final = "WithBias"
_BOUNDS: Final = {"Minimum": "Maximum", "Maximum": "Minimum"}
_PIN: Final = re.compile(r"\{\{node ([^{}]+)/analyzer_known_([0-9]+)\}\}")
"""How TensorFlow's messages name the node that states a known shape."""

_FEW_SIZES: Final = 8
"""Most elements of an argument that may be a shape: TensorFlow's tensors have up to eight axes."""


@dataclass(slots=True)
class Known:
    """What is known of tensors that the graph does not tell, by name (``node:output``).

    Attributes:
        shapes: Shapes, -1 for an axis that is not known.
        values: Values, as arrays.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def infer_outputs(
    graph_def: Any,
    arguments: Mapping[int, Shape],
    sizes: Mapping[int, Any] | None = None,
    known: Known | None = None,
) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the output specs of every node of an executed graph.

    Args:
        graph_def: A partition graph.
        arguments: Shapes of the arguments by index, where they are known.
        sizes: Values of arguments that may be sizes, as arrays by index (``get_argument_sizes``).
        known: What else is known.
    """
    return infer_graph(graph_def, arguments, sizes or {}, known or Known())[0]


def infer_graph(
    graph_def: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any], known: Known
) -> tuple[dict[str, tuple[TensorSpec, ...]], tf.Graph]:
    """Return the output specs of every node, and the copy of the graph that told them.

    Args:
        graph_def: The graph that runs, a ``GraphDef``.
        arguments: Index of an argument -> its shape.
        sizes: Index of an argument -> its value, where that may be sizes (``get_argument_sizes``).
        known: Sizes that depend on data, as far as they are told.
    """
    copy, biases, workspaces = _importable(graph_def, arguments, sizes, known)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(copy, name="")
    outputs: dict[str, tuple[TensorSpec, ...]] = {}
    for node in graph_def.node:
        specs = [_spec(tensor) for tensor in graph.get_operation_by_name(node.name).outputs]
        if node.name in biases:
            specs.append(_spec(graph.get_tensor_by_name(f"{biases[node.name]}:0")))
        if node.name in workspaces and len(specs) == 1:
            specs.append(TensorSpec("uint8", specs[0].shape))
        if node.op == "Merge" and len(specs) == 1:
            specs.append(TensorSpec("int32", ()))
        for index, spec in enumerate(specs):
            name = f"{node.name}:{index}"
            if name in known.shapes:
                pinned = graph.get_tensor_by_name(f"{_pin_name(name)}:0")
                specs[index] = TensorSpec(spec.dtype, _spec(pinned).shape)
        outputs[node.name] = () if node.op in RESULT_TYPES else tuple(specs)
    return outputs, graph


def get_argument_shapes(function: Any, given: Sequence[Any] = ()) -> dict[int, Shape]:
    """Return the shapes of a concrete function's arguments by index, but for handles.

    Args:
        function: A ``ConcreteFunction``.
        given: The tensors that it is called with, whose shapes are known where the function's own
            arguments leave axes open (the parts of a sparse or ragged tensor).
    """
    shapes: dict[int, Shape] = {}
    for index, tensor in enumerate(function.inputs):
        if tensor.dtype == tf.resource:
            continue
        shape = tensor.shape
        if index < len(given) and given[index].dtype == tensor.dtype:
            shape = given[index].shape
        shapes[index] = None if shape.rank is None else tuple(-1 if a is None else a for a in shape)
    return shapes


def get_argument_sizes(function: Any, given: Sequence[Any]) -> dict[int, Any]:
    """Return the values of a function's arguments that may be sizes: a few whole numbers each.

    The shape of a sparse tensor is one of its parts, and decides the shapes of what is made of it.
    """
    return {
        index: tensor.numpy()
        for index, tensor in enumerate(given)
        if index < len(function.inputs)
        and tensor.dtype == function.inputs[index].dtype
        and tensor.dtype in (tf.int32, tf.int64)
        and (tensor.shape.rank or 0) < 2
        and tensor.shape.num_elements() <= _FEW_SIZES
        and hasattr(tensor, "numpy")
    }


def infer_executed_outputs(
    function: Any, partitions: Sequence[Any], given: Sequence[Any] = ()
) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the output specs of the executed graphs' ops: the graphs have lost their shapes.

    They are inferred anew, as for an estimate; where TensorFlow cannot import a graph (one that sends
    to another device), its ops have the shapes of the traced ops that they are named after.

    Args:
        function: The concrete function that was traced.
        partitions: The graphs that the executor ran, ``GraphDef``s.
        given: The arguments that it was called with; none where they are not known.
    """
    outputs = read_traced_outputs(function.graph)
    shapes, sizes = get_argument_shapes(function, given), get_argument_sizes(function, given)
    for graph_def in partitions:
        with contextlib.suppress(ValueError, TypeError, KeyError, tf.errors.OpError):
            outputs |= infer_outputs(graph_def, shapes, sizes)
    return outputs


def _spec(tensor: Any) -> TensorSpec:
    spec = get_spec(tensor)
    return TensorSpec(spec.dtype.removesuffix("_ref"), spec.shape)


def _pin_name(tensor: str) -> str:
    return tensor.replace(":", "/analyzer_known_")


def find_refuted_tensor(error: str) -> str:
    """Return the tensor (``node:output``) whose known shape an import failed on; empty for none."""
    found = _PIN.search(error)
    return ":".join(found.groups()) if found else ""


def _pin(copy: Any, graph_def: Any, known: Known) -> dict[str, str]:
    """Add a node for each tensor of which something is known; return what takes whose place."""
    nodes = {node.name: node for node in copy.node}
    redirected: dict[str, str] = {}
    for tensor, value in known.values.items():
        pin = copy.node.add()
        pin.name, pin.op = f"{_pin_name(tensor)}_value", "Const"
        proto = tf.make_tensor_proto(value)
        pin.attr["dtype"].type = proto.dtype
        pin.attr["value"].tensor.CopyFrom(proto)
        redirected[tensor] = pin.name
    types = get_output_types(graph_def)
    for tensor, shape in known.shapes.items():
        if _node_of(tensor) not in nodes:
            continue
        pin = copy.node.add()
        pin.name, pin.op = _pin_name(tensor), "EnsureShape"
        pin.input.append(tensor)
        pin.attr["T"].type = types[tensor]
        axes = [None if axis < 0 else axis for axis in shape]
        pin.attr["shape"].shape.CopyFrom(tf.TensorShape(axes).as_proto())
        redirected.setdefault(tensor, f"{pin.name}:0")
    return redirected | {
        tensor.removesuffix(":0"): pin for tensor, pin in redirected.items() if tensor[-2:] == ":0"
    }


def get_output_types(graph_def: Any) -> dict[str, int]:
    """Return the number of the element type of every tensor (``node:output``)."""
    return {
        f"{node.name}:{index}": tf.dtypes.as_dtype(dtype).as_datatype_enum
        for node in graph_def.node
        for index, dtype in enumerate(get_output_dtypes(node))
        if dtype
    }


def _importable(
    graph_def: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any], known: Known
) -> tuple[Any, dict[str, str], set[str]]:
    """Return a copy that every TensorFlow can import, and what had to be cut from it.

    The second value names, for each filter gradient with a fused bias, the node that has the bias'
    shape; the third the poolings whose second output is oneDNN's workspace: the index of each
    maximum, a byte each.
    """
    copy = graph_pb2.GraphDef()
    copy.versions.CopyFrom(graph_def.versions)
    copy.library.CopyFrom(graph_def.library)
    types = {node.name: node.op for node in graph_def.node}
    biases: dict[str, str] = {}
    workspaces: set[str] = set()
    for node in graph_def.node:
        twin = copy.node.add()
        twin.CopyFrom(node)
        twin.device = ""
        for key in [key for key in twin.attr if key.startswith("_")]:
            del twin.attr[key]
        if node.op in ARGUMENT_TYPES:
            _state_argument(twin, node, arguments, sizes)
        elif node.op in RESULT_TYPES or node.op in _LOOP:
            _as_identity(twin, node)
        elif node.op == "Merge" and any(
            types.get(_node_of(name)) == "NextIteration" for name in node.input
        ):
            entering = [n for n in node.input if types.get(_node_of(n)) != "NextIteration"]
            _as_identity(twin, node)
            del twin.input[:]
            twin.input.extend(entering)
        elif node.op == "LookupTableFindV2":
            _as_element_wise(twin, node)
        elif node.op.startswith("_Mkl"):
            if node.op.endswith(_BIAS_SUFFIX) and "BackpropFilter" in node.op:
                biases[node.name] = _add_bias(copy, node)
            _as_plain(twin, node.op)
            if "MaxPool" in node.op and "Grad" not in node.op:
                workspaces.add(node.name)
    redirected = {f"{name}:1": bias for name, bias in biases.items()}
    redirected |= _past_switches(graph_def) | _past_bounds(graph_def) | _pin(copy, graph_def, known)
    for twin in copy.node:
        for index, name in enumerate(twin.input):
            if name in redirected and "/analyzer_known_" not in twin.name:
                twin.input[index] = redirected[name]
    return copy, biases, workspaces


def _past_switches(graph_def: Any) -> dict[str, str]:
    """Return, for each constant that a branch gets through a ``Switch``, the constant itself.

    A shape function that asks for a constant's value does not look through a ``Switch``; the size of a
    densified gradient in a branch is such a value.
    """
    nodes = {node.name: node for node in graph_def.node}
    found: dict[str, str] = {}
    for node in graph_def.node:
        source = node
        while source is not None and source.op in ("Switch", "RefSwitch"):
            source = nodes.get(_node_of(source.input[0]))
        if source is not None and source is not node and source.op in ("Const", "HostConst"):
            found |= {node.name: source.name, f"{node.name}:1": source.name}
    return found


def _past_bounds(graph_def: Any) -> dict[str, str]:
    """Return, for each number whose least and highest values are one constant, that constant.

    ``tf.math.bincount`` bounds its number of bins so, whatever the largest value is.
    """
    nodes = {node.name: node for node in graph_def.node}
    found: dict[str, str] = {}
    for node in graph_def.node:
        if node.op not in _BOUNDS:
            continue
        for bound, inner in (node.input[:2], node.input[1::-1]):
            within = nodes.get(_node_of(inner))
            if within is None or within.op != _BOUNDS[node.op]:
                continue
            limit = _number(nodes.get(_node_of(bound)))
            others = [_number(nodes.get(_node_of(name))) for name in within.input[:2]]
            if limit is not None and limit in others:
                found[node.name] = bound
    return found


def _number(node: Any) -> int | None:
    """Return the value of a constant that is one whole number."""
    if node is None or node.op not in ("Const", "HostConst"):
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.size == 1 and value.dtype.kind == "i" else None


def _state_argument(
    twin: Any, node: Any, arguments: Mapping[int, Shape], sizes: Mapping[int, Any]
) -> None:
    handles = node.attr["_handle_dtypes"].list.type
    twin.attr.clear()
    if handles:
        twin.op = "VarHandleOp"
        twin.attr["dtype"].type = handles[0]
        twin.attr["shape"].shape.CopyFrom(node.attr["_handle_shapes"].list.shape[0])
        return
    index = int(node.attr["index"].i)
    if index in sizes:
        twin.op = "Const"
        twin.attr["dtype"].type = node.attr["T"].type
        twin.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(sizes[index]))
        return
    shape = arguments.get(index)
    twin.op = "Placeholder"
    twin.attr["dtype"].type = node.attr["T"].type
    known = None if shape is None else [None if axis < 0 else axis for axis in shape]
    twin.attr["shape"].shape.CopyFrom(tf.TensorShape(known).as_proto())


def _as_identity(twin: Any, node: Any) -> None:
    dtype = node.attr["T"].type
    twin.op = "Identity"
    twin.attr.clear()
    twin.attr["T"].type = dtype


def _as_element_wise(twin: Any, node: Any) -> None:
    """Turn a look-up into an op of the same types that keeps the keys' shape.

    The look-up's own shape function asks the table, which is not there, what shape its values have:
    single ones but in tables made by hand.
    """
    given, wanted = node.attr["Tin"].type, node.attr["Tout"].type
    string = tf.string.as_datatype_enum
    keys = node.input[1]
    twin.attr.clear()
    del twin.input[:]
    twin.input.append(keys)
    if given == wanted:
        twin.op = "Identity"
        twin.attr["T"].type = given
    elif wanted == string:
        twin.op = "AsString"
        twin.attr["T"].type = given
    elif given == string:
        twin.op = "StringToNumber"
        twin.attr["out_type"].type = wanted
    else:
        twin.op = "Cast"
        twin.attr["SrcT"].type, twin.attr["DstT"].type = given, wanted


def _as_plain(twin: Any, kind: str) -> None:
    """Turn a oneDNN node into the op that it stands for, without its extra inputs and attributes."""
    if kind.endswith(_BIAS_SUFFIX) and "BackpropFilter" in kind:
        kind = kind.removesuffix(_BIAS_SUFFIX)
    plain = next((name for name in _plain_names(kind) if _takes(name, twin)), None)
    if plain is None:
        return
    twin.op = plain
    definition = op_def_registry.get(plain)
    if not any(arg.number_attr or arg.type_list_attr for arg in definition.input_arg):
        # What is fused into it (a factor, a summand, a workspace) leaves its result's shape as it is.
        fed = [name for name in twin.input if not name.startswith("^")][: len(definition.input_arg)]
        waited = [name for name in twin.input if name.startswith("^")]
        del twin.input[:]
        twin.input.extend([*fed, *waited])
    known = {attr.name for attr in definition.attr}
    for key in [key for key in twin.attr if key not in known]:
        del twin.attr[key]


def _takes(name: str, node: Any) -> bool:
    """Say whether there is an op of that name, and for the node's element type.

    oneDNN's fused convolution takes bfloat16; the op that it stands for does not.
    """
    definition = op_def_registry.get(name)
    if definition is None:
        return False
    allowed = next((a.allowed_values.list.type for a in definition.attr if a.name == "T"), ())
    return not allowed or "T" not in node.attr or node.attr["T"].type in allowed


def _plain_names(kind: str) -> list[str]:
    """Return the ops that a oneDNN node may stand for, the likeliest first, the unfused one last."""
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


def _node_of(name: str) -> str:
    return name.removeprefix("^").split(":")[0]
