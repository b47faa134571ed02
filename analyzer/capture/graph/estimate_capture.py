"""Capture everything that an estimate needs of a step, above all the graph, without running it.

A concrete function is called with a cancelled cancellation manager. TensorFlow then does everything that
precedes a run (grappler, placement, partitioning, oneDNN's rewrites, kernels and executor) and refuses
to start. The run metadata holds the graph, with the same nodes in the same order as for a step that
runs. The call gets handles without variables and empty tensors, so it allocates nothing of their size.

For a GPU that the machine lacks, TensorFlow optimises a function's graph for a *virtual cluster* that
describes the devices by their properties only (``optimize_function_graph_utils`` makes one from the real
devices). Here it gets a cluster with the named card: it chooses NCHW or NHWC for the card's
architecture, fuses convolutions for cuDNN, inlines nested functions and lowers branches and loops.
TensorFlow's CPU build registers no GPU kernels: ``host_copies`` lists the ops without one, and inserts
the copies.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import keras
import tensorflow as tf
from numpy.linalg import LinAlgError

from analyzer.capture import private_names as private
from analyzer.capture.graph.data_sizes import ARGUMENT, Outputs, SizedGraph
from analyzer.capture.graph.plain_graphs import find_sources, read_executed_ops
from analyzer.capture.graph.unbacked_variables import leave_out_values
from analyzer.capture.private_names import find_open_optimizers
from analyzer.capture.run.instrumentation import observe_step
from analyzer.capture.run.step_capture import (
    Captured,
    Capturing,
    describe_capture,
    note_threads,
    trace_function,
)
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.targets.step_program import Program
from analyzer.cards.catalogue import Gpu, find_gpu, memory_limit
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.run_note import ARGUMENT_TYPES, DataSize, DeviceNote, Op
from analyzer.model.errors import TargetError
from analyzer.model.graph.host_copies import (
    VARIABLES_ON_HOST,
    insert_host_copies,
    place_by_handles,
)
from analyzer.model.interrupts import pause_collector
from analyzer.model.machine import send_stderr_to
from analyzer.model.progress import report_stage

_FLUSH = "analyzer_flush"

# Nodes of graphs other than the step's: our flushing call, and TensorFlow's eager constants.
_FOREIGN = frozenset((_FLUSH, "_EagerConst"))
_numbers = count(1)

# The ops of a graph, and the sizes in it that data decide.
OpsAndSizes: TypeAlias = tuple[list[Op], list[DataSize]]

# Handles without variables, by element type and shape of the value.
_Handles: TypeAlias = dict[tf.TensorSpec, Any]


def read_step(
    function: Any,
    partitions: Sequence[Any],
    given: Sequence[Any],
    assumed: Mapping[str, int],
    *,
    transposed: bool = False,
) -> OpsAndSizes:
    """Return the ops of executed graphs, and the sizes that data decide.

    ``given`` are the tensors of the call, ``assumed`` sizes by op. The attribute ``value`` of an
    argument is its value if it is one number: it may decide a loop. If ``transposed``, images may have
    another order of axes than in the traced graphs.
    """
    outputs: Outputs = {}
    sizes: list[DataSize] = []

    for graph_def in partitions:
        sized = SizedGraph(
            function,
            graph_def,
            given,
            assumed,
            transposed=transposed,
        )

        outputs |= sized.outputs
        sizes += sized.sizes.values()

    ops = read_executed_ops(partitions, outputs, find_sources(function.graph))
    described = [
        replace(op, attrs={**op.attrs, **_describe_argument(op, given)}) for op in ops
    ]

    return described, sizes


def _describe_argument(op: Op, given: Sequence[Any]) -> dict[str, Any]:
    index = -1
    if op.type in ARGUMENT_TYPES:
        index = int(op.attrs.get("index", -1))

    tensor: Any = given[index] if 0 <= index < len(given) else None
    if not hasattr(tensor, "numpy") or tensor.shape.num_elements() != 1:
        return {}

    if not (
        tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool
    ):
        return {}

    value = {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}

    return {"value": {**value, "values": [tensor.numpy().item()]}}


def instantiate(function: Any) -> list[Any]:
    """Build the function's executor; return its graphs, one a device."""
    manager = private.cancellation.CancellationManager()
    manager.start_cancel()

    # Made before the metadata is collected: these are ops too, run by small functions.
    handles: _Handles = {}
    captured = [_make_empty(capture, handles) for capture in function.captured_inputs]
    arguments = function.inputs[: len(function.inputs) - len(captured)]
    feeds = [_make_empty(tensor, handles) for tensor in arguments]
    collected: list[Any] = []

    try:
        with private.collect_executed_graphs(collected):
            with (
                suppress(tf.errors.CancelledError),
                private.cancellation.CancellationManagerContext(manager),
                private.build_new_executors(next(_numbers)),
            ):
                private.get_flat_call(function)(feeds, captured)

            _write_graphs()
    except tf.errors.OpError as error:
        raise TargetError(
            f"The step's graph cannot be built: {error.message}"
        ) from None

    partitions = [
        graph_def
        for graph_def in collected
        if _FOREIGN.isdisjoint(node.name for node in graph_def.node)
    ]
    if not partitions:
        raise TargetError("TensorFlow returned no graph for the step.")

    return partitions


