"""Functions that XLA compiles: their modules and their memory plans, with nothing of them run.

TensorFlow lowers a function to an HLO module and compiles it for this machine's CPU when it is asked
for its *compiler IR*. It needs the shapes of the arguments and variables that are there: variables get
a stand-in whose value is a stretch of one buffer that is never written to, so that no page of it is
ever backed by memory.

The compiled module with its buffer assignment is what XLA dumps where ``XLA_FLAGS`` named a folder
before the process compiled anything (``xla_dumps``); where that is not so,
it is put
together from two of TensorFlow's stages, at the cost of a second compilation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from analyzer.capture.graph.executor_graph import (
    StaticStep,
    build_executor_graph,
    find_used_variables,
    get_handle_type,
)
from analyzer.capture.graph.plain_graphs import (
    collect_function_graphs,
    collect_graphs,
    decode_name,
    get_shape,
    get_spec,
)
from analyzer.capture.initializers.memoryless_tensors import CPU_DEVICE, StandIns, open_stand_ins
from analyzer.capture.private_names import context, tensor_util
from analyzer.capture.run.source_frames import clean_message
from analyzer.capture.xla.allocator_requests import Requests, lasting, record_requests
from analyzer.capture.xla.compile_time_inputs import FixedInputs
from analyzer.capture.xla.xla_dumps import count_dumps, empty, packed, read_dumped_plan
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, FRAME_TYPES, Op, TensorSpec
from analyzer.model.errors import TargetError
from analyzer.model.graph.ops import split_tensor
from analyzer.tracing.parse.hloproto import Hlo

_FUNCTION: Final = "__inference_"
_FEW_VALUES: Final = 64
"""Elements up to which a constant's values are looked at: axes, shapes, paddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredFunction:
    """One function that XLA compiles, for the shapes that one or more ops call it with.

    Attributes:
        ops: Names of the ops that call it.
        function: Its name.
        module: The module before XLA's passes (HloModuleProto), for another device's compiler.
        plan: The compiled module and its buffer assignment (HloProto) without literals; empty where
            it was not asked for.
        requests: What lowering it asks the CPU's allocator for, as
            ``Requests`` lists it: constants are folded.
        platform: The device that the plan is for: ``cpu`` or ``gpu``.
        fixed: The inputs of such an op whose values are compiled in, and the op inside that needs to
            know each; see ``compile_time_inputs``.
        compilations: How often it was compiled while it ran; 0 where nothing ran.
    """

    ops: tuple[str, ...]
    function: str
    module: bytes
    plan: bytes
    requests: tuple[tuple[int, int], ...] = ()
    platform: str = "cpu"
    fixed: tuple[tuple[int, str], ...] = ()
    compilations: int = 0


def is_compiled_call(op: Op) -> bool:
    """Say whether an op calls a function that XLA compiles."""
    return bool(op.attrs.get("_XlaMustCompile")) and isinstance(op.attrs.get("f"), dict)


def is_compiled(function: Any) -> bool:
    """Say whether XLA compiles a concrete function as a whole."""
    return bool(function.function_def.attr["_XlaMustCompile"].b)


def build_compiled_graph(function: Any, args: Sequence[Any] = ()) -> StaticStep:
    """Return the graph around the function that XLA compiles: its arguments, the call, the results.

    Args:
        function: The step's concrete function, itself compiled or with calls of compiled functions.
        args: What the step is fed. Axes that its signature leaves open have these sizes: XLA compiles
            the function for the shapes that it is called with (``xla_compilation_cache.cc``).
    """
    if not is_compiled(function):
        return build_executor_graph(function)
    ops = [
        Op(
            name=tensor.op.name,
            type="_Arg",
            outputs=(_fed_spec(tensor, args[index] if index < len(args) else None),),
            attrs={"index": index},
        )
        for index, tensor in enumerate(function.inputs)
    ]
    taken = {op.name for op in ops}
    name = decode_name(function.name)
    call = name.removeprefix(_FUNCTION).rpartition("_")[0] or name
    while call in taken:
        call += "_"
    ops.append(
        Op(
            name=call,
            type="StatefulPartitionedCall",
            inputs=tuple(f"{op.name}:0" for op in ops),
            outputs=tuple(_spec(tensor) for tensor in function.outputs),
            attrs={"f": {"function": name}, "_XlaMustCompile": True},
        )
    )
    ops += [
        Op(name=f"{call}_RetVal_{index}", type="_Retval", inputs=(f"{call}:{index}",))
        for index in range(len(function.outputs))
    ]
    captures = list(function.captured_inputs)
    return StaticStep(ops=tuple(ops), variables=find_used_variables(function, captures, ops))


