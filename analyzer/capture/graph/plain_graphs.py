"""Convert TensorFlow's graphs, traced or executed, to plain ops."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from analyzer.capture.private_names import get_functions, op_def_registry, tensor_util
from analyzer.capture.run.source_frames import find_own_line
from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.contract.run_note import Op, TensorSpec, op_types
from analyzer.model.graph.graph_index import find_inlined, remove_rewrite

# Constants with at most this many elements keep their values (axes, paddings, shapes).
_MAX_VALUES = 64
_INT64_END = 1 << 63  # larger numbers of uint64 are stored as text

# longer text attributes (serialised messages) are left out; bytes
_MAX_TEXT = 256
_CALLERS = op_types("If StatelessIf While StatelessWhile Case StatelessCase")

# Attributes beginning with an underscore that matter for memory.
_PRIVATE_ATTRIBUTES = frozenset({"_handle_dtypes", "_handle_shapes", "_XlaMustCompile"})


def read_executed_ops(
    partitions: Iterable[Any],
    traced: Mapping[str, tuple[TensorSpec, ...]],
    sources: Mapping[str, str],
) -> list[Op]:
    """Return the ops of the executor's graphs, with specs and code lines (``sources``) by op name."""
    nodes: dict[str, Any] = {}
    for graph_def in partitions:
        for node in graph_def.node:
            nodes.setdefault(node.name, node)

    ops = []
    for node in nodes.values():
        plain = {key: _get_plain_attribute(key, node.attr[key]) for key in node.attr}
        attrs = {key: value for key, value in plain.items() if value is not None}
        earlier = [name[1:] for name in node.input if name[0] == "^"]
        data = [name for name in node.input if name[0] != "^"]
        inputs = [name if ":" in name else f"{name}:0" for name in data]

        op = Op(
            name=node.name,
            type=node.op,
            inputs=tuple(inputs),
            control_inputs=tuple(earlier),
            outputs=_get_outputs(node, find_inlined(node.name, traced) or ()),
            device=node.device,
            attrs=attrs,
            source=find_inlined(remove_rewrite(node.name), sources) or "",
        )

        ops.append(op)

    return ops