def _write_graphs() -> None:
    """Make a call that succeeds: only such a call writes the graphs that were collected."""
    tf.function(
        lambda: tf.constant(0, name=_FLUSH),
        autograph=False,
    ).get_concrete_function()()


def _make_empty(tensor: Any, handles: _Handles) -> Any:
    """Return an empty tensor, list or handle of this type; similar variables share one handle."""
    if tensor.dtype == tf.variant:
        return tf.raw_ops.EmptyTensorList(
            element_shape=-1,
            max_num_elements=0,
            element_dtype=tf.float32,
        )

    if tensor.dtype != tf.resource:
        return tf.zeros([0] * (tensor.shape.rank or 0), tensor.dtype)

    spec = private.get_handle_spec(tensor) or tf.TensorSpec(None, tf.float32)
    if spec not in handles:
        handles[spec] = tf.raw_ops.VarHandleOp(
            dtype=spec.dtype,
            shape=spec.shape,
            shared_name=f"analyzer_{next(_numbers)}",
        )

    return handles[spec]


_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
_CARD = "/job:localhost/replica:0/task:0/device:GPU:0"
_MAX_VALUES = 1 << 16  # constants with more values than this lose them

# CUDA 12.5 and cuDNN 9.3, from TensorFlow 2.21's GPU wheels; the optimiser uses them only to detect
# very old versions.
_CUDA = "12050"
_CUDNN = "90300"


def build_gpu_graph(
    function: Any,
    gpu: Gpu,
    limit_bytes: int | None,
    given: Sequence[Any],
    assumed: Mapping[str, int],
) -> OpsAndSizes:
    """Return the graph that a call would run on a card, op by op, and the sizes that data decide."""
    try:
        item = _make_item(_wrap_body(function), function)
        graph_def = _optimize(item, _describe_devices(gpu, limit_bytes))
    except (tf.errors.OpError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise TargetError(
            f"The step's graph cannot be optimised for a GPU: {message}"
        ) from None

    ops, sizes = read_step(function, [graph_def], given, assumed, transposed=True)
    return insert_host_copies(place_by_handles(ops)), sizes


def _wrap_body(function: Any) -> Any:
    """Return the traced graph with arguments and results, as the runtime instantiates a function."""
    definition = function.function_def
    graph_def, names = private.function_def_to_graph_def(definition)
    graph_def.library.CopyFrom(function.graph.as_graph_def().library)

    for index in range(len(definition.signature.input_arg)):
        _make_argument(graph_def.node[index], function, index)

    results = zip(function.graph.outputs, definition.signature.output_arg, strict=True)
    for index, (tensor, result) in enumerate(results):
        source = names[definition.ret[result.name]]
        name = f"{result.name}_RetVal"
        node = graph_def.node.add(name=name, op="_Retval", input=[source])
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        node.attr["index"].i = index

    return graph_def


def _make_item(graph_def: Any, function: Any) -> Any:
    """Return a graph with the nodes that the optimiser must keep: results and side effects."""
    nodes = list(graph_def.node)
    for called in graph_def.library.function:
        nodes += called.node_def

    has_strategy = private.has_strategy()
    for node in nodes:  # the user's choice, or of a strategy that finds no GPU here
        is_on_host = "cpu" in node.device.lower() and not has_strategy
        node.device = _HOST if is_on_host else _CARD

    effects = {op.name for op in function.graph.control_outputs}
    fetched = [
        node.name
        for node in graph_def.node
        if node.op == "_Retval" or node.name in effects
    ]

    if not fetched:
        raise ValueError("it returns nothing and changes nothing")

    meta = private.meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    meta.collection_def["train_op"].node_list.value.extend(fetched)

    return meta


def _make_argument(node: Any, function: Any, index: int) -> None:
    """Make a node an argument with its shape, or with the type of the variable behind a handle."""
    tensor = function.inputs[index]
    node.attr.clear()
    node.attr["index"].i = index

    if tensor.dtype != tf.resource:
        node.op = ARGUMENT
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())

        return

    captured = index - len(function.inputs) + len(function.captured_inputs)
    handle = function.captured_inputs[captured] if captured >= 0 else tensor
    node.op = "_Arg"
    node.device = _CARD
    node.attr["T"].type = tensor.dtype.as_datatype_enum
    spec = private.get_handle_spec(handle)

    if spec is not None:
        node.attr["_handle_dtypes"].list.type.append(spec.dtype.as_datatype_enum)
        node.attr["_handle_shapes"].list.shape.append(spec.shape.as_proto())


