"""Modules and memory plans of functions that XLA compiles, without running them.

TensorFlow lowers a function to an HLO module and compiles it for this machine's CPU when asked for its
*compiler IR*; its variables are stand-ins without memory (``unbacked_variables``). XLA dumps the
compiled module with its buffer assignment if ``XLA_FLAGS`` named a folder before the process compiled
anything (``xla_dumps``). Otherwise two of TensorFlow's stages give it with a second compilation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture.graph import plain_graphs
from analyzer.capture.graph.executor_graph import (
    StaticStep,
    build_executor_graph,
    get_handle_type,
)
from analyzer.capture.graph.unbacked_variables import CPU_DEVICE, StandIns
from analyzer.capture.private_names import context, tensor_util
from analyzer.capture.run.source_frames import clean_message
from analyzer.capture.xla.compile_time_inputs import FixedInputs
from analyzer.capture.xla.xla_dumps import list_dumps, pack, read_dumped_plan
from analyzer.model.contract.graph_note import (
    ARGUMENT_TYPES,
    FRAME_TYPES,
    Op,
    TensorSpec,
    split_tensor,
)
from analyzer.model.contract.run_note import CompiledFunction
from analyzer.model.errors import TargetError
from analyzer.tracing.parse.hlo import HloProto

_FUNCTION: Final = "__inference_"
_MAX_VALUES: Final = 64
"""Constants with at most this many elements are compiled in as values: axes, shapes, paddings."""
_Description: TypeAlias = tuple[Any, ...]
"""An input of a compiled function: kind (tensor, variable or value), dtype, shape, and the value."""


@dataclass(frozen=True, slots=True)
class LoweredFunction:
    """One function that XLA compiles, for the shapes that one or more ops call it with."""

    note: CompiledFunction
    plan: bytes  # the compiled module and its buffer assignment (HloProto) without literals


def is_compiled(function: Any) -> bool:
    """Say whether XLA compiles a concrete function as a whole."""
    return bool(function.function_def.attr["_XlaMustCompile"].b)


def build_compiled_graph(function: Any, args: Sequence[Any] = ()) -> StaticStep:
    """Return the graph around the function that XLA compiles: its arguments, the call, the results.

    XLA compiles the function for the shapes that it is called with (``xla_compilation_cache.cc``), so
    axes that its signature leaves open get their sizes from the step's inputs (``args``).
    """
    if not is_compiled(function):
        return build_executor_graph(function)
    fed_tensors = chain(args, repeat(None))
    arguments = [
        Op(
            name=own.op.name,
            type="_Arg",
            outputs=(_get_spec(own, fed),),
            attrs={"index": index},
        )
        for index, (own, fed) in enumerate(
            zip(function.inputs, fed_tensors, strict=False)
        )
    ]
    name = plain_graphs.decode_name(function.name)
    call = name.removeprefix(_FUNCTION).rpartition("_")[0] or name
    while call in {op.name for op in arguments}:
        call += "_"
    compiled = Op(
        name=call,
        type="StatefulPartitionedCall",
        inputs=tuple(f"{op.name}:0" for op in arguments),
        outputs=tuple(map(_get_spec, function.outputs)),
        attrs={"f": {"function": name}, "_XlaMustCompile": True},
    )
    results = (
        Op(name=f"{call}_RetVal_{index}", type="_Retval", inputs=(f"{call}:{index}",))
        for index in range(len(function.outputs))
    )
    return StaticStep(ops=(*arguments, compiled, *results))


def _get_spec(tensor: Any, fed: Any = None) -> TensorSpec:
    """Return a tensor's dtype and shape; the shape is that of ``fed``, if it is given."""
    if tensor.dtype == tf.resource:
        return TensorSpec("resource", ())
    axes = None if fed is None else plain_graphs.get_shape(fed)
    if axes is None:
        return plain_graphs.get_spec(tensor)
    return TensorSpec(tensor.dtype.name, axes)


