"""The graph that a GPU's executor would run, on a machine without one.

TensorFlow optimises a function's graph for a *virtual cluster* that describes the devices by their
properties alone (``grappler::VirtualCluster``; ``OptimizeGraph`` in ``optimize_function_graph_utils``
makes one from the real devices' properties). Here the same optimiser gets a cluster with the named
card: layouts become NCHW or NHWC as the card's architecture asks, convolutions are fused as for cuDNN,
nested functions are inlined and branches and loops lowered. Nothing runs.

With a cluster of this machine's CPU alone the same way gives the graph that the runtime makes here, node
for node and in the same order; with loops the same ops, numbered otherwise.

What differs from a real run: ops without a GPU kernel are told by a list of our own
(``host_copies``), because the CPU's build of TensorFlow does not register GPU
kernels; and the copies between host and card are put in by us.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.graph.data_dependent_sizes import infer_sizes
from analyzer.capture.graph.executor_graph import (
    StaticStep,
    find_used_variables,
    get_handle_type,
    note_argument_value,
    note_least_shapes,
)
from analyzer.capture.private_names import (
    config_pb2,
    device_properties_pb2,
    graph_pb2,
    grappler_cluster,
    meta_graph_pb2,
    tf_optimizer,
)
from analyzer.cards import Gpu, memory_limit
from analyzer.model.errors import TargetError
from analyzer.model.graph.host_copies import insert_host_copies

_HOST: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_CARD: Final = "/job:localhost/replica:0/task:0/device:GPU:0"
_STAND_IN: Final = "_ParallelConcatStart"
"""Stands for an argument while the graph is optimised: an op without inputs that states its shape and
cannot be folded. (TensorFlow's way from Python to the optimiser drops the shape of an ``_Arg``.)"""

_TOGETHER: Final = "_class"
_KEPT_TOGETHER: Final = "_analyzer_class"
"""What an op says of those that it is to be placed with (``colocate_with``: the gradient of a sum does),
and a copy of it. TensorFlow's way from Python to the optimiser drops it (``ignore_colocation`` of
``ItemConfig``); at run time it is there, and ops that differ in it alone are not made one
(``UniqueNodes``): what two calls of one tape compute alike is computed twice, from the first sum on."""

_MANY_VALUES: Final = 1 << 16
"""Values of a constant from which on they are not kept."""

_CUDA: Final = "12050"
_CUDNN: Final = "90300"
"""CUDA 12.5 and cuDNN 9.3, what TensorFlow 2.21's GPU wheels are built with; the optimiser asks for
them only to tell very old ones."""


def build_gpu_graph(
    function: Any,
    gpu: Gpu,
    limit_bytes: int | None = None,
    *,
    given: Sequence[Any] = (),
    told: Mapping[str, int] | None = None,
) -> StaticStep:
    """Return the graph that a call of a concrete function would run on a card, op by op.

    Args:
        function: A ``ConcreteFunction``.
        gpu: The card.
        limit_bytes: What TensorFlow's allocator is limited to on it; None for TensorFlow's own limit.
        given: The tensors that it would be called with.
        told: Sizes that the user told, by the op whose result has them.

    Raises:
        TargetError: TensorFlow cannot optimise the function's graph.
    """
    captures = list(function.captured_inputs)
    try:
        graph_def = _optimised(_as_item(_instantiated(function), function), gpu, limit_bytes)
    except (tf.errors.OpError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise TargetError(f"The step's graph cannot be optimised for a GPU: {message}") from None
    sized = infer_sizes(function, [graph_def], given, told or {}, transposed=True)
    executed = graphs.read_executed_ops(
        [graph_def], sized.outputs, graphs.find_sources(function.graph)
    )
    ops = insert_host_copies(
        replace(
            op,
            attrs={
                **op.attrs,
                **note_argument_value(op, given),
                **note_least_shapes(op, sized.least),
            },
        )
        for op in executed
    )
    used = find_used_variables(function, captures, ops)
    return StaticStep(ops=tuple(ops), variables=used, sizes=sized.sizes)


def _instantiated(function: Any) -> Any:
    """Return the traced graph with what the runtime puts round it when it instantiates a function."""
    signature = function.function_def.signature
    body = function.graph.as_graph_def()
    names = {
        tensor.op.name: argument.name
        for tensor, argument in zip(function.inputs, signature.input_arg, strict=True)
    }
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.CopyFrom(body.versions)
    graph_def.library.CopyFrom(body.library)
    for index, tensor in enumerate(function.inputs):
        node = graph_def.node.add()
        node.name = names[tensor.op.name]
        _as_argument(node, function, index)
    for node in body.node:
        if node.name in names:
            continue
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        for position, name in enumerate(copy.input):
            source, mark, rest = name.removeprefix("^").partition(":")
            if source in names:
                start = "^" if name.startswith("^") else ""
                copy.input[position] = f"{start}{names[source]}{mark}{rest}"
    for index, (tensor, result) in enumerate(
        zip(function.graph.outputs, signature.output_arg, strict=True)
    ):
        node = graph_def.node.add()
        node.name, node.op = f"{result.name}_RetVal", "_Retval"
        source = names.get(tensor.op.name, tensor.op.name)
        node.input.append(f"{source}:{tensor.value_index}")
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        node.attr["index"].i = index
    return graph_def


def _as_item(graph_def: Any, function: Any) -> Any:
    """Return a graph with what the optimiser has to keep: its results and what has an effect."""
    for node in graph_def.node:
        _place(node)
    for called in graph_def.library.function:
        for node in called.node_def:
            _place(node)
    kept = {op.name for op in function.graph.control_outputs}
    wanted = [node.name for node in graph_def.node if node.op == "_Retval" or node.name in kept]
    if not wanted:
        raise ValueError("it returns nothing and changes nothing")
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    meta.collection_def["train_op"].node_list.value.extend(wanted)
    return meta


def _as_argument(node: Any, function: Any, index: int) -> None:
    """Let a node stand for an argument and say what that is.

    A tensor's shape, the variable behind a handle: without it the optimiser does far less.
    """
    tensor = function.inputs[index]
    first = len(function.inputs) - len(function.captured_inputs)
    node.attr["index"].i = index
    if tensor.dtype == tf.resource:
        captured = function.captured_inputs[index - first] if index >= first else tensor
        node.op = "_Arg"
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        dtype, shape = get_handle_type(captured)
        if dtype is not None:
            node.attr["_handle_dtypes"].list.type.append(dtype.as_datatype_enum)
            node.attr["_handle_shapes"].list.shape.append(tf.TensorShape(shape).as_proto())
        return
    node.op = _STAND_IN
    node.attr["dtype"].type = tensor.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())


def _optimised(meta: Any, gpu: Gpu, limit_bytes: int | None) -> Any:
    """Return a graph as grappler leaves it for the card."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    if not any(node.op == "_Retval" for node in meta.graph_def.node):
        # The runtime gives a function's results as what is fetched; where there are none, the
        # dependency pass takes any value to be needed and removes no Identity
        # (DependencyOptimizer::SafeToRemoveIdentity, SafeToConvertToNoOp). From here, what has an
        # effect is fetched, and it would remove them.
        rewrites.dependency_optimization = rewrites.OFF
    cluster = grappler_cluster.Cluster(devices=_devices(gpu, limit_bytes))
    with _without_cpp_warnings():
        graph_def = tf_optimizer.OptimizeGraph(config, meta, cluster=cluster)
    for node in graph_def.node:
        if _KEPT_TOGETHER in node.attr:
            del node.attr[_KEPT_TOGETHER]
        if node.op == "Const":
            _drop_many_values(node.attr["value"].tensor)
        if node.op == _STAND_IN and "index" in node.attr:
            dtype, index = node.attr["dtype"].type, node.attr["index"].i
            node.op = "_Arg"
            node.attr.clear()
            node.attr["T"].type, node.attr["index"].i = dtype, index
    return graph_def


def _drop_many_values(tensor: Any) -> None:
    """Empty a large constant: its shape tells what is asked of it, and copying its values takes seconds.

    A mask that is computed beforehand has one value for each of the batch's scores
    (``tfg``'s constant folding knows no bound).
    """
    for field, values in tensor.ListFields():
        if field.name == "tensor_content" or field.name.endswith("_val"):
            if len(values) > _MANY_VALUES:
                tensor.ClearField(field.name)
            return


@contextlib.contextmanager
def _without_cpp_warnings() -> Iterator[None]:
    """Drop what TensorFlow's C++ writes to standard error in the block.

    It warns of each op without a GPU kernel, many times: in a build for CPUs, of every op.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)


def _place(node: Any) -> None:
    """Put a node on the card unless the user's code put it on the host."""
    node.device = _HOST if "cpu" in node.device.lower() else _CARD
    if _TOGETHER in node.attr:
        node.attr[_KEPT_TOGETHER].CopyFrom(node.attr[_TOGETHER])


def _devices(gpu: Gpu, limit_bytes: int | None) -> list[Any]:
    """Return the properties that the optimiser is told of a card and of the host.

    The memory is the allocator's limit (``VirtualCluster``'s constructor puts the device's
    ``memory_limit`` in): where the peak that the optimiser works out is above 80 % of it, sums are
    rewritten and tensors swapped to the host (``memory_optimizer.cc``). That peak follows from the ops'
    costs, which follow from clock, multiprocessors and bandwidth
    (``OpLevelCostEstimator::GetDeviceInfo``; ``GetLocalGPUInfo`` says in which units).
    """
    card = device_properties_pb2.NamedDevice(name=_CARD)
    properties = card.properties
    properties.type = "GPU"
    properties.vendor = "NVIDIA"
    properties.model = gpu.name
    own = memory_limit(gpu).bytes
    properties.memory_size = own if limit_bytes is None else min(limit_bytes, own)
    properties.frequency = round(gpu.clock_mhz)
    properties.num_cores = gpu.sm_count
    properties.bandwidth = gpu.bandwidth_bytes_s // 1000
    properties.l2_cache_size = gpu.l2_bytes
    major, minor = gpu.compute_capability
    properties.environment["architecture"] = f"{major}.{minor}"
    properties.environment["cuda"] = _CUDA
    properties.environment["cudnn"] = _CUDNN
    host = device_properties_pb2.NamedDevice(name=_HOST)
    host.properties.type = "CPU"
    host.properties.num_cores = 1
    host.properties.frequency = 1000
    return [card, host]