def _optimize(meta: Any, devices: list[Any]) -> Any:
    config = private.config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1

    if private.op_def_registry.get("_CopyFromGpuToHost") is None:
        # A build without CUDA lacks the op that swaps tensors (gpu_swapping_ops.cc). The optimiser
        # would insert it, and could then not infer shapes. Without swaps, the need is an upper bound.
        rewrites.memory_optimization = rewrites.SCHEDULING_HEURISTICS

    if not any(node.op == "_Retval" for node in meta.graph_def.node):
        # The runtime fetches a function's results. Here the side effects are fetched, and without
        # results the dependency pass would remove them (DependencyOptimizer::SafeToConvertToNoOp).
        rewrites.dependency_optimization = rewrites.OFF

    cluster = private.grappler_cluster.Cluster(devices=devices)
    # A build for the CPU warns about each op without a GPU kernel, so about every op.
    with send_stderr_to(Path(os.devnull)):
        graph_def = private.tf_optimizer.OptimizeGraph(config, meta, cluster=cluster)

    for node in graph_def.node:
        if node.op == "Const":
            # Only the shape of a large constant matters, and copying the values takes seconds.
            tensor = node.attr["value"].tensor
            for field, values in tensor.ListFields():
                is_content = field.name == "tensor_content" or field.name.endswith(
                    "_val"
                )
                if is_content and len(values) > _MAX_VALUES:
                    tensor.ClearField(field.name)

        if node.op == ARGUMENT and "index" in node.attr:
            dtype = node.attr["dtype"].type
            index = node.attr["index"].i
            node.op = "_Arg"
            node.attr.clear()
            node.attr["T"].type, node.attr["index"].i = dtype, index

    return graph_def


def _describe_devices(gpu: Gpu, limit_bytes: int | None) -> list[Any]:
    """Return the properties of the card and the host for the optimiser.

    Above 80 % of ``memory_size`` (the allocator's limit: ``VirtualCluster``'s constructor), sums are
    rewritten and tensors swapped to the host (``memory_optimizer.cc``). The optimiser's estimate of the
    peak depends on the ops' costs, and these on clock, multiprocessors and bandwidth
    (``OpLevelCostEstimator::GetDeviceInfo``; units as in ``GetLocalGPUInfo``).
    """
    own = memory_limit(gpu).bytes
    properties = private.device_properties_pb2.DeviceProperties(
        type="GPU",
        vendor="AMD" if gpu.is_amd else "NVIDIA",
        model=gpu.name,
        memory_size=own if limit_bytes is None else min(limit_bytes, own),
        frequency=round(gpu.clock_mhz),
        num_cores=gpu.sm_count,
        bandwidth=gpu.bandwidth_bytes_s // 1000,
        l2_cache_size=gpu.l2_bytes,
    )

    major, minor = gpu.compute_capability
    properties.environment["architecture"] = f"{major}.{minor}"
    properties.environment["cuda"] = _CUDA
    properties.environment["cudnn"] = _CUDNN
    host = private.device_properties_pb2.DeviceProperties(
        type="CPU",
        num_cores=1,
        frequency=1000,
    )

    return [
        private.device_properties_pb2.NamedDevice(name=_CARD, properties=properties),
        private.device_properties_pb2.NamedDevice(name=_HOST, properties=host),
    ]


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Let Keras find a GPU in the block, use cuDNN's recurrent layers, and place its variables there."""
    device = property(
        lambda one: _HOST if one.dtype.name in VARIABLES_ON_HOST else _CARD
    )
    with (
        patch.object(private.BaseResourceVariable, "device", device),
        # Not in every Keras:
        patch.object(private.keras_nn, private.CPU_ONLY, lambda: False, create=True),
        patch.object(
            private.keras_rnn,
            private.IS_GPU_AVAILABLE,
            lambda: True,
            create=True,
        ),
    ):
        yield