def _get_outputs(node: Any, known: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the known outputs of a node, as far as their types are those of its op."""
    dtypes = get_output_dtypes(node)
    outputs = [TensorSpec(dtype, None) for dtype in dtypes]

    if node.op == "_Arg":
        return known or tuple(outputs)

    for index, (spec, dtype) in enumerate(zip(known, dtypes, strict=False)):
        if spec.dtype == dtype:
            outputs[index] = spec

    return tuple(outputs)


def get_output_dtypes(node: Any) -> list[str]:
    """Return TensorFlow's names of a node's output types."""
    definition = op_def_registry.get(node.op)
    dtypes: list[str] = []

    for output in definition.output_arg if definition is not None else ():
        if output.type_list_attr:
            dtypes += map(_get_dtype_name, node.attr[output.type_list_attr].list.type)
            continue

        number = output.type or node.attr[output.type_attr].type

        attr = output.number_attr
        count = int(node.attr[attr].i) if attr else 1
        dtypes += [_get_dtype_name(number)] * count

    return dtypes


def _get_dtype_name(number: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(number).name)
    except TypeError:
        return ""


def _get_plain_attribute(key: str, attr: Any) -> Any:
    """Return an attribute as plain values; None if it does not matter for memory."""
    if key.startswith("_") and key not in _PRIVATE_ATTRIBUTES:
        return None

    if attr.HasField("list"):
        plain: list[Any] = []
        for kind, values in attr.list.ListFields():
            plain += [_get_plain_value(kind.name, value) for value in values]

        return plain

    field = attr.WhichOneof("value")
    is_long = field == "s" and len(attr.s) > _MAX_TEXT and key != "frame_name"

    if field is None or is_long:
        return None

    return _get_plain_value(field, getattr(attr, field))


def _get_plain_value(field: str, value: Any) -> Any:
    match field:
        case "i" | "f" | "b":
            return value
        case "s":
            return decode_name(value)
        case "type":
            return _get_dtype_name(value)
        case "shape":
            if value.unknown_rank:
                return None

            return [dim.size for dim in value.dim]
        case "func":
            return {"function": value.name}
        case "tensor":
            return _get_plain_tensor(value)

    return None


def _get_plain_tensor(tensor: Any) -> dict[str, Any]:
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    plain: dict[str, Any] = {"dtype": _get_dtype_name(tensor.dtype), "shape": shape}
    count = int(np.prod(shape)) if shape else 1

    if count <= _MAX_VALUES and plain["dtype"] not in ("string", "resource", "variant"):
        values = tensor_util.MakeNdarray(tensor).ravel()
        if values.dtype.kind in "biuf":
            plain["values"] = [
                value if np.isfinite(value) and value < _INT64_END else str(value)
                for value in values.tolist()
            ]
    elif len(tensor.bool_val) == 1:
        plain["every"] = bool(tensor.bool_val[0])

    return plain


def read_traced_outputs(graph: Any) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the output specs of every op of a traced graph and of the functions that it calls."""
    outputs: dict[str, tuple[TensorSpec, ...]] = {}
    for op in list_ops(graph):
        outputs.setdefault(op.name, tuple(map(get_spec, op.outputs)))

    return outputs


def get_spec(tensor: Any) -> TensorSpec:
    """Return a graph tensor's dtype and static shape."""
    return TensorSpec(tensor.dtype.name, get_shape(tensor))


def get_shape(tensor: Any) -> tuple[int, ...] | None:
    """Return the static shape of a tensor or variable, -1 for an unknown axis."""
    shape = tf.TensorShape(tensor.shape)
    if shape.rank is None:
        return None

    return tuple(-1 if axis is None else axis for axis in shape)


def count_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor or a variable; 0 if they are unknown."""
    dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
    return tensor_bytes(dtype, get_shape(tensor)) or 0


def read_traced_ops(graph: Any, sources: Mapping[str, str]) -> list[Op]:
    """Return the ops of a traced graph and of the functions that it calls."""
    ops: dict[str, Op] = {}

    # Placeholders of a traced function are arguments of the graph that runs.
    arguments = {tensor.op.name: index for index, tensor in enumerate(graph.inputs)}

    for nested in collect_graphs(graph):
        for op in nested.get_operations():
            if op.name in ops:
                continue

            argument = arguments.get(op.name) if nested is graph else None
            ops[op.name] = Op(
                name=op.name,
                type=op.type if argument is None else "_Arg",
                attrs={} if argument is None else {"index": argument},
                inputs=tuple(tensor.name for tensor in op.inputs),
                control_inputs=tuple(control.name for control in op.control_inputs),
                outputs=tuple(get_spec(tensor) for tensor in op.outputs),
                device=op.device,
                source=sources.get(op.name, ""),
            )

    return list(ops.values())


def collect_function_graphs(graph: Any, name: str = "") -> dict[str, Any]:
    """Return the graph of a function, by ``name``, and of every function in it."""
    known = {name: graph}
    for nested in collect_graphs(graph):
        for inner, inner_graph in get_inner_graphs(nested).items():
            known.setdefault(inner, inner_graph)

    return known


def get_inner_graphs(graph: Any) -> dict[str, Any]:
    """Return the graphs of the functions that lie directly in a graph, by name."""
    graphs = {}
    for name, function in get_functions(graph).items():
        graphs[decode_name(name)] = getattr(function, "graph", None)

    return {name: inner for name, inner in graphs.items() if inner is not None}


def read_inner_ops(function: Any, names: Sequence[str]) -> list[Op]:
    """Return the traced ops of named functions; each function is one op of the executed step."""
    ops: dict[str, Op] = {}
    known = collect_function_graphs(function.graph, decode_name(function.name))

    for graph in (known[name] for name in names if name in known):
        for op in read_traced_ops(graph, find_sources(graph)):
            ops.setdefault(op.name, op)

    return list(ops.values())


def list_callees(op: Any) -> tuple[str, ...]:
    """Return the names of the functions that an op calls."""
    if not (op.outputs or op.inputs) or not ("Call" in op.type or op.type in _CALLERS):
        return ()

    attrs = op.node_def.attr.values()
    functions = [each for attr in attrs for each in (attr.func, *attr.list.func)]

    return tuple(each.name for each in functions if each.name)


def decode_name(name: Any) -> str:
    """Return a function's or node's name as text; TensorFlow may keep it as bytes."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")

    return str(name)


def collect_graphs(graph: Any) -> list[Any]:
    """Return the graph and the graphs of all functions in it, each once, outermost first."""
    graphs = [graph]
    seen = {id(graph)}

    for current in graphs:
        for nested in get_inner_graphs(current).values():
            if id(nested) not in seen:
                seen.add(id(nested))
                graphs.append(nested)

    return graphs


def list_ops(graph: Any) -> list[Any]:
    """Return the ops of the graph and of all functions in it, outermost graph first."""
    return [op for each in collect_graphs(graph) for op in each.get_operations()]


def find_compiled_calls(graph: Any) -> dict[str, list[str]]:
    """Return the ops that call each function with jit_compile=True, by the function's name."""
    callers: dict[str, list[str]] = {}
    for op in list_ops(graph):
        attrs = op.node_def.attr if "Call" in op.type else {}
        if "_XlaMustCompile" in attrs and attrs["_XlaMustCompile"].b:
            callers.setdefault(attrs["f"].func.name, []).append(op.name)

    return callers


def find_sources(graph: Any) -> dict[str, str]:
    """Return ``file:line`` of the innermost line of user code, by the name of the op that has one."""
    sources: dict[str, str] = {}
    for op in list_ops(graph):
        # A third of a step's ops are constant numbers, and reading lines is slow.
        is_number = op.type == "Const" and op.outputs[0].shape.rank == 0
        if op.name in sources or is_number:
            continue
        if line := find_op_line(op):
            sources[op.name] = line

    return sources


def find_op_line(op: Any) -> str:
    """Return ``file:line`` of the innermost line of user code that made an op, or ""."""
    if op.traceback is None:
        return ""

    return find_own_line(reversed(op.traceback.get_user_frames()))
