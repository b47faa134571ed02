"""Tensors of a GPU step in the card's memory or in the host's, and the copies between them.

A GPU kernel may read or write a tensor in host memory (``HostMemory`` in its registration): shapes,
axes, resource handles, lists, and most ``int32`` tensors ("a special GPU kernel for int32":
``cwise_op_*.cc``, ``constant_op.cc``, ``pack_op.cc``); the lists come from these registrations.
TensorFlow inserts a copy for a kernel that reads in the other memory (``EnsureMemoryTypes`` in
``memory_types.cc``, or ``_Send`` and ``_Recv`` of the partitioner).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from analyzer.model.contract.run_note import (
    RESULT_TYPES,
    Op,
    TensorSpec,
    read_op_types,
    split_tensor,
)

# Element types of variables that lie in host memory in a GPU step: ``VarHandleOp`` and
# ``AssignVariableOp`` have only host kernels for them.
VARIABLES_ON_HOST = frozenset({"int32", "string"})

COPY = "_Recv"  # op type of a copy from the host to the card
COPY_BACK = "_HostRecv"  # op type of a copy from the card to the host

# Element types that lie in host memory, except outputs of ``_DEVICE_INT32`` ops.
_HOST_TYPES = frozenset({"int32", "resource", "variant", "string", ""})

_TABLES = read_op_types("model/graph/graph_op_types.toml")
_HOST_ONLY = _TABLES["types"]["host_only"]
_SHAPES = _TABLES["types"]["shapes"]
_COMPARISONS = _TABLES["types"]["comparisons"]
_DEVICE_INT32 = _TABLES["types"]["device_int32"]

# Op type -> numbers of inputs; ``graph_op_types.toml`` describes each table.
_DEVICE_INT32_INPUTS, _HOST_INPUTS = (
    {
        name: {*map(int, inputs.split())}
        for inputs, names in _TABLES[key].items()
        for name in names
    }
    for key in ("device_int32_inputs", "host_inputs")
)


def runs_on_host(op: Op) -> bool:
    """Say whether the op runs on the host: the user placed it there, or it has no GPU kernel."""
    return op.type in _HOST_ONLY or "CPU" in op.device.upper()


def is_output_on_host(op: Op, index: int, inputs: Sequence[TensorSpec | None]) -> bool:
    """Say whether an output lies in host memory; ``inputs`` are None if unknown."""
    dtype = op.outputs[index].dtype if index < len(op.outputs) else ""

    if runs_on_host(op) or op.type in _SHAPES or op.type == COPY_BACK:
        return True
    if op.type in _COMPARISONS:
        return bool(inputs) and inputs[0] is not None and inputs[0].dtype in _HOST_TYPES

    is_on_card = dtype == "int32" and (op.type in _DEVICE_INT32 or op.type == COPY)

    return dtype in _HOST_TYPES and not is_on_card


def is_input_on_host(op: Op, index: int, inputs: Sequence[TensorSpec | None]) -> bool:
    """Say whether the kernel reads an input in host memory; ``inputs`` are None if unknown."""
    spec = inputs[index]

    if op.type in (COPY, COPY_BACK):
        return op.type == COPY
    if op.attrs.get("_XlaMustCompile"):  # its arguments lie on the card, except handles
        return spec is None or spec.dtype == "resource"

    if runs_on_host(op) or spec is None or index in _HOST_INPUTS.get(op.type, ()):
        return True

    if spec.dtype == "int32":
        return index not in _DEVICE_INT32_INPUTS.get(op.type, ())

    # The caller copies a result of the step if necessary.
    return spec.dtype in _HOST_TYPES or op.type in RESULT_TYPES


def place_by_handles(ops: Sequence[Op]) -> list[Op]:
    """Place ops that use a variable in host memory there, as TensorFlow's placer does.

    The device of the variable's argument says where it lies.
    """
    hosted = {
        op.name: op.device for op in ops if op.type == "_Arg" and runs_on_host(op)
    }
    result = []

    for op in ops:
        makers = [split_tensor(tensor)[0] for tensor in op.inputs]
        devices = [hosted[name] for name in makers if name in hosted]

        if devices and any(spec.dtype == "resource" for spec in op.outputs):
            hosted[op.name] = devices[0]

        result.append(replace(op, device=devices[0]) if devices else op)

    return result


def insert_host_copies(ops: Iterable[Op]) -> list[Op]:
    """Return the graph with one copy of each tensor that a kernel reads in the other memory."""
    by_name = {op.name: op for op in ops}

    def find_spec(tensor: str) -> TensorSpec | None:
        name, index = split_tensor(tensor)
        outputs = by_name[name].outputs if name in by_name else ()
        return outputs[index] if index < len(outputs) else None

    inputs = {op.name: [*map(find_spec, op.inputs)] for op in by_name.values()}

    result = []
    copies = {}

    for op in by_name.values():
        feeds = list(op.inputs)

        for index, tensor in enumerate(op.inputs):
            spec = inputs[op.name][index]
            if spec is None:
                continue

            name, output = split_tensor(tensor)
            source = by_name[name]
            reads_host = is_input_on_host(op, index, inputs[op.name])
            if is_output_on_host(source, output, inputs[name]) == reads_host:
                continue
            if reads_host and op.type in RESULT_TYPES:
                continue

            if tensor not in copies:
                place = "host" if reads_host else "gpu"
                copies[tensor] = f"{name}/copy_to_{place}_{output}"
                kind = COPY_BACK if reads_host else COPY
                copy = Op(copies[tensor], kind, inputs=(tensor,), outputs=(spec,))
                result.append(replace(copy, device=op.device, source=source.source))

            feeds[index] = f"{copies[tensor]}:0"

        result.append(replace(op, inputs=tuple(feeds)))

    return result