# Errors of code that may have failed because the weights are zeros.
_ZEROS_ERRORS = (tf.errors.OpError, ArithmeticError, AssertionError, LinAlgError)
_NO_XLA = "Without a run, a step that XLA compiles cannot be estimated."


def capture_unrun_step(
    make: Callable[[], Program],
    options: CaptureOptions,
) -> Captured:
    """Build the step, trace it, and return the graph that would run.

    The model's variables take no memory. If the user's code needs their values (it calls the model to
    build it), ``make`` is called again with real variables.
    """
    folder = Path.cwd()

    try:
        return capture_graph(make, options, unbacked=True)
    except (TargetError, tf.errors.OpError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _ZEROS_ERRORS):
            cause = cause.__cause__ or cause.__context__

        if cause is None:
            raise

    os.chdir(folder)  # the code of the target may have changed it
    keras.utils.clear_session()
    capture = capture_graph(make, options)
    message = "The model's code reads its weights, so they were allocated in full."
    capture.run = replace(capture.run, notes=(*capture.run.notes, message))

    return capture


def capture_graph(
    make: Callable[[], Program],
    options: CaptureOptions,
    *,
    unbacked: bool = False,
) -> Captured:
    """Capture the graph of a step, with the variables as they are unless they are ``unbacked``."""
    gpu = find_gpu(options.gpu) if options.gpu else None
    with ExitStack() as stack:
        if gpu is not None:
            stack.enter_context(pretend_gpu())

        observed = stack.enter_context(observe_step())
        if unbacked:
            stack.enter_context(leave_out_values())

        report_stage("building the model")
        program = make()

        for optimizer, weights in find_open_optimizers(program) if unbacked else ():
            optimizer.build(weights)

        report_stage("tracing the step")
        variables = StepVariables(program)
        variables.refresh()
        function = _trace(program)
        variables.function = function

        stack.enter_context(pause_collector())  # no code of the user runs from here on
        report_stage("optimising the graph")
        ops, sizes = _build_graph(program, function, gpu, options)

        report_stage("reading the graph")
        inputs: list[int | None] = [None] * len(program.args)
        state = Capturing(
            program,
            observed,
            variables,
            inputs,
            options.step_count,
            function,
        )

        capture = describe_capture(state, ops=ops)

    device = capture.run.device
    if gpu is not None:
        device = DeviceNote(kind="gpu", name=gpu.name, id=gpu.id)

    capture.run = replace(
        capture.run,
        kind="static",
        device=device,
        threads=note_threads(),
        sizes=tuple(sizes),
        assumed=dict(options.assume),
    )

    return capture


def _trace(program: Program) -> Any:
    """Return the concrete function of the step."""
    if program.function is None:
        raise TargetError(
            "The step runs eagerly: there is no graph to predict from.",
            hint="Decorate it with @tf.function, or compile without run_eagerly; or measure it as it "
            "is: analyze trace.",
        )

    return trace_function(program)


def _build_graph(
    program: Program,
    function: Any,
    gpu: Gpu | None,
    options: CaptureOptions,
) -> OpsAndSizes:
    """Return the ops that would run, and the sizes that data decide."""
    if program.config.jit:
        raise TargetError(
            _NO_XLA,
            hint="Run it: analyze trace; or estimate it op by op with --no-jit.",
        )

    given = program.make_tensors()
    assumed = options.assume
    if gpu is None:
        return read_step(function, instantiate(function), given, assumed)

    return build_gpu_graph(function, gpu, options.memory_limit_bytes, given, assumed)