def compile_calls(
    function: Any,
    ops: Sequence[Op],
    dump: Path | None,
    *,
    args: Sequence[Any] = (),
    plans: bool = True,
) -> tuple[list[LoweredFunction], list[str]]:
    """Lower and compile every function of a step that XLA compiles.

    Args:
        function: The step's concrete function.
        ops: The graph that its executor runs.
        dump: The folder that ``xla_dumps`` named, None where XLA dumps nothing.
        args: What the step is fed: some of it may be compiled in.
        plans: Compile for this machine's CPU too; False only lowers.

    Returns:
        The functions, and a sentence for each that could not be compiled.

    Raises:
        TargetError: the step itself cannot be compiled.
    """
    by_name = {op.name: op for op in ops}
    functions = collect_function_graphs(function)
    known = FixedInputs(functions)
    calls = _calls(function, ops, by_name, functions)
    found: list[LoweredFunction] = []
    doubts: list[str] = []
    for (name, inputs), callers in calls.items():
        fixed = _fixed(known, name)
        compiled_in = {index: _fed(callers[0].inputs[index], by_name, args) for index, _ in fixed}
        with open_stand_ins() as things:
            try:
                module, plan, requests = _compile(
                    name, inputs, things, dump, plans=plans, compiled_in=compiled_in
                )
            except (ValueError, tf.errors.OpError) as error:
                reason = _reason(error)
                if len(calls) == 1 and len(callers) == 1 and _is_whole(ops):
                    raise TargetError(
                        f"The step cannot be compiled with XLA: {reason}",
                        hint="Estimate it op by op with --no-jit.",
                    ) from error
                doubts.append(f"The function of {callers[0].name} cannot be compiled: {reason}")
                continue
        found.append(
            LoweredFunction(
                ops=tuple(op.name for op in callers),
                function=name,
                module=module,
                plan=plan,
                requests=tuple(requests),
                fixed=fixed,
            )
        )
    return found, doubts


def read_compiled_functions(function: Any, dump: Path) -> list[LoweredFunction]:
    """Return the functions of a step that ran and that XLA compiled, as it left them.

    Args:
        function: The step's concrete function.
        dump: The folder that ``xla_dumps`` named.
    """
    callers: dict[str, list[str]] = {}
    if is_compiled(function):
        callers[decode_name(function.name)] = [decode_name(function.name)]
    for graph in collect_graphs(function.graph):
        for op in graph.get_operations():
            attrs = op.node_def.attr if "Call" in op.type else {}
            if "_XlaMustCompile" in attrs and attrs["_XlaMustCompile"].b:
                callers.setdefault(attrs["f"].func.name, []).append(op.name)
    found = []
    known = FixedInputs(collect_function_graphs(function))
    for name, ops in callers.items():
        plan, platform = read_dumped_plan(dump, name)
        if plan:
            found.append(
                LoweredFunction(
                    ops=tuple(ops),
                    function=name,
                    module=b"",
                    plan=plan,
                    platform=platform,
                    fixed=_fixed(known, name),
                    compilations=count_dumps(dump, name),
                )
            )
    return found


def _fixed(found: FixedInputs, name: str) -> tuple[tuple[int, str], ...]:
    graph = found.graphs.get(name)
    return () if graph is None else tuple(found.of(graph).items())


def _is_whole(ops: Sequence[Op]) -> bool:
    """Say whether the graph is little more than one call."""
    return sum(op.type not in FRAME_TYPES for op in ops) <= 1


def _arguments(function: Any) -> dict[int, tuple[Any, Any]]:
    """Return dtype and shape of the variable behind each argument that is a handle."""
    captures = list(function.captured_inputs)
    first = len(function.inputs) - len(captures)
    return {
        first + position: get_handle_type(capture)
        for position, capture in enumerate(captures)
        if capture.dtype == tf.resource
    }


def _calls(
    function: Any, ops: Sequence[Op], by_name: dict[str, Op], functions: dict[str, Any]
) -> dict[tuple[Any, ...], list[Op]]:
    """Return the calls of compiled functions; those with equal inputs share one compilation.

    Args:
        function: The step's concrete function.
        ops: The graph that its executor runs.
        by_name: The same ops by name.
        functions: The graphs of the functions that they call, by name.
    """
    calls: dict[tuple[Any, ...], list[Op]] = {}
    arguments = _arguments(function)
    for op in ops:
        if is_compiled_call(op):
            inputs = tuple(
                _described(tensor, by_name, arguments, functions) for tensor in op.inputs
            )
            calls.setdefault((op.attrs["f"]["function"], inputs), []).append(op)
    return calls


def _described(
    tensor: str,
    by_name: dict[str, Op],
    arguments: dict[int, tuple[Any, Any]],
    functions: dict[str, Any],
) -> tuple[Any, ...]:
    """Return what one input of a call is: its kind, dtype and shape, or its value."""
    name, index = split_tensor(tensor)
    op = by_name[name]
    spec = op.outputs[index] if index < len(op.outputs) else TensorSpec("", None)
    if spec.dtype != "resource":
        value = op.attrs.get("value")
        if op.type in ("Const", "HostConst") and isinstance(value, dict) and "values" in value:
            return "value", spec.dtype, spec.shape, tuple(value["values"])
        if isinstance(op.attrs.get("f"), dict):
            # A function's gradient takes what it needs from the function: its axes and shapes too.
            values = _constant_output(functions.get(op.attrs["f"]["function"]), index)
            if values is not None:
                return "value", spec.dtype, spec.shape, values
        return "tensor", spec.dtype, spec.shape
    while op.type not in ARGUMENT_TYPES and op.inputs:
        op = by_name[split_tensor(op.inputs[0])[0]]
    dtype, shape = arguments.get(int(op.attrs.get("index", -1)), (None, None))
    return "variable", None if dtype is None else dtype.name, shape