def compile_calls(
    function: Any, ops: Sequence[Op], dump: Path | None, args: Sequence[Any]
) -> tuple[list[LoweredFunction], list[str]]:
    """Lower and compile every function of a step that XLA compiles.

    The second value has a sentence for each function that cannot be compiled; TargetError if that is the
    step itself. ``dump`` is the folder in ``XLA_FLAGS``.
    """
    by_name = {op.name: op for op in ops}
    fixed_inputs = FixedInputs(plain_graphs.collect_function_graphs(function))
    calls = _group_calls(function, by_name, fixed_inputs.graphs)
    lowered: list[LoweredFunction] = []
    messages: list[str] = []
    for (name, inputs), callers in calls.items():
        fixed = fixed_inputs.find(name)
        values = {
            index: _find_fed(callers[0].inputs[index], by_name, args) for index in fixed
        }
        names = tuple(op.name for op in callers)
        try:
            with StandIns.open() as stand_ins:
                plan = _compile(name, inputs, stand_ins, dump, values=values)
        except (ValueError, tf.errors.OpError) as error:
            reason = _find_compile_error(error)
            bodies = [op for op in ops if op.type not in FRAME_TYPES]
            if len(calls) == len(callers) == 1 and len(bodies) <= 1:  # the whole step
                raise TargetError(
                    f"The step cannot be compiled with XLA: {reason}",
                    hint="Estimate it op by op with --no-jit.",
                ) from error
            messages.append(f"The function of {names[0]} cannot be compiled: {reason}")
        else:
            pairs = tuple(fixed.items())
            note = CompiledFunction(
                ops=names, function=name, platform="cpu", fixed=pairs
            )
            lowered.append(LoweredFunction(note, plan))
    return lowered, messages


def _find_compile_error(error: Exception) -> str:
    """Return the first sentence of an error of XLA's compiler."""
    text = (
        clean_message(str(error))
        .removeprefix("Failed getting HLO text: ")
        .strip("'\" ")
    )
    return text.split(". ")[0].splitlines()[0] if text else type(error).__name__


def read_compiled_functions(
    function: Any, dump: Path
) -> tuple[list[LoweredFunction], list[Op]]:
    """Return the functions of a step that ran and that XLA compiled, from its dump; and their ops."""
    callers: dict[str, list[str]] = {}
    if is_compiled(function):
        own = plain_graphs.decode_name(function.name)
        callers[own] = [own]
    callers |= plain_graphs.find_compiled_calls(function.graph)
    fixed_inputs = FixedInputs(plain_graphs.collect_function_graphs(function))
    compiled = []
    for name, ops in callers.items():
        plan, platform = read_dumped_plan(dump, name)
        if plan:
            note = CompiledFunction(
                ops=tuple(ops),
                function=name,
                platform=platform,
                fixed=tuple(fixed_inputs.find(name).items()),
                compilations=len(list_dumps(dump, name)),
            )
            compiled.append(LoweredFunction(note, plan))
    return compiled, plain_graphs.read_inner_ops(
        function, [one.note.function for one in compiled]
    )


def _group_calls(
    function: Any, by_name: Mapping[str, Op], graphs: Mapping[str, Any]
) -> dict[tuple[str, tuple[_Description, ...]], list[Op]]:
    """Return the calls of compiled functions; calls with equal inputs share one compilation."""
    captures = list(function.captured_inputs)
    first = len(function.inputs) - len(captures)
    variables = {}
    for index, capture in enumerate(captures, first):
        if capture.dtype == tf.resource:
            variables[index] = get_handle_type(capture)

    calls: dict[tuple[str, tuple[_Description, ...]], list[Op]] = {}
    for op in by_name.values():
        called = op.attrs.get("f")
        if op.attrs.get("_XlaMustCompile") and isinstance(called, dict):
            inputs = [
                _describe(tensor, by_name, variables, graphs) for tensor in op.inputs
            ]
            key = called["function"], tuple(inputs)
            calls.setdefault(key, []).append(op)
    return calls


def _describe(
    tensor: str,
    by_name: Mapping[str, Op],
    variables: dict[int, tuple[Any, Any]],
    graphs: Mapping[str, Any],
) -> _Description:
    name, index = split_tensor(tensor)
    op = by_name[name]
    spec = TensorSpec("", None)
    if index < len(op.outputs):
        spec = op.outputs[index]
    if spec.dtype == "resource":
        while op.type not in ARGUMENT_TYPES and op.inputs:
            source, _ = split_tensor(op.inputs[0])
            op = by_name[source]
        dtype, shape = variables.get(int(op.attrs.get("index", -1)), (None, None))
        return "variable", dtype and dtype.name, shape

    value = op.attrs.get("value")
    if (
        op.type in ("Const", "HostConst")
        and isinstance(value, dict)
        and "values" in value
    ):
        return "value", spec.dtype, spec.shape, tuple(value["values"])
    # A function's gradient gets its needs from the function, axes and shapes included.
    called = op.attrs.get("f")
    graph = graphs.get(called["function"]) if isinstance(called, dict) else None
    if graph is not None and index < len(graph.outputs):
        values = tensor_util.constant_value(graph.outputs[index])
        is_small = values is not None and np.size(values) <= _MAX_VALUES
        if is_small and values.dtype.kind in "biuf":
            return "value", spec.dtype, spec.shape, tuple(values.ravel().tolist())
    return "tensor", spec.dtype, spec.shape


def _find_fed(tensor: str, by_name: dict[str, Op], args: Sequence[Any]) -> Any:
    """Return the step's input behind an input of a call; None if there is none or it has no value."""
    name, _ = split_tensor(tensor)
    while by_name[name].type == "Identity" and by_name[name].inputs:
        name, _ = split_tensor(by_name[name].inputs[0])
    op = by_name[name]
    if op.type not in ARGUMENT_TYPES:
        return None
    index = int(op.attrs.get("index", -1))
    if not 0 <= index < len(args) or isinstance(args[index], tf.TensorSpec):
        return None
    return args[index]


def _compile(
    name: str,
    inputs: Sequence[_Description],
    stand_ins: StandIns,
    dump: Path | None,
    *,
    values: Mapping[int, Any],
) -> bytes:
    """Return a function's plan; ``values`` are the known inputs that are compiled in."""
    for kind, dtype, shape, *_ in inputs:
        if dtype is None or shape is None or any(axis < 0 for axis in shape):
            raise ValueError(f"a {kind} of unknown shape is an input")
    arguments = []
    for index, (kind, dtype, shape, *constant) in enumerate(inputs):
        is_filled = index in values
        if values.get(index) is not None:
            arguments.append(values[index])
        elif kind == "variable":
            handle = stand_ins.make_variable(
                tf.as_dtype(dtype), shape, filled=is_filled
            )
            arguments.append(handle)
        elif kind == "value":
            arguments.append(tf.constant(constant[0], dtype, shape))
        else:
            make = stand_ins.make_filled if is_filled else stand_ins.make_tensor
            arguments.append(make(tf.as_dtype(dtype), shape))

    def get_stage(stage: str) -> bytes:
        return bytes(
            context.context().get_compiler_ir(
                device_name=CPU_DEVICE,
                platform_name=None,
                function_name=name,
                flat_args=arguments,
                captured_inputs=[],
                stage=stage,
            )
        )

    compiled = get_stage("optimized_hlo_proto_serialized")
    plan = b""
    if dump is not None:  # each stage lowers the function again
        plan, _ = read_dumped_plan(dump, name)
        for file in dump.iterdir() if dump.is_dir() else ():
            file.unlink(missing_ok=True)
    if not plan:
        # The first stage has the buffer assignment, with a module from before the last passes.
        proto = HloProto()
        proto.ParseFromString(compiled)
        proto.hlo_module.Clear()
        proto.hlo_module.ParseFromString(get_stage("optimized_hlo_serialized"))
        plan = pack(proto)
    return plan