def _fed(tensor: str, by_name: dict[str, Op], args: Sequence[Any]) -> Any:
    """Return the tensor that an input of a call is where the step is fed with it, else None.

    A spec that stands for one has no value: None too.
    """
    op = by_name[split_tensor(tensor)[0]]
    while op.type == "Identity" and op.inputs:
        op = by_name[split_tensor(op.inputs[0])[0]]
    index = int(op.attrs.get("index", -1)) if op.type in ARGUMENT_TYPES else -1
    fed = args[index] if 0 <= index < len(args) else None
    return None if isinstance(fed, tf.TensorSpec) else fed


def _constant_output(graph: Any, index: int) -> tuple[Any, ...] | None:
    """Return the values of a function's output where it is a small constant, flat."""
    if graph is None or index >= len(graph.outputs):
        return None
    values = tensor_util.constant_value(graph.outputs[index])
    if values is None or np.size(values) > _FEW_VALUES or values.dtype.kind not in "biuf":
        return None
    return tuple(values.ravel().tolist())


def _compile(
    name: str,
    inputs: Sequence[tuple[Any, ...]],
    things: StandIns,
    dump: Path | None,
    *,
    plans: bool,
    compiled_in: Mapping[int, Any],
) -> tuple[bytes, bytes, list[tuple[int, int]]]:
    for kind, dtype, shape, *_ in inputs:
        if dtype is None or shape is None or any(axis < 0 for axis in shape):
            raise ValueError(f"a {kind} of unknown shape goes in")
    # Specs come first and things after them, as TensorFlow tells arguments from captures. Only where
    # all arguments are things does it look at their values.
    leading = 0
    if all(
        described[0] == "variable" or (described[0] == "tensor" and index not in compiled_in)
        for index, described in enumerate(inputs)
    ):
        while leading < len(inputs) and inputs[leading][0] == "tensor":
            leading += 1
    specs = [tf.TensorSpec(shape, dtype) for _, dtype, shape, *_ in inputs[:leading]]
    held = [
        compiled_in[index]
        if compiled_in.get(index) is not None
        else _thing(described, things, filled=index in compiled_in)
        for index, described in enumerate(inputs[leading:], start=leading)
    ]
    if not specs:
        specs, held = held, []

    def stage(which: str) -> bytes:
        return bytes(
            context.context().get_compiler_ir(
                device_name=CPU_DEVICE,
                platform_name=None,
                function_name=name,
                flat_args=specs,
                captured_inputs=held,
                stage=which,
            )
        )

    recording = contextlib.nullcontext(Requests()) if dump is None else record_requests(dump.parent)
    with recording as recorded:
        module = stage("hlo_serialized")
    requests = lasting(recorded.events)
    if not plans:
        return module, b"", requests
    compiled = stage("optimized_hlo_proto_serialized")
    plan = b""
    if dump is not None:
        plan, _ = read_dumped_plan(dump, name)
        empty(dump)
    if not plan:
        plan = _put_together(compiled, stage("optimized_hlo_serialized"))
    return module, plan, requests


def _thing(described: tuple[Any, ...], things: StandIns, *, filled: bool) -> Any:
    kind, dtype, shape, *values = described
    if kind == "variable":
        return things.variable(tf.as_dtype(dtype), shape, filled=filled)
    if kind == "value":
        return tf.constant(values[0], dtype, shape)
    return (things.filled if filled else things.tensor)(tf.as_dtype(dtype), shape)


def _put_together(compiled: bytes, module: bytes) -> bytes:
    """Return the buffer assignment of one stage with the module of the other.

    The first holds a module from before the last passes beside it.
    """
    proto = Hlo()
    proto.ParseFromString(compiled)
    proto.hlo_module.Clear()
    proto.hlo_module.ParseFromString(module)
    return packed(proto)


def _reason(error: Exception) -> str:
    text = clean_message(str(error)).removeprefix("Failed getting HLO text: ").strip("'\" ")
    return text.split(". ")[0].splitlines()[0] if text else type(error).__name__


def _fed_spec(tensor: Any, fed: Any) -> TensorSpec:
    """Return an argument's dtype and shape, with the axes of what it is fed with."""
    spec = _spec(tensor)
    axes = None if fed is None or spec.dtype == "resource" else get_shape(fed)
    return spec if axes is None else TensorSpec(spec.dtype, axes)


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec("resource", ()) if tensor.dtype == tf.resource else get_spec(tensor)
